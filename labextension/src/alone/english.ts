/** The words as they are written: a page without JupyterLab has no translations. */

import type { Trans } from '../widgets/labels';

const format = (text: string, args: unknown[]): string =>
  text.replace(/%%|%(\d+)/g, (all, n) => (n === undefined ? all : String(args[n - 1])));

export const english = {
  __: (text: string, ...args: unknown[]) => format(text, args),
  _n: (one: string, many: string, n: number, ...args: unknown[]) =>
    format(n === 1 ? one : many, [n, ...args])
} as unknown as Trans;
