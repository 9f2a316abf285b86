// Names and numbers as text.

export function bytes(size) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (size < 1024) return unit === 'B' ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export const span = ([start, stop]) => `${start}:${stop}`;
export const place = index => `[${index.map(span).join(', ')}]`;
export const extent = index => `(${index.map(([a, b]) => b - a).join(', ')}${index.length === 1 ? ',' : ''})`;
export const count = (n, word, many) => `${n.toLocaleString('en')} ${n === 1 ? word : many || word + 's'}`;
export const unique = list => [...new Set(list)];
export const number = x => (x == null ? '–' : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(3) : String(+x.toPrecision(6)));

/** Ranks as people write them: 0, 2-5. */
export function ranksText(ranks) {
  const runs = [];
  for (const rank of unique(ranks).sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`)).join(', ');
}

export const nameRanks = ranks => `rank${unique(ranks).length === 1 ? '' : 's'} ${ranksText(ranks)}`;
