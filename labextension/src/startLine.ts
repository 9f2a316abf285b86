/** Where the line that starts a notebook's cluster belongs among its cells. Without any part of Jupyter. */

const LOAD = '%load_ext jaxcluster';
const START = /^[ \t]*%jaxcluster[ \t]+start\b.*$/m;
const nameIn = (line: string): string => /(?:^|\s)--name(?:\s+|=)(\S+)/.exec(line)?.[1] ?? '';

/** A cell's new source; `isNew`: a cell is to be inserted there. */
export interface IPlace {
  index: number;
  source: string;
  isNew: boolean;
}

/**
 * In the place of a line that starts a cluster of the same name, else in a cell of its own: below the
 * one that loads jaxcluster, or, with that, above all code.
 *
 * @param cells - The sources; null for what is no code.
 * @param line - What follows `%jaxcluster start`.
 */
export function placeStart(cells: readonly (string | null)[], line: string): IPlace {
  const start = `%jaxcluster start ${line}`.trimEnd();
  const same = (source: string | null) => {
    const found = source === null || source.trimStart().startsWith('%%') ? null : START.exec(source);
    return found !== null && nameIn(found[0]) === nameIn(line);
  };
  const there = cells.findIndex(same);
  if (there >= 0) {
    return { index: there, source: cells[there]!.replace(START, () => start), isNew: false };
  }
  const loads = cells.findIndex(source => source?.split('\n').some(own => own.trim() === LOAD));
  if (loads >= 0) {
    return { index: loads + 1, source: start, isNew: true };
  }
  const first = cells.findIndex(source => source !== null);
  return { index: first < 0 ? cells.length : first, source: `${LOAD}\n${start}`, isNew: true };
}
