/** Which cells auto mode runs on the ranks; the same as jaxcluster/rewrite.py has it. */

/** What belongs to the notebook, whatever the mode. */
const OWN_MAGICS = [
  '%jaxcluster',
  '%push',
  '%pull',
  '%shards',
  '%load_ext',
  '%unload_ext',
  '%reload_ext'
];

/** Whether auto mode would leave the cell to the notebook. */
export function staysInNotebook(source: string): boolean {
  const code = source
    .split('\n')
    .map(line => line.trim())
    .filter(line => line && !line.startsWith('#'));
  if (code.length === 0 || code[0].startsWith('%%')) {
    return true;
  }
  if (OWN_MAGICS.includes(code[0].split(/\s+/)[0])) {
    return true;
  }
  return code.every(line => /^[%!?]/.test(line) || line.endsWith('?'));
}

/**
 * Which ranks a cell will run on: null for none, '' for all of them, else as `--ranks` names them.
 *
 * @param on - Whether auto mode is on.
 */
export function whereOf(source: string, on: boolean): string | null {
  const magic = /^\s*%%spmd(?=\s|$)([^\n]*)/.exec(source);
  if (magic) {
    return /(?:^|\s)--ranks(?:\s+|=)(\S+)/.exec(magic[1])?.[1] ?? '';
  }
  return on && !staysInNotebook(source) ? '' : null;
}
