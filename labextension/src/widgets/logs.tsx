/** The ranks' logs: followed, searched, and one rank's or all of them. */

import * as React from 'react';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Failure, useVisible } from './parts';

const EVERY_MS = 2000;
const LINES = 500;

interface ILogs {
  store: Store;
  /** Null: all ranks, each line with its rank. */
  rank: number | null;
  trans: Trans;
  onRank: (rank: number | null) => void;
}

/** The lines that have each of the words, whatever their case. */
function matching(text: string, query: string): string[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const lines = text.split('\n');
  return words.length
    ? lines.filter(line => words.every(word => line.toLowerCase().includes(word)))
    : lines;
}

export function Logs({ store, rank, trans, onRank }: ILogs): JSX.Element {
  const box = React.useRef<HTMLPreElement>(null);
  const isVisible = useVisible(box);
  const [query, setQuery] = React.useState('');
  const [follow, setFollow] = React.useState(true);
  const [text, setText] = React.useState('');
  const [failure, fail] = React.useState('');
  const lines = React.useMemo(() => matching(text, query), [text, query]);
  React.useEffect(() => {
    if (!isVisible) {
      return;
    }
    let isOver = false;
    const load = async () => {
      const found = await store.call('logs', { rank, lines: LINES }).catch((error: Error) => error);
      if (!isOver) {
        fail(found instanceof Error ? found.message : '');
        setText(before => (found instanceof Error ? before : found));
      }
    };
    void load();
    const timer = follow ? setInterval(() => void load(), EVERY_MS) : undefined;
    return () => {
      isOver = true;
      clearInterval(timer);
    };
  }, [store, rank, follow, isVisible]);
  // What is new in a log is at its end.
  React.useLayoutEffect(() => {
    if (follow && box.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [lines, follow]);
  return (
    <div className="jxl-logs">
      <div className="jxl-logsBar">
        <label>
          {trans.__('Rank')}
          <select
            value={rank ?? ''}
            onChange={event => onRank(event.target.value === '' ? null : Number(event.target.value))}
          >
            <option value="">{trans.__('all')}</option>
            {store.state?.ranks.map(({ rank: one }) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <input
          type="search"
          value={query}
          placeholder={trans.__('Search')}
          aria-label={trans.__('Search in the log')}
          onChange={event => setQuery(event.target.value)}
        />
        <label>
          <input type="checkbox" checked={follow} onChange={event => setFollow(event.target.checked)} />
          {trans.__('Follow')}
        </label>
        <span className="jxl-dim" role="status">
          {query && trans._n('%1 line', '%1 lines', lines.length)}
        </span>
      </div>
      {failure && <Failure text={failure} />}
      <pre
        ref={box}
        className="jxl-text"
        tabIndex={0}
        role="region"
        aria-label={rank === null ? trans.__('Logs of all ranks') : trans.__('Log of rank %1', rank)}
      >
        {lines.join('\n') || trans.__('Nothing so far.')}
      </pre>
    </div>
  );
}
