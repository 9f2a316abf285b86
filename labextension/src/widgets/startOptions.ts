/** The options of `%jaxcluster start` as a form has them: checked, and written as a line. */

import declared from './options.json';
import type { IForm, IFormField } from '../protocol';
import type { Trans } from './labels';

const FORM: IForm = declared;
const FIELDS: readonly IFormField[] = FORM.fields;
export const PLATFORMS: readonly string[] = FORM.platforms;
/** '' is this machine. */
export const LAUNCHERS: readonly string[] = ['', ...FORM.launchers];

/** Of each field what was typed, by its key; '' is the default. */
export interface IStartOptions {
  /** One of LAUNCHERS. */
  launcher: string;
  /** Which of ipyparallel's launchers. */
  ippName: string;
  /** NAME=VALUE, one per line. */
  env: string;
  detach: boolean;
  /** Whether a cell of the notebook is to have the line, and to run it. */
  inCell: boolean;
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
  inCell: true,
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

/** Whether an option of a launcher's own is asked for with what is chosen. */
function isAsked(options: IStartOptions, key: string): boolean {
  return key === 'ippName' ? options.launcher === 'ipp' : !!fieldOf(key)?.launchers.includes(options.launcher);
}

/** Whether the hosts have their numbers of ranks: then there is none for all of them. */
export function hostsHaveRanks(options: IStartOptions): boolean {
  const hosts = options.hosts.replace(/\[[^\]]*\]/g, ''); // [fe80::1]:2, n[01-04]:8
  return (
    (isAsked(options, 'hosts') && /:\d/.test(hosts)) ||
    (isAsked(options, 'ntasksPerNode') && !!options.ntasksPerNode.trim()) ||
    (isAsked(options, 'ranksPerPod') && !!options.ranksPerPod.trim())
  );
}

/** A word as the line's reader (Python's shlex) takes it for one. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`;
}

const variables = (env: string): string[] => env.split('\n').filter(line => line.trim());
const nameOf = (variable: string): string => variable.split('=', 1)[0].trim();

/** What follows `%jaxcluster start`: the words of each option that is not the default. */
export function startLine(options: IStartOptions): string {
  const words: string[] = [];
  const { launcher } = options;
  for (const { key, flag, kind, launchers } of FIELDS) {
    const value = key === 'launcher' && launcher === 'ipp' ? `ipp:${options.ippName.trim()}` : options[key];
    if (kind === 'switch') {
      words.push(...(value ? [flag] : []));
    } else if (kind === 'variables') {
      words.push(...envWords(variables(value)));
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

/** What is not of the form NAME=VALUE yet stays as it is typed. */
const envWords = (lines: string[]): string[] =>
  lines.flatMap(line => {
    const word = line.includes('=') ? `${nameOf(line)}=${line.slice(line.indexOf('=') + 1)}` : line.trim();
    return ['--env', quote(word)];
  });

/** What is wrong with which option, in words; empty if nothing is. */
export function checkOptions(options: IStartOptions, trans: Trans): { [key: string]: string | undefined } {
  const wrong: { [key: string]: string | undefined } = {};
  for (const { key, kind, launchers } of FIELDS.filter(({ kind }) => ['count', 'devices'].includes(kind))) {
    const asked = key === 'numProcesses' ? !hostsHaveRanks(options) : !launchers.length || isAsked(options, key);
    const isAll = kind === 'devices' && options[key].trim() === 'all';
    if (asked && options[key].trim() && !isAll && !/^[1-9]\d{0,5}$/.test(options[key].trim())) {
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
  const isInTemplate = /(^|\s)--pod-template\b/.test(options.more);
  if (isAsked(options, 'image') && !/^[^\s-]\S*$/.test(options.image.trim())) {
    if (options.image.trim() || !isInTemplate) {
      wrong.image = trans.__('An image, such as registry.example/team/jax:1.');
    }
  }
  if (isAsked(options, 'tpu') && !options.tpu.trim() && (options.zone + options.project).trim()) {
    wrong.tpu = trans.__('The slice in that zone and project.');
  }
  // As registry.py has it.
  if (options.name.trim() && !/^[A-Za-z0-9][A-Za-z0-9_.-]{0,30}$/.test(options.name.trim())) {
    wrong.name = trans.__('Letters, digits, and . _ - after the first; up to 31 of them.');
  }
  if (options.timeout.trim() && !(parseFloat(options.timeout) > 0 && /^\s*[\d.]+[smhd]?\s*$/.test(options.timeout))) {
    wrong.timeout = trans.__('Seconds, or a time such as 30m or 2h; empty for 60.');
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
