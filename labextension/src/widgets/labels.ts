/** What the widgets say: states, times and sizes in words. No Jupyter and no React in here. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { CellRankStatus, ICluster, IRank, IState, RankStatus } from '../protocol';
import { formatRanks } from '../ranks';

export type Trans = Pick<TranslationBundle, '__' | '_n'>;

export type Status = RankStatus | CellRankStatus;

/** How a status looks: a glyph, so that nothing depends on colours, a tone, which style/ colours, and a word. */
export type Tone = 'calm' | 'busy' | 'waiting' | 'good' | 'bad';

const LOOKS: Record<Status, [glyph: string, tone: Tone, word: string]> = {
  starting: ['…', 'busy', 'starting'],
  idle: ['○', 'calm', 'idle'],
  running: ['▶', 'busy', 'running'],
  waiting: ['◐', 'waiting', 'waiting'],
  paused: ['‖', 'waiting', 'paused'],
  interrupted: ['■', 'waiting', 'stopped'],
  silent: ['?', 'bad', 'silent'],
  dead: ['✖', 'bad', 'dead'],
  done: ['✓', 'good', 'done'],
  failed: ['!', 'bad', 'failed']
};

export const glyphOf = (status: Status): string => LOOKS[status][0];
export const toneOf = (status: Status): Tone => LOOKS[status][1];
export const statusLabel = (status: Status, trans: Trans): string => trans.__(LOOKS[status][2]);

/** [status, how many], the ones to look at first. */
export function countStatuses<S extends Status>(ranks: readonly { status: S }[]): [S, number][] {
  const counts = new Map<S, number>();
  for (const { status } of ranks) {
    counts.set(status, (counts.get(status) ?? 0) + 1);
  }
  const order: Tone[] = ['bad', 'busy', 'waiting', 'good', 'calm'];
  return [...counts].sort(([a], [b]) => order.indexOf(toneOf(a)) - order.indexOf(toneOf(b)));
}

/** How the ranks of a cell are, in a line: "4 ranks", "1 failed · 3 stopped". */
export function countsText(ranks: readonly { status: Status }[], trans: Trans): string {
  const counts = countStatuses(ranks);
  return counts.length === 1 && counts[0][0] === 'done'
    ? trans._n('%1 rank', '%1 ranks', ranks.length)
    : counts.map(([status, n]) => `${n} ${statusLabel(status, trans)}`).join(' · ');
}

/** All ranks in a few words: "4/4 idle", "3 running · 1 waiting", "1 dead". */
export function chipText(state: IState, trans: Trans): string {
  if (state.progress) {
    return state.progress;
  }
  const all = state.ranks.length;
  if (state.current === null || !all) {
    return trans.__('no cluster');
  }
  // Beside ranks that do something it says nothing that the others are idle.
  const active = state.ranks.filter(({ status }) => status !== 'idle');
  return active.length ? countsText(active, trans) : trans.__('%1/%2 idle', all, all);
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

/** Where a rank is: "[7] line 3". */
export function placeOf(rank: Pick<IRank, 'cell' | 'line'>, trans: Trans): string {
  if (rank.cell === null) {
    return '';
  }
  return rank.line === null ? `[${rank.cell}]` : trans.__('[%1] line %2', rank.cell, rank.line);
}

/** Devices in short, as JAX numbers them: ["cpu:0", "cpu:1", "cpu:4"] is "cpu 0, 1, 4". */
export function devicesText(devices: readonly string[]): string {
  const platforms = new Map<string, number[]>();
  for (const device of devices) {
    const [platform, id] = device.split(':');
    platforms.set(platform, [...(platforms.get(platform) ?? []), Number(id)]);
  }
  return [...platforms].map(([platform, ids]) => `${platform} ${formatRanks(ids)}`).join('; ');
}

/** "12 % CPU", and "3.2 CPUs" from two on. */
export function cpuText(percent: number, trans: Trans): string {
  return percent < 200
    ? trans.__('%1 % CPU', Math.round(percent))
    : trans.__('%1 CPUs', (percent / 100).toFixed(1));
}

/** Ranks that do the same at the same place, as one; those in another state than most first. */
export function groupRanks(ranks: readonly IRank[]): IRank[][] {
  const groups = new Map<string, IRank[]>();
  for (const rank of ranks) {
    const key = JSON.stringify([rank.status, rank.cell, rank.line, rank.note]);
    groups.set(key, [...(groups.get(key) ?? []), rank]);
  }
  const order = countStatuses(ranks).map(([status]) => status);
  const most = Math.max(...[...groups.values()].map(group => group.length));
  const key = (group: IRank[]) => (group.length === most ? order.length : order.indexOf(group[0].status));
  return [...groups.values()].sort((a, b) => key(a) - key(b) || a[0].rank - b[0].rank);
}

/** The current cluster of a state; null while there is none. */
export function currentCluster(state: IState): ICluster | null {
  return state.clusters.find(cluster => cluster.name === state.current) ?? null;
}

/** Whether some rank runs something: else there is nothing to interrupt. */
export function isBusy(state: IState): boolean {
  return state.ranks.some(({ status }) => status !== 'idle' && status !== 'dead');
}

/** Whether a cell can't run before the ranks have new processes. */
export function isBroken(state: IState): boolean {
  return state.ranks.some(({ status }) => status === 'dead' || status === 'silent');
}
