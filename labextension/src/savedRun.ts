/**
 * How a cell went on its ranks, as its metadata keep it: few lines, however many ranks there are.
 * Without any part of Jupyter.
 */

import type { CellRankStatus, ICell } from './protocol';
import { formatRanks, parseRanks } from './ranks';

/** How a rank can have ended a cell. */
const ENDINGS = ['done', 'failed', 'interrupted', 'dead'] as const;

export type ISavedRun = {
  number: number;
  started: number;
  ended: number;
  /** Of each rank, in their order; '-' where it is not known. */
  seconds: string;
} & { [K in (typeof ENDINGS)[number]]?: string };

/** Null while the cell runs. */
export function saveRun(run: ICell): ISavedRun | null {
  if (run.ended === null) {
    return null;
  }
  const { number, started, ended } = run;
  const seconds = run.ranks.map(one => one.seconds?.toFixed(2) ?? '-').join(' ');
  const saved: ISavedRun = { number, started, ended, seconds };
  for (const ending of ENDINGS) {
    const ranks = run.ranks.filter(({ status }) => status === ending).map(({ rank }) => rank);
    if (ranks.length) {
      saved[ending] = formatRanks(ranks);
    }
  }
  return saved;
}

/** What `saveRun` has saved; null for anything else. */
export function readRun(saved: unknown, cell_id: string): ICell | null {
  const run = saved as Partial<ISavedRun> | null | undefined;
  const isNumber = (value: unknown): value is number => Number.isFinite(value);
  if (!run || !isNumber(run.number) || !isNumber(run.started) || !isNumber(run.ended)) {
    return null;
  }
  const times = String(run.seconds ?? '').split(' ');
  const ranks = ENDINGS.flatMap(status =>
    parseRanks(String(run[status] ?? '')).map(rank => ({ rank, status: status as CellRankStatus }))
  )
    .sort((a, b) => a.rank - b.rank)
    .map((one, index) => {
      const seconds = parseFloat(times[index]);
      return { ...one, seconds: isNumber(seconds) ? seconds : null };
    });
  const { number, started, ended } = run;
  return ranks.length
    ? { type: 'cell', now: ended, cell_id, seq: -started, number, started, ended, ranks }
    : null;
}
