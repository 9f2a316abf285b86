/** The output of several ranks in a cell, as it is in the notebook. Without any part of Jupyter. */

/** Any output of a notebook, of the ranks or not: a file may have text as a list of lines. */
interface IAnyOutput {
  output_type: string;
  name?: unknown;
  text?: unknown;
  data?: unknown;
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
