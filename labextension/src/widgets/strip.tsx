/** The line below an %%spmd cell: how its ranks are, and boxes for them where they differ. */

import * as React from 'react';
import type { ICell, ICellRank } from '../protocol';
import type { Store } from '../store';
import { countsText, countStatuses, glyphOf, statusLabel, toneOf, took, type Trans } from './labels';
import { Button, Elapsed } from './parts';

/** As many ranks have boxes; of more those that are not like most others. */
const BOXES = 8;

interface IStrip {
  cell: ICell;
  /** The rank whose output is open; null while none is. */
  shown: number | null;
  store: Store;
  trans: Trans;
  onShow: (rank: number) => void;
  /** Show the report of what went wrong in it; null where there is none. */
  onReport: (() => void) | null;
}

export function Strip({ cell, shown, store, trans, onShow, onReport }: IStrip): JSX.Element {
  const { ranks } = cell;
  const counts = countStatuses(ranks);
  const [usual] = [...counts].sort(([, a], [, b]) => b - a)[0];
  const odd = ranks.length > BOXES ? ranks.filter(({ status }) => status !== usual) : ranks;
  const boxes = counts.length > 1 ? odd.slice(0, BOXES) : [];
  const other = ranks[Math.min(1, ranks.length - 1)].rank; // the first one's output is above
  const seconds = ranks.every(one => one.seconds !== null)
    ? Math.max(...ranks.map(one => one.seconds!))
    : ((cell.ended ?? 0) - cell.started) / 1000;
  return (
    <div className="jxl-badges" role="group" aria-label={trans.__('Ranks of cell [%1]', cell.number)}>
      <Button
        look="quiet"
        label={countsText(ranks, trans)}
        title={trans.__('Show the output of one rank')}
        expanded={shown !== null}
        onClick={() => onShow(shown ?? other)}
      />
      <span className="jxl-dim">
        {cell.ended === null ? (
          <Elapsed since={cell.started} store={store} trans={trans} />
        ) : (
          took(seconds, trans)
        )}
      </span>
      {boxes.map(one => (
        <Box key={one.rank} {...{ one, trans, onShow }} pressed={shown === one.rank} />
      ))}
      {onReport && <Button look="quiet" label={trans.__('Report')} onClick={onReport} />}
    </div>
  );
}

interface IBox {
  one: ICellRank;
  pressed: boolean;
  trans: Trans;
  onShow: (rank: number) => void;
}

function Box({ one, pressed, trans, onShow }: IBox): JSX.Element {
  const word = statusLabel(one.status, trans);
  const words =
    one.seconds === null
      ? trans.__('rank %1: %2', one.rank, word)
      : trans.__('rank %1: %2 after %3', one.rank, word, took(one.seconds, trans));
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
      {trans.__('rank %1', one.rank)}
    </button>
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
      <Button look="quiet" label={trans.__('Close')} title={trans.__('Close (Escape)')} onClick={onClose} />
    </div>
  );
}
