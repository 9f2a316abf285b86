/** What the widgets say: states, times and sizes in words. No Jupyter and no React in here. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CellRankStatus, ICluster, IRank, IState, RankStatus } from '../protocol';

export type Trans = Pick<TranslationBundle, '__' | '_n'>;

export type Status = RankStatus | CellRankStatus;

/** How a status looks: a glyph, so that nothing depends on colours, and a tone, which style/ colours. */
export type Tone = 'calm' | 'busy' | 'waiting' | 'good' | 'bad';

const LOOKS: Record<Status, [glyph: string, tone: Tone]> = {
  starting: ['…', 'busy'],
  idle: ['○', 'calm'],
  running: ['▶', 'busy'],
  waiting: ['◐', 'waiting'],
  paused: ['‖', 'waiting'],
  interrupted: ['■', 'waiting'],
  silent: ['?', 'bad'],
  dead: ['✖', 'bad'],
  done: ['✓', 'good'],
  failed: ['!', 'bad']
};

export const glyphOf = (status: Status): string => LOOKS[status]?.[0] ?? '?';
export const toneOf = (status: Status): Tone => LOOKS[status]?.[1] ?? 'bad';

export function statusLabel(status: Status, trans: Trans): string {
  switch (status) {
    case 'starting':
      return trans.__('starting');
    case 'idle':
      return trans.__('idle');
    case 'running':
      return trans.__('running');
    case 'waiting':
      return trans.__('waiting');
    case 'paused':
      return trans.__('paused');
    case 'interrupted':
      return trans.__('interrupted');
    case 'silent':
      return trans.__('silent');
    case 'dead':
      return trans.__('dead');
    case 'done':
      return trans.__('done');
    case 'failed':
      return trans.__('failed');
  }
}

/** What a status means, for the pointer that rests on it. */
export function statusMeaning(status: Status, trans: Trans): string {
  switch (status) {
    case 'waiting':
      return trans.__('waits for other ranks');
    case 'paused':
      return trans.__('in a debugger, or waits for an answer to input()');
    case 'silent':
      return trans.__('does not answer');
    default:
      return statusLabel(status, trans);
  }
}

/** [status, how many], the ones to look at first. */
export function countStatuses<S extends Status>(ranks: readonly { status: S }[]): [S, number][] {
  const counts = new Map<S, number>();
  for (const { status } of ranks) {
    counts.set(status, (counts.get(status) ?? 0) + 1);
  }
  const order: Tone[] = ['bad', 'busy', 'waiting', 'good', 'calm'];
  return [...counts].sort(([a], [b]) => order.indexOf(toneOf(a)) - order.indexOf(toneOf(b)));
}

/** All ranks in a few words: "4/4 idle", "running 3 · waiting 1", "1 dead". */
export function chipText(state: IState, trans: Trans): string {
  if (state.progress) {
    return state.progress;
  }
  const all = state.ranks.length;
  if (state.current === null || !all) {
    return trans.__('no cluster');
  }
  const counts = countStatuses(state.ranks);
  if (counts.length === 1 && counts[0][0] === 'idle') {
    return trans.__('%1/%2 idle', all, all);
  }
  // Beside ranks that do something it says nothing that the others are idle.
  return counts
    .filter(([status]) => status !== 'idle')
    .map(([status, n]) =>
      toneOf(status) === 'bad'
        ? `${n} ${statusLabel(status, trans)}`
        : `${statusLabel(status, trans)} ${n}`
    )
    .join(' · ');
}

/** The tone of all ranks together. */
export function chipTone(state: IState): Tone {
  if (state.progress) {
    return 'busy';
  }
  return state.ranks.length ? toneOf(countStatuses(state.ranks)[0][0]) : 'calm';
}

/** How long something took: "0.35 s", "12.3 s", "2 min 05 s". */
export function took(seconds: number, trans: Trans): string {
  if (seconds < 59.95) {
    return trans.__('%1 s', seconds.toFixed(seconds < 9.995 ? 2 : 1));
  }
  return lasting(Math.round(seconds), trans);
}

/** How long something has been going on, in whole seconds: "12 s", "2 min 05 s", "3 h 20 min". */
export function lasting(seconds: number, trans: Trans): string {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n: number) => String(n).padStart(2, '0');
  if (s < 60) {
    return trans.__('%1 s', s);
  }
  if (s < 3600) {
    return trans.__('%1 min %2 s', Math.floor(s / 60), two(s % 60));
  }
  return trans.__('%1 h %2 min', Math.floor(s / 3600), two(Math.floor(s / 60) % 60));
}

/** Roughly how old something is: "just started", "12 min", "3 h", "2 d". */
export function age(seconds: number, trans: Trans): string {
  if (seconds < 60) {
    return trans.__('just started');
  }
  if (seconds < 3600) {
    return trans.__('%1 min', Math.floor(seconds / 60));
  }
  if (seconds < 172800) {
    return trans.__('%1 h', Math.floor(seconds / 3600));
  }
  return trans.__('%1 d', Math.floor(seconds / 86400));
}

/** Where a rank is: "[7] line 3". */
export function placeOf(rank: Pick<IRank, 'cell' | 'line'>, trans: Trans): string {
  if (rank.cell === null) {
    return '';
  }
  return rank.line === null ? `[${rank.cell}]` : trans.__('[%1] line %2', rank.cell, rank.line);
}

/** Devices in short, as JAX numbers them: ["cpu:0", "cpu:1", "cpu:4"] is "cpu 0-1,4". */
export function devicesText(devices: readonly string[]): string {
  const platforms = new Map<string, number[]>();
  for (const device of devices) {
    const [platform, id] = device.split(':');
    platforms.set(platform, [...(platforms.get(platform) ?? []), Number(id)]);
  }
  return [...platforms].map(([platform, ids]) => `${platform} ${rangesText(ids)}`).join(', ');
}

/** [0, 1, 2, 5] is "0-2,5". */
export function rangesText(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const run = runs[runs.length - 1];
    if (run && n === run[1] + 1) {
      run[1] = n;
    } else {
      runs.push([n, n]);
    }
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(',');
}

/** Ranks in another state than most, first the ones to look at; then the others. */
export function oddFirst<R extends { rank: number; status: Status }>(ranks: readonly R[]): R[] {
  const counts = countStatuses(ranks);
  const usual = [...counts].sort(([, a], [, b]) => b - a)[0]?.[0];
  const order = new Map(counts.map(([status], at) => [status, at]));
  const key = ({ status }: R) => (status === usual ? counts.length : order.get(status)!);
  return [...ranks].sort((a, b) => key(a) - key(b) || a.rank - b.rank);
}

/** The one thing to do now; null where nothing is called for. */
export function primaryOf(state: IState): 'start' | 'interrupt' | 'restart' | null {
  if (state.current === null || !state.ranks.length) {
    return 'start';
  }
  const any = (...wanted: RankStatus[]) => state.ranks.some(({ status }) => wanted.includes(status));
  if (any('running', 'waiting', 'interrupted')) {
    return 'interrupt';
  }
  return any('dead', 'silent') ? 'restart' : null;
}

/** The current cluster of a state; null while there is none. */
export function currentCluster(state: IState): ICluster | null {
  return state.clusters.find(cluster => cluster.name === state.current) ?? null;
}

/** Whether some rank runs something: else there is nothing to interrupt. */
export function isBusy(state: IState | null): boolean {
  return (state?.ranks ?? []).some(({ status }) => status !== 'idle' && status !== 'dead');
}
