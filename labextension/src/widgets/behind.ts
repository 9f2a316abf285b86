/** Which ranks were slower than the fastest one; the same as jaxcluster/model/outputs.py has it. */

import type { ICellRank } from '../protocol';
import { formatRanks } from '../ranks';
import type { Trans } from './labels';

const NOTABLE_S = 0.1;

/**
 * By how many seconds; empty unless all have done the cell.
 *
 * @param held - Whether a person has held one of them.
 */
export function behindOf(
  ranks: readonly Pick<ICellRank, 'rank' | 'status' | 'seconds'>[],
  held = false
): Map<number, number> {
  // Where one was stopped or has failed, the others were not slow.
  if (held || ranks.some(one => one.status !== 'done' || one.seconds === null)) {
    return new Map();
  }
  const first = Math.min(...ranks.map(({ seconds }) => seconds!));
  return new Map(
    ranks
      .map(({ rank, seconds }): [number, number] => [rank, seconds! - first])
      .filter(([, behind]) => {
        const took = first + behind;
        return behind >= NOTABLE_S && behind > 0.1 * took;
      })
  );
}

const tenths = (seconds: number): string => (Math.floor(10 * seconds + 0.5) / 10).toFixed(1);

/** "Ranks 1, 2 were 1.0 to 2.3 s behind."; '' if nobody was. */
export function behindText(behind: ReadonlyMap<number, number>, trans: Trans): string {
  if (!behind.size) {
    return '';
  }
  const [least, most] = [Math.min(...behind.values()), Math.max(...behind.values())].map(tenths);
  const by = least === most ? most : trans.__('%1 to %2', least, most);
  const ranks = formatRanks(behind.keys());
  return behind.size === 1
    ? trans.__('Rank %1 was %2 s behind.', ranks, by)
    : trans.__('Ranks %1 were %2 s behind.', ranks, by);
}
