/** The options of `%jaxcluster start` as a form has them: checked, and written as a line. */

import type { Trans } from './labels';

/** All as they were typed; '' is the default. */
export interface IStartOptions {
  numProcesses: string;
  devicesPerProcess: string;
  platform: string;
  /** One of LAUNCHERS. */
  launcher: string;
  /** `h1:2,user@h2:2` */
  hosts: string;
  nodes: string;
  ntasksPerNode: string;
  partition: string;
  account: string;
  /** A job's time limit, as Slurm writes it. */
  time: string;
  /** Which of ipyparallel's launchers, and with which profile's settings. */
  ippName: string;
  ippProfile: string;
  /** The hosts' Python. */
  python: string;
  name: string;
  /** NAME=VALUE, one a line. */
  env: string;
  timeout: string;
  detach: boolean;
  /** Whether a cell of the notebook is to have the line, and to run it. */
  inCell: boolean;
  /** More words for the line, as they would be typed. */
  more: string;
}

export const NO_OPTIONS: IStartOptions = {
  numProcesses: '',
  devicesPerProcess: '',
  platform: '',
  launcher: '',
  hosts: '',
  nodes: '',
  ntasksPerNode: '',
  partition: '',
  account: '',
  time: '',
  ippName: '',
  ippProfile: '',
  python: '',
  name: '',
  env: '',
  timeout: '',
  detach: false,
  inCell: true,
  more: ''
};

export const PLATFORMS = ['cpu', 'cuda', 'tpu'];

/** What is asked for besides where a launcher is chosen, with the words that it becomes; '' is this machine. */
export const LAUNCHERS: { [name: string]: { [K in keyof IStartOptions]?: string } } = {
  '': {},
  ssh: { hosts: '--hosts', python: '--python' },
  slurm: {
    nodes: '--nodes',
    ntasksPerNode: '--ntasks-per-node',
    partition: '--partition',
    account: '--account',
    time: '--time',
    python: '--python'
  },
  mpi: { hosts: '--hosts', python: '--python' },
  ipp: {
    ippName: '',
    ippProfile: '--ipp-profile',
    nodes: '--nodes',
    ntasksPerNode: '--ntasks-per-node',
    python: '--python'
  }
};

/** Whether a launcher's option is asked for with what is chosen. */
export function isAsked(options: IStartOptions, key: keyof IStartOptions): boolean {
  return key in (LAUNCHERS[options.launcher] ?? {});
}

/** Whether the hosts have their numbers of ranks: then there is none for all of them. */
export function hostsHaveRanks(options: IStartOptions): boolean {
  const hosts = options.hosts.replace(/\[[^\]]*\]/g, ''); // [fe80::1]:2, n[01-04]:8
  return (
    (isAsked(options, 'hosts') && /:\d/.test(hosts)) ||
    (isAsked(options, 'ntasksPerNode') && !!options.ntasksPerNode.trim())
  );
}

/** A word as the line's reader (Python's shlex) takes it for one. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`;
}

const variables = (env: string): string[] => env.split('\n').filter(line => line.trim());

/** What follows `%jaxcluster start`. */
export function startLine(options: IStartOptions): string {
  const words: string[] = [];
  const add = (option: string, value: string) => {
    if (value.trim()) {
      words.push(option, quote(value.trim()));
    }
  };
  if (!hostsHaveRanks(options)) {
    add('-n', options.numProcesses);
  }
  add('--devices-per-process', options.devicesPerProcess);
  add('--platform', options.platform);
  const { launcher } = options;
  add('--launcher', launcher === 'ipp' ? `ipp:${options.ippName.trim()}` : launcher);
  for (const [key, word] of Object.entries(LAUNCHERS[launcher] ?? {})) {
    if (word) {
      add(word, options[key as keyof IStartOptions] as string);
    }
  }
  add('--name', options.name);
  for (const variable of variables(options.env)) {
    const at = variable.indexOf('=');
    words.push('--env', quote(`${variable.slice(0, at).trim()}=${variable.slice(at + 1)}`));
  }
  add('--timeout', options.timeout);
  if (options.detach) {
    words.push('--detach');
  }
  if (options.more.trim()) {
    words.push(options.more.trim());
  }
  return words.join(' ');
}

/** What is wrong with which option, in words; empty if nothing is. */
export function checkOptions(
  options: IStartOptions,
  trans: Trans
): { [K in keyof IStartOptions]?: string } {
  const wrong: { [K in keyof IStartOptions]?: string } = {};
  for (const key of ['numProcesses', 'devicesPerProcess', 'nodes', 'ntasksPerNode'] as const) {
    const asked = key === 'numProcesses' ? !hostsHaveRanks(options) : key === 'devicesPerProcess' || isAsked(options, key);
    if (asked && options[key].trim() && !/^[1-9]\d{0,5}$/.test(options[key].trim())) {
      wrong[key] = trans.__('A whole number, 1 or more; empty for the default.');
    }
  }
  // What a host is called is the kernel's to judge.
  if (isAsked(options, 'hosts') && !/^[^\s,]+(\s*,\s*[^\s,]+)*$/.test(options.hosts.trim())) {
    wrong.hosts = trans.__('Hosts and their ranks, as in h1:2,h2:2.');
  }
  if (isAsked(options, 'ippName') && !/^[\w.-]+$/.test(options.ippName.trim())) {
    wrong.ippName = trans.__('One of ipyparallel’s launchers, such as pbs, sge, lsf, htcondor.');
  }
  // As registry.py has it.
  if (options.name.trim() && !/^[A-Za-z0-9][A-Za-z0-9_.-]{0,30}$/.test(options.name.trim())) {
    wrong.name = trans.__('Letters, digits, and . _ - after the first; up to 31 of them.');
  }
  if (options.timeout.trim() && !(Number(options.timeout) > 0 && isFinite(Number(options.timeout)))) {
    wrong.timeout = trans.__('A number of seconds above 0; empty for 60.');
  }
  const bad = variables(options.env).find(line => !/^\s*[A-Za-z_]\w*\s*=/.test(line));
  if (bad !== undefined) {
    wrong.env = trans.__('“%1” is not of the form NAME=VALUE.', bad.trim());
  }
  if (!quotesEnd(options.more)) {
    wrong.more = trans.__('A quote is not closed.');
  } else if (options.more.trim() && !options.more.trim().startsWith('-')) {
    wrong.more = trans.__('Options start with a dash, as in --dry-run.');
  }
  return wrong;
}

function quotesEnd(text: string): boolean {
  return /^(?:[^'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")*$/.test(text);
}
