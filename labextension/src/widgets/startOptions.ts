/** The options of `%jaxcluster start` as a form has them: checked, and written as a line. */

import type { IProfile } from '../protocol';
import type { Trans } from './labels';

/** All as they were typed; '' is the default. */
export interface IStartOptions {
  /** The name of the profile that the fields were filled from; '' for none. */
  profile: string;
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
  /** A TPU slice, as gcloud names it. */
  tpu: string;
  zone: string;
  project: string;
  /** Of Kubernetes' pods: what runs in them, how many, and what each has. */
  image: string;
  pods: string;
  ranksPerPod: string;
  gpus: string;
  mem: string;
  namespace: string;
  /** The hosts' Python. */
  python: string;
  name: string;
  /** NAME=VALUE, one per line. */
  env: string;
  timeout: string;
  detach: boolean;
  /** Whether a cell of the notebook is to have the line, and to run it. */
  inCell: boolean;
  /** More words for the line, as they would be typed. */
  more: string;
}

export const NO_OPTIONS: IStartOptions = {
  profile: '',
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
  tpu: '',
  zone: '',
  project: '',
  image: '',
  pods: '',
  ranksPerPod: '',
  gpus: '',
  mem: '',
  namespace: '',
  python: '',
  name: '',
  env: '',
  timeout: '',
  detach: false,
  inCell: true,
  more: ''
};

export const PLATFORMS = ['cpu', 'cuda', 'rocm', 'tpu'];

/** What is asked for besides where a launcher is chosen, with the words that it becomes; '' is this machine. */
export const LAUNCHERS: { [name: string]: { [K in keyof IStartOptions]?: string } } = {
  '': {},
  auto: {},
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
  tpu: { tpu: '--tpu', zone: '--zone', project: '--project', python: '--python' },
  kubernetes: {
    image: '--image',
    pods: '--pods',
    ranksPerPod: '--ranks-per-pod',
    gpus: '--gpus',
    mem: '--mem',
    namespace: '--namespace',
    python: '--python'
  },
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
    (isAsked(options, 'ntasksPerNode') && !!options.ntasksPerNode.trim()) ||
    (isAsked(options, 'ranksPerPod') && !!options.ranksPerPod.trim())
  );
}

/** A word as the line's reader (Python's shlex) takes it for one. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`;
}

const variables = (env: string): string[] => env.split('\n').filter(line => line.trim());
const nameOf = (variable: string): string => variable.slice(0, variable.indexOf('=')).trim();

type Key = keyof IStartOptions;

/** The words of each option that is not the default, in the order of the line. */
function wordsOf(options: IStartOptions): Map<Key, string[]> {
  const words = new Map<Key, string[]>();
  const add = (key: Key, option: string, value: string) => {
    if (value.trim()) {
      words.set(key, [option, quote(value.trim())]);
    }
  };
  if (!hostsHaveRanks(options)) {
    add('numProcesses', '-n', options.numProcesses);
  }
  add('devicesPerProcess', '--devices-per-process', options.devicesPerProcess);
  add('platform', '--platform', options.platform);
  const { launcher } = options;
  add('launcher', '--launcher', launcher === 'ipp' ? `ipp:${options.ippName.trim()}` : launcher);
  for (const [key, word] of Object.entries(LAUNCHERS[launcher] ?? {}) as [Key, string][]) {
    if (word) {
      add(key, word, options[key] as string);
    }
  }
  add('name', '--name', options.name);
  words.set('env', envWords(variables(options.env)));
  add('timeout', '--timeout', options.timeout);
  words.set('detach', options.detach ? ['--detach'] : []);
  words.set('more', options.more.trim() ? [options.more.trim()] : []);
  return words;
}

const envWords = (lines: string[]): string[] =>
  lines.flatMap(line => ['--env', quote(`${nameOf(line)}=${line.slice(line.indexOf('=') + 1)}`)]);

/**
 * What follows `%jaxcluster start`.
 *
 * With a profile: its name, and what was changed in the form; all of it, without the profile, where
 * something was taken out that can't be taken back beside it.
 *
 * @param profiles - Those that there are.
 */
export function startLine(options: IStartOptions, profiles: readonly IProfile[] = []): string {
  const words = wordsOf(options);
  const profile = profiles.find(one => one.name === options.profile);
  const changed = profile && changedWords(optionsOf(profile), options);
  if (profile && changed) {
    return ['--profile', quote(profile.name), ...changed].join(' ');
  }
  const without = profiles.some(one => one.is_default) ? ['--no-profile'] : [];
  return [...without, ...[...words.values()].flat()].join(' ');
}

/** What is to be typed beside a profile; null where that can't say it. */
function changedWords(profile: IStartOptions, options: IStartOptions): string[] | null {
  const before = wordsOf(profile);
  const after = wordsOf(options);
  const changed: string[] = [];
  if (before.has('launcher') && !after.has('launcher')) {
    after.set('launcher', ['--launcher', 'local']);
  }
  if (profile.detach && !options.detach) {
    after.set('detach', ['--no-detach']);
  }
  const left = variables(options.env);
  const had = variables(profile.env);
  if (had.some(variable => !left.some(other => nameOf(other) === nameOf(variable)))) {
    return null;
  }
  after.set('env', envWords(left.filter(variable => !had.includes(variable))));
  if (!options.more.startsWith(profile.more)) {
    return null;
  }
  const more = options.more.slice(profile.more.length).trim();
  after.set('more', more ? [more] : []);
  for (const key of before.keys()) {
    // What another launcher does not know is left out by the kernel.
    const isAnothers = OF_LAUNCHERS.has(key) && !isAsked(options, key);
    if (!after.has(key) && !isAnothers) {
      return null;
    }
  }
  for (const [key, words] of after) {
    const alone = key === 'env' || key === 'more';
    if (alone || words.join(' ') !== before.get(key)?.join(' ')) {
      changed.push(...words);
    }
  }
  return changed;
}

const OF_LAUNCHERS = new Set(Object.values(LAUNCHERS).flatMap(words => Object.keys(words)) as Key[]);

/** The form's fields, as a profile fills them; what it has no field for is among the other options. */
export function optionsOf(profile: IProfile): IStartOptions {
  const found: IStartOptions = { ...NO_OPTIONS, profile: profile.name };
  const launcher = profile.options.find(([flag]) => flag === '--launcher')?.[1] ?? 'local';
  const [, kind, ipp] = /^([^:]*):?(.*)$/s.exec(launcher)!;
  const isKnown = kind === 'local' || kind in LAUNCHERS;
  found.launcher = isKnown && kind !== 'local' ? kind : '';
  found.ippName = isKnown ? ipp : '';
  const fields: { [flag: string]: Key } = {
    '-n': 'numProcesses',
    '--devices-per-process': 'devicesPerProcess',
    '--platform': 'platform',
    '--name': 'name',
    '--timeout': 'timeout',
    ...Object.fromEntries(
      Object.entries(LAUNCHERS[found.launcher])
        .filter(([, flag]) => flag)
        .map(([key, flag]) => [flag, key as Key])
    )
  };
  const more: string[] = [];
  const env: string[] = [];
  for (const [flag, value] of profile.options) {
    if (flag === '--launcher' && isKnown) {
      continue;
    }
    if (value === undefined) {
      if (flag === '--detach') {
        found.detach = true;
      } else {
        more.push(flag);
      }
    } else if (flag in fields) {
      Object.assign(found, { [fields[flag]]: value });
    } else if (flag === '--env' && !value.includes('\n')) {
      env.push(value);
    } else if (value.startsWith('-')) {
      more.push(quote(`${flag}=${value}`)); // else it would be read as an option
    } else {
      more.push(flag, quote(value));
    }
  }
  return { ...found, env: env.join('\n'), more: more.join(' ') };
}

const NUMBERS = [
  'numProcesses',
  'devicesPerProcess',
  'nodes',
  'ntasksPerNode',
  'pods',
  'ranksPerPod',
  'gpus'
] as const;

/** What is wrong with which option, in words; empty if nothing is. */
export function checkOptions(
  options: IStartOptions,
  trans: Trans,
  profiles: readonly IProfile[] = []
): { [K in keyof IStartOptions]?: string } {
  const wrong: { [K in keyof IStartOptions]?: string } = {};
  for (const key of NUMBERS) {
    const asked = key === 'numProcesses' ? !hostsHaveRanks(options) : key === 'devicesPerProcess' || isAsked(options, key);
    const isAll = key === 'devicesPerProcess' && options[key].trim() === 'all';
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
  } else if (options.inCell && startLine(options, profiles).includes('\n')) {
    // In a cell what stands after it would be run as code.
    wrong.more = trans.__('A value has several lines, which a cell can’t have: don’t write it into one.');
  }
  return wrong;
}

function quotesEnd(text: string): boolean {
  return /^(?:[^'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")*$/.test(text);
}
