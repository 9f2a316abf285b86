/** A cluster's ranks: a line each, and from nine on a line for those that do the same. */

import * as React from 'react';
import type { Execute } from '../actions';
import { bytes } from '../draw/shardview';
import type { IRank, IRankResources } from '../protocol';
import { formatRanks } from '../ranks';
import type { Store } from '../store';
import { cpuText, devicesText, groupRanks, placeOf, type Trans } from './labels';
import { Elapsed, Middle, Roving, StatusMark } from './parts';

/** Up to so many ranks each has a line. */
const EACH = 8;

interface IRanks {
  store: Store;
  ranks: readonly IRank[];
  trans: Trans;
  execute: Execute;
}

export function Ranks({ store, ranks, trans, execute }: IRanks): JSX.Element {
  const groups = ranks.length > EACH ? groupRanks(ranks) : ranks.map(rank => [rank]);
  const hosts = new Set(ranks.map(({ host }) => host)).size > 1;
  return (
    <Roving stops=".jxl-number" className="jxl-ranks">
      <ul aria-label={trans.__('Ranks')}>
        {groups.map(group => (
          <Line key={group[0].rank} {...{ group, hosts, store, trans, execute }} />
        ))}
      </ul>
      {ranks.length > 1 && <p className="jxl-dim jxl-total">{useText(usesOf(ranks), trans)}</p>}
    </Roving>
  );
}

interface ILine extends Omit<IRanks, 'ranks'> {
  /** Ranks that do the same. */
  group: readonly IRank[];
  /** Whether there are several hosts: then each line names its own. */
  hosts: boolean;
}

function Line({ group, hosts, store, trans, execute }: ILine): JSX.Element {
  const [first] = group;
  const numbers = group.map(({ rank }) => rank);
  const name = trans._n('rank %2', 'ranks %2', group.length, formatRanks(numbers));
  const uses = usesOf(group);
  const own = [...new Set(group.map(({ host }) => host))];
  const since = group.map(rank => rank.since).filter(at => at !== null);
  const title = [name, processOf(group), useText(uses, trans)].filter(Boolean).join('\n');
  return (
    <li className="jxl-rank" data-rank={first.rank} data-status={first.status} title={title}>
      {store.isLive ? (
        <button
          type="button"
          className="jxl-number"
          aria-label={trans.__('Log of %1', name)}
          onClick={() => execute('logs', { rank: first.rank })}
        >
          {formatRanks(numbers)}
        </button>
      ) : (
        <span className="jxl-number">{formatRanks(numbers)}</span>
      )}
      <StatusMark status={first.status} trans={trans} />
      <span className="jxl-place">
        {placeOf(first, trans)}
        {hosts && <Middle text={own.length > 1 ? trans.__('%1 hosts', own.length) : own[0]} />}
      </span>
      <span className="jxl-time">
        {since.length > 0 && <Elapsed since={Math.min(...since)} store={store} trans={trans} />}
      </span>
      <span className="jxl-use">{shortUse(uses, trans) || useText(uses, trans)}</span>
      {first.note && <span className="jxl-note">{first.note}</span>}
    </li>
  );
}

const usesOf = (ranks: readonly IRank[]): IRankResources[] =>
  ranks.map(({ use }) => use).filter(use => use !== null);

function processOf(group: readonly IRank[]): string {
  const [{ pid, host, devices }] = group;
  return group.length > 1 ? '' : `pid ${pid}, ${host}, ${devicesText(devices)}`;
}

/** The one figure of a line: the GPUs' time where there are such, else the processors'. */
function shortUse(uses: readonly IRankResources[], trans: Trans): string {
  const gpus = uses.map(({ gpu }) => gpu).filter(percent => percent !== null);
  const sum = (all: number[]) => all.reduce((a, b) => a + b, 0);
  if (gpus.length) {
    return trans.__('%1 % GPU', Math.round(sum(gpus) / gpus.length));
  }
  return uses.length ? cpuText(sum(uses.map(({ cpu }) => cpu)), trans) : '';
}

/** All that ranks use together: "1.2 CPUs · 4.2 GiB · 10 GiB of 80 GiB GPU". */
function useText(uses: readonly IRankResources[], trans: Trans): string {
  const sum = (of: (use: IRankResources) => number) => uses.reduce((total, use) => total + of(use), 0);
  const [rss, total] = [sum(use => use.rss_nbytes), sum(use => use.gpu_total_nbytes)];
  return [
    uses.length > 0 && cpuText(sum(use => use.cpu), trans),
    rss > 0 && bytes(rss),
    total > 0 && trans.__('%1 of %2 GPU', bytes(sum(use => use.gpu_used_nbytes)), bytes(total))
  ]
    .filter(Boolean)
    .join(' · ');
}
