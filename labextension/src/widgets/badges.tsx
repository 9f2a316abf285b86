/** The strip of ranks below an %%spmd cell: what each does or how it ended. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { CellRankStatus, ICell, ICellRank } from '../protocol';
import { Elapsed } from './clock';
import { Counts } from './parts';
import { countStatuses, glyphOf, statusLabel, toneOf, took, type Trans } from './labels';

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
}

export function Badges(props: IBadges): JSX.Element {
  const { cell, trans } = props;
  const spread = skewOf(cell.ranks);
  const button = (one: ICellRank) => (
    <RankBadge
      key={one.rank}
      one={one}
      pressed={props.shown === one.rank}
      slowest={spread?.slowest === one.rank ? spread.skew : null}
      trans={trans}
      onShow={props.onShow}
    />
  );
  return (
    <div
      className="jxl-badges"
      role="group"
      aria-label={trans.__('Ranks of cell [%1]', cell.number)}
      title={spread ? skewText(spread, trans) : undefined}
    >
      {cell.ranks.length < FOLD_FROM ? (
        cell.ranks.map(button)
      ) : (
        <Folded {...props} button={button} />
      )}
      <span className="jxl-dim">
        {cell.ended === null ? (
          <Elapsed since={cell.started} offset={props.clockOffset} trans={trans} />
        ) : (
          took(spread?.longest ?? (cell.ended - cell.started) / 1000, trans)
        )}
        {spread && isNotable(spread) && (
          <>{` · ${trans.__('rank %1 slowest by %2', spread.slowest, took(spread.skew, trans))}`}</>
        )}
      </span>
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
  pressed: boolean;
  /** By how much it is the slowest; null if it is not. */
  slowest: number | null;
  trans: Trans;
  onShow: (rank: number) => void;
}

const RankBadge = React.memo(
  function RankBadge({ one, pressed, slowest, trans, onShow }: IRankBadge): JSX.Element {
    const words = rankText(one, slowest, trans);
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
        {one.rank}
      </button>
    );
  },
  (a, b) =>
    a.one.rank === b.one.rank &&
    a.one.status === b.one.status &&
    a.one.seconds === b.one.seconds &&
    a.pressed === b.pressed &&
    a.slowest === b.slowest &&
    a.onShow === b.onShow
);

function rankText(one: ICellRank, slowest: number | null, trans: Trans): string {
  const word = statusLabel(one.status as CellRankStatus, trans);
  let text =
    one.seconds === null
      ? trans.__('rank %1: %2', one.rank, word)
      : trans.__('rank %1: %2 after %3', one.rank, word, took(one.seconds, trans));
  if (slowest !== null) {
    text += trans.__(', slowest by %1', took(slowest, trans));
  }
  return text;
}

export interface ISkew {
  longest: number;
  slowest: number;
  /** Between the fastest and the slowest rank, in seconds. */
  skew: number;
}

/** Who took longest, and by how much longer than the fastest; null unless all have done the cell. */
export function skewOf(ranks: readonly ICellRank[]): ISkew | null {
  // Where one was stopped or has failed, the others were not slow.
  if (ranks.length < 2 || ranks.some(one => one.status !== 'done' || one.seconds === null)) {
    return null;
  }
  const by = ranks.map(({ rank, seconds }) => ({ rank, seconds: seconds! }));
  by.sort((a, b) => a.seconds - b.seconds);
  const last = by[by.length - 1];
  return { longest: last.seconds, slowest: last.rank, skew: last.seconds - by[0].seconds };
}

/** Not worth a word in the strip if nobody would feel it. */
const isNotable = ({ skew, longest }: ISkew): boolean => skew >= 0.1 && skew > 0.1 * longest;

function skewText({ slowest, skew, longest }: ISkew, trans: Trans): string {
  return trans.__(
    'slowest: rank %1, %2; %3 after the fastest',
    slowest,
    took(longest, trans),
    took(skew, trans)
  );
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
