/** The strip of ranks below an %%spmd cell: what each does or how it ended. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { CellRankStatus, ICell, ICellRank } from '../protocol';
import { Elapsed } from './clock';
import { Counts } from './parts';
import { countStatuses, glyphOf, statusLabel, toneOf, took, type Trans } from './labels';

/** Up to so many ranks each is named in full. */
const NAMED = 8;
/** From so many ranks on only those are shown one by one that are not like the others. */
const FOLD_FROM = 17;
const MOST_DEVIATING = 8;

interface IBadges {
  cell: ICell;
  /** The rank whose output is shown; null while none is. */
  shown: number | null;
  clockOffset: number;
  trans: Trans;
  onShow: (rank: number) => void;
  /** Show the report of what went wrong in it; null where there is none. */
  onReport: (() => void) | null;
}

export function Badges(props: IBadges): JSX.Element {
  const { cell, trans } = props;
  const longest = cell.ranks.every(({ seconds }) => seconds !== null)
    ? Math.max(...cell.ranks.map(({ seconds }) => seconds!))
    : null;
  const button = (one: ICellRank) => (
    <RankBadge
      key={one.rank}
      one={one}
      name={cell.ranks.length <= NAMED ? trans.__('rank %1', one.rank) : String(one.rank)}
      pressed={props.shown === one.rank}
      trans={trans}
      onShow={props.onShow}
    />
  );
  return (
    <div
      className="jxl-badges"
      role="group"
      aria-label={trans.__('Ranks of cell [%1]', cell.number)}
    >
      {cell.ranks.length > NAMED && <span className="jxl-dim">{trans.__('ranks')}</span>}
      {cell.ranks.length < FOLD_FROM ? (
        cell.ranks.map(button)
      ) : (
        <Folded {...props} button={button} />
      )}
      <span className="jxl-dim">
        {cell.ended === null ? (
          <Elapsed since={cell.started} offset={props.clockOffset} trans={trans} />
        ) : (
          took(longest ?? (cell.ended - cell.started) / 1000, trans)
        )}
      </span>
      {props.onReport && (
        <button type="button" className="jxl-button jxl-mod-quiet" onClick={props.onReport}>
          {trans.__('Report')}
        </button>
      )}
    </div>
  );
}

/** Counts of all, and those ranks that differ from most. */
function Folded(props: IBadges & { button: (one: ICellRank) => JSX.Element }): JSX.Element {
  const { cell, trans } = props;
  const counts = countStatuses(cell.ranks);
  const common = [...counts].sort((a, b) => b[1] - a[1])[0][0];
  const odd = cell.ranks.filter(({ status }) => status !== common);
  const first = cell.ranks.find(({ status }) => status === common)!;
  return (
    <>
      <Counts counts={counts} trans={trans} />
      {odd.slice(0, MOST_DEVIATING).map(props.button)}
      {odd.length > MOST_DEVIATING && (
        <span className="jxl-dim" title={ranksText(odd.map(({ rank }) => rank))}>
          {trans.__('and %1 more', odd.length - MOST_DEVIATING)}
        </span>
      )}
      <button
        type="button"
        className="jxl-button jxl-mod-quiet"
        aria-expanded={props.shown !== null}
        onClick={() => props.onShow(props.shown ?? (odd[0] ?? first).rank)}
      >
        {trans.__('outputs')}
      </button>
    </>
  );
}

interface IRankBadge {
  one: ICellRank;
  name: string;
  pressed: boolean;
  trans: Trans;
  onShow: (rank: number) => void;
}

const RankBadge = React.memo(
  function RankBadge({ one, name, pressed, trans, onShow }: IRankBadge): JSX.Element {
    const words = rankText(one, trans);
    return (
      <button
        type="button"
        className="jxl-badge"
        data-rank={one.rank}
        data-status={one.status}
        data-tone={toneOf(one.status)}
        aria-pressed={pressed}
        aria-label={trans.__('%1. Show its output', words)}
        title={words}
        onClick={() => onShow(one.rank)}
      >
        <span className="jxl-glyph" aria-hidden="true">
          {glyphOf(one.status)}
        </span>
        {name}
      </button>
    );
  },
  (a, b) =>
    a.one.rank === b.one.rank &&
    a.one.status === b.one.status &&
    a.name === b.name &&
    a.one.seconds === b.one.seconds &&
    a.pressed === b.pressed &&
    a.onShow === b.onShow
);

function rankText(one: ICellRank, trans: Trans): string {
  const word = statusLabel(one.status as CellRankStatus, trans);
  return one.seconds === null
    ? trans.__('rank %1: %2', one.rank, word)
    : trans.__('rank %1: %2 after %3', one.rank, word, took(one.seconds, trans));
}

interface IOutputHead {
  cell: ICell;
  rank: number;
  trans: Trans;
  onShow: (rank: number) => void;
  onClose: () => void;
}

/** The line above one rank's output: whose it is, another one's instead, and an end to it. */
export function OutputHead({ cell, rank, trans, onShow, onClose }: IOutputHead): JSX.Element {
  return (
    <div className="jxl-outputHead">
      <label>
        {trans.__('Output of rank')}{' '}
        <select value={rank} onChange={event => onShow(Number(event.target.value))}>
          {cell.ranks.map(one => (
            <option key={one.rank} value={one.rank}>
              {`${one.rank} ${glyphOf(one.status)}`}
            </option>
          ))}
        </select>
      </label>
      <button
        type="button"
        className="jxl-button jxl-mod-quiet"
        title={trans.__('Close (Escape)')}
        onClick={onClose}
      >
        {trans.__('close')}
      </button>
    </div>
  );
}
