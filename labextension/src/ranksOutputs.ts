/** The output of several ranks in a cell, as it is in the notebook. Without any part of Jupyter. */

import { OUTPUTS_MIME, type IOutputGroup, type IRanksOutputs } from './protocol';

/** Any output of a notebook, of the ranks or not: a file may have text as a list of lines. */
interface IAnyOutput {
  output_type: string;
  name?: unknown;
  text?: unknown;
  data?: unknown;
}

/** What a notebook keeps of a rank: among a cell's outputs, those of a cell that showed several ranks. */
export function keptOutputs(
  outputs: readonly IAnyOutput[],
  rank: number
): IOutputGroup['outputs'] | null {
  for (const output of outputs) {
    const shown = (output.data as { [mime: string]: unknown } | undefined)?.[OUTPUTS_MIME];
    const groups = (shown as IRanksOutputs | undefined)?.groups;
    const found = groups?.find(({ ranks }) => ranks.includes(rank));
    if (found) {
      return found.outputs;
    }
  }
  return null;
}

const joined = (text: unknown): string => (Array.isArray(text) ? text.join('') : String(text ?? ''));

/** What the last of the outputs has more of text; null where that is not all that is new. */
export function addedText(
  before: readonly IAnyOutput[],
  after: readonly IAnyOutput[]
): string | null {
  const last = after.length - 1;
  if (last < 0 || before.length !== after.length) {
    return before.length || after.length ? null : '';
  }
  const [old, now] = [before[last], after[last]];
  const isSame = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
  if (!isSame(before.slice(0, last), after.slice(0, last))) {
    return null;
  }
  if (now.output_type !== 'stream' || old.output_type !== 'stream' || now.name !== old.name) {
    return isSame(old, now) ? '' : null;
  }
  const [was, is] = [joined(old.text), joined(now.text)];
  return is.startsWith(was) ? is.slice(was.length) : null;
}

/** The lines of outputs as text; what is not text is named. */
export function linesOf(outputs: readonly IAnyOutput[]): string[] {
  const text = outputs.map(output => {
    if (output.output_type === 'stream') {
      return joined(output.text);
    }
    const data = (output.data ?? {}) as { [mime: string]: unknown };
    const image = Object.keys(data).find(mime => mime.startsWith('image/'));
    return `${image ? `[${image}]` : joined(data['text/plain'])}\n`;
  });
  const lines = text.join('').split('\n');
  return lines[lines.length - 1] === '' ? lines.slice(0, -1) : lines;
}

interface IDifference {
  /** ' ' in both, '+' only here, '-' only there. */
  sign: ' ' | '+' | '-';
  line: string;
}

const MOST_CELLS = 4_000_000;

/** How `here` differs from `there`, line by line: the fewest lines that do. */
export function differences(there: readonly string[], here: readonly string[]): IDifference[] {
  let start = 0;
  while (start < there.length && start < here.length && there[start] === here[start]) {
    start += 1;
  }
  let [a, b] = [there.length, here.length];
  while (a > start && b > start && there[a - 1] === here[b - 1]) {
    a -= 1;
    b -= 1;
  }
  const same = (lines: readonly string[]) => lines.map((line): IDifference => ({ sign: ' ', line }));
  return [
    ...same(here.slice(0, start)),
    ...middle(there.slice(start, a), here.slice(start, b)),
    ...same(here.slice(b))
  ];
}

function middle(there: string[], here: string[]): IDifference[] {
  const [n, m] = [there.length, here.length];
  if (n * m > MOST_CELLS) {
    return [
      ...there.map((line): IDifference => ({ sign: '-', line })),
      ...here.map((line): IDifference => ({ sign: '+', line }))
    ];
  }
  // The longest common subsequence of what follows, for each pair of places.
  const width = m + 1;
  const longest = new Uint32Array((n + 1) * width);
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      longest[i * width + j] =
        there[i] === here[j]
          ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const found: IDifference[] = [];
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && there[i] === here[j]) {
      found.push({ sign: ' ', line: here[j] });
      i += 1;
      j += 1;
    } else if (i < n && (j === m || longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      found.push({ sign: '-', line: there[i++] });
    } else {
      found.push({ sign: '+', line: here[j++] });
    }
  }
  return found;
}
