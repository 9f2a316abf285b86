/** The options of `%jaxcluster start` as a form has them, written as a line. The kernel judges that. */

import declared from './options.json';

/** An option that has a field in the form; `options/table.py` declares it. */
export interface IFormField {
  key: string;
  flag: string;
  /** What its values are: "text", "count", "switch"... */
  kind: string;
  /** Those with which it is asked for; all if there is none. */
  launchers: string[];
  label: string;
  help: string;
  /** What is seen in it while it is empty. */
  empty: string;
}

export const FIELDS: readonly IFormField[] = declared.fields;
export const PLATFORMS: readonly string[] = declared.platforms;
/** '' is this machine. */
export const LAUNCHERS: readonly string[] = ['', ...declared.launchers];

/** Of each field what was typed, by its key; '' is the default. */
export interface IStartOptions {
  /** One of LAUNCHERS. */
  launcher: string;
  /** Which of ipyparallel's launchers. */
  ippName: string;
  /** NAME=VALUE, one per line. */
  env: string;
  detach: boolean;
  /** More words for the line, as they would be typed. */
  more: string;
  /** The other fields: text, by the key of each. */
  [key: string]: any;
}

export const NO_OPTIONS: IStartOptions = {
  ...Object.fromEntries(FIELDS.map(({ key }) => [key, ''])),
  launcher: '',
  ippName: '',
  env: '',
  detach: false,
  more: ''
};

/** A field by its key. */
export function fieldOf(key: string): IFormField {
  return FIELDS.find(field => field.key === key)!;
}

/** A start in a queue waits as long as that takes. */
const IN_QUEUE = '1h';
const hasQueue = (launcher: string): boolean => launcher === 'slurm' || launcher === 'ipp';

/** The options with another launcher: the time limit fits it, unless the user has typed one. */
export function withLauncher(options: IStartOptions, launcher: string): IStartOptions {
  const { timeout } = options;
  const fits = hasQueue(launcher) ? timeout || IN_QUEUE : timeout === IN_QUEUE ? '' : timeout;
  return { ...options, launcher, timeout: fits };
}

/** The fields of a launcher's own. */
export function ownFields(launcher: string): IFormField[] {
  return FIELDS.filter(({ launchers }) => launchers.includes(launcher));
}

/** Whether the hosts have their numbers of ranks: then there is none for all of them. */
export function hostsHaveRanks(options: IStartOptions): boolean {
  const own = (key: string): string =>
    fieldOf(key).launchers.includes(options.launcher) ? options[key].trim() : '';
  const hosts = own('hosts').replace(/\[[^\]]*\]/g, ''); // [fe80::1]:2, n[01-04]:8
  return /:\d/.test(hosts) || !!own('ntasksPerNode') || !!own('ranksPerPod');
}

/** A word as the line's reader (Python's shlex) takes it for one. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`;
}

/** What follows `%jaxcluster start`: the words of each option that is not the default. */
export function startLine(options: IStartOptions): string {
  const words: string[] = [];
  const { launcher } = options;
  for (const { key, flag, kind, launchers } of FIELDS) {
    const value = key === 'launcher' && launcher === 'ipp' ? `ipp:${options.ippName.trim()}` : options[key];
    if (kind === 'switch') {
      words.push(...(value ? [flag] : []));
    } else if (kind === 'variables') {
      const lines: string[] = value.split('\n').map((line: string) => line.trim());
      words.push(...lines.filter(Boolean).flatMap(line => [flag, quote(line)]));
    } else if (!launchers.length && value.trim() && !(key === 'numProcesses' && hostsHaveRanks(options))) {
      words.push(flag, quote(value.trim()));
    }
    for (const own of key === 'launcher' ? ownFields(launcher) : []) {
      if (options[own.key].trim()) {
        words.push(own.flag, quote(options[own.key].trim()));
      }
    }
  }
  return [...words, options.more.trim()].join(' ').trim();
}
