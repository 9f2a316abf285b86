/** Where the line that starts a notebook's cluster belongs among its cells. Without any part of Jupyter. */

const LOAD = '%load_ext jaxcluster';
/** With the lines that `\` continues it on. */
const START = /^([ \t]*)%jaxcluster[ \t]+start\b(?:.*\\\n)*.*$/m;
const nameIn = (line: string): string => /(?:^|\s)--name(?:\s+|=)(\S+)/.exec(line)?.[1] ?? '';

/** A cell's new source; `isNew`: a cell is to be inserted there. */
interface IPlace {
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
    const source = cells[there]!.replace(START, (_, indent) => indent + start);
    return { index: there, source, isNew: false };
  }
  const loads = loadIn(cells);
  if (loads >= 0) {
    return { index: loads + 1, source: start, isNew: true };
  }
  const first = cells.findIndex(source => source !== null);
  return { index: first < 0 ? cells.length : first, source: `${LOAD}\n${start}`, isNew: true };
}

/** What follows the first `%jaxcluster start` of these cells; null where there is none. */
export function startIn(cells: readonly (string | null)[]): string | null {
  for (const source of cells) {
    const found = source === null || source.trimStart().startsWith('%%') ? null : START.exec(source);
    if (found) {
      return found[0].trim().replace(/^%jaxcluster\s+start\s*/, '');
    }
  }
  return null;
}

/**
 * What of a cell is run by a click on *Start*, or on *Load it*: the lines that bring the cluster, and not
 * what else is in their cell. A notebook may come from anybody, and its cells are run by whoever reads them.
 *
 * @param start - Whether the cluster is to be started too.
 */
export function linesToRun(source: string, start: boolean): string {
  const wanted = [LOADS, ...(start ? [MODES, START] : [])];
  return wanted
    .flatMap(line => (line.exec(source)?.[0] ?? '').split('\n'))
    .map(line => line.trim())
    .filter(line => line)
    .join('\n');
}

/** Whether a cell has nothing but these lines, and comments. */
export function hasOnly(source: string, lines: string): boolean {
  const left = lines.split('\n');
  const others = source.split('\n').filter(line => {
    const at = left.indexOf(line.trim());
    return line.trim() && !line.trim().startsWith('#') && (at < 0 || !left.splice(at, 1));
  });
  return !others.length;
}

const NUMBER = /(^|\s)(-n|--num-processes)(?:\s+|=)?(\d+)/;

/** How many ranks a start line asks for; null where it leaves that open. */
export const numberIn = (line: string): number | null => Number(NUMBER.exec(line)?.[3]) || null;

/** The same line with another number of ranks. */
export function withNumber(line: string, number: number): string {
  return NUMBER.test(line)
    ? line.replace(NUMBER, (_, before, option) => `${before}${option} ${number}`)
    : `-n ${number} ${line}`.trimEnd();
}

/** The cell that loads jaxcluster; -1 where there is none. */
export function loadIn(cells: readonly (string | null)[]): number {
  return cells.findIndex(source => isPlain(source) && LOADS.test(source));
}

/** Cells but for those whose cell magic has the notebook do something else with their body. */
const isPlain = (source: string | null): source is string =>
  source !== null && /^\s*(?:%%(?:time|capture)\b|(?!\s|%%))/.test(source);
const LOADS = /^([ \t]*)%load_ext jaxcluster[ \t]*$/m;

/** The line that has every following cell run on the ranks. */
const MODE = '%jaxcluster auto on';
const MODES = /^[ \t]*%jaxcluster auto on[ \t]*$/m;
const isMode = (line: string): boolean => line.trim() === MODE;
/** A statement that brings a cluster: a magic's, or Python's own, which indented may be part of another. */
const BRINGS = /^(?:([ \t]*)%jaxcluster[ \t]+(?:start|attach)\b|(?:\w+[ \t]*=[ \t]*)?jaxcluster\.(?:start|attach)\()/m;

/** Whether the text switches SPMD mode on. */
export function hasMode(cells: readonly (string | null)[]): boolean {
  return cells.some(source => isPlain(source) && source.split('\n').some(isMode));
}

/**
 * Where SPMD mode is switched on in the text itself, which is all that nbclient and papermill send to
 * a kernel. Above the statement that brings the cluster: where that fails, the cells below it fail
 * too, and don't compute something else in the notebook. Without one below what loads jaxcluster,
 * else, with that, above all code. Null where the text has it already.
 */
export function placeMode(cells: readonly (string | null)[]): IPlace | null {
  if (hasMode(cells)) {
    return null;
  }
  const index = cells.findIndex(source => isPlain(source) && BRINGS.test(source));
  const loads = loadIn(cells);
  // Python's own start may stand above what makes the magics known.
  const isKnown =
    index > loads || (index === loads && cells[index]?.search(BRINGS)! > cells[index]?.search(LOADS)!);
  if (index >= 0 && isKnown) {
    const source = cells[index]!.replace(
      BRINGS,
      (found, indent = '') => `${indent}${MODE}\n${found}`
    );
    return { index, source, isNew: false };
  }
  if (loads >= 0) {
    const source = cells[loads]!.replace(LOADS, (found, indent) => `${found}\n${indent}${MODE}`);
    return { index: loads, source, isNew: false };
  }
  const first = cells.findIndex(source => source !== null);
  return { index: first < 0 ? cells.length : first, source: `${LOAD}\n${MODE}`, isNew: true };
}

/** What `placeMode` has written, taken away again: cells with their new sources. */
export function withoutMode(cells: readonly (string | null)[]): { index: number; source: string }[] {
  const indentOf = (line = '') => /^[ \t]*/.exec(line)![0];
  return cells.flatMap((source, index) => {
    const isOurs = isPlain(source) && (BRINGS.test(source) || LOADS.test(source));
    const lines = isOurs ? source.split('\n') : [];
    // All that an indented block has is not taken from it.
    const isAlone = (at: number) =>
      !!indentOf(lines[at]) &&
      [lines[at - 1], lines[at + 1]].every(line => indentOf(line) !== indentOf(lines[at]));
    const rest = lines.filter((line, at) => !isMode(line) || isAlone(at));
    return rest.length < lines.length ? [{ index, source: rest.join('\n') }] : [];
  });
}

export { LOAD };
