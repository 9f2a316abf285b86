/** The ranks' logs: followed, searched, and one rank's or all of them. */

import * as React from 'react';
import { Failure } from './parts';
import type { Trans } from './labels';

interface ILogs {
  /** Null: all ranks, each line with its rank. */
  rank: number | null;
  ranks: readonly number[];
  text: string;
  failure: string;
  follow: boolean;
  trans: Trans;
  onRank: (rank: number | null) => void;
  onFollow: (follow: boolean) => void;
}

/** The lines that have each of the words, whatever their case. */
function matching(text: string, query: string): string[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const lines = text.split('\n');
  return words.length
    ? lines.filter(line => words.every(word => line.toLowerCase().includes(word)))
    : lines;
}

export function Logs(props: ILogs): JSX.Element {
  const { rank, ranks, text, failure, follow, trans } = props;
  const [query, setQuery] = React.useState('');
  const lines = React.useMemo(() => matching(text, query), [text, query]);
  const box = React.useRef<HTMLPreElement>(null);
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
            onChange={event =>
              props.onRank(event.target.value === '' ? null : Number(event.target.value))
            }
          >
            <option value="">{trans.__('all')}</option>
            {ranks.map(one => (
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
          <input
            type="checkbox"
            checked={follow}
            onChange={event => props.onFollow(event.target.checked)}
          />
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
