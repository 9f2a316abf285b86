/** Ranks as people write them: `0, 2-5`; the same as jaxcluster/ranks.py has it. */
export function formatRanks(ranks: Iterable<number>): string {
  const runs: [number, number][] = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && rank === last[1] + 1) {
      last[1] = rank;
    } else {
      runs.push([rank, rank]);
    }
  }
  return runs
    .map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`))
    .join(', ');
}
