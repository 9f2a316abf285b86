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

/** The ranks that are written so; what is no rank is left out. */
export function parseRanks(text: string): number[] {
  return text.split(',').flatMap(part => {
    const found = /^\s*(\d{1,6})(?:-(\d{1,6}))?\s*$/.exec(part);
    if (!found) {
      return [];
    }
    const [first, last] = [Number(found[1]), Number(found[2] ?? found[1])];
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
  });
}
