/** Every cluster that is known: those of the kernel's machine, and those that only the server knows of. */

import * as React from 'react';
import type { ICluster, IState } from '../protocol';
import type { IServerCluster } from '../tokens';
import { Button } from './parts';
import { age, type Trans } from './labels';
import { Middle } from './middle';

/** A row: a cluster of the kernel's machine, or one of the server's that the kernel does not know. */
export type Listed = { name: string; num_processes: number } & (
  | { kind: 'here'; cluster: ICluster; current: boolean }
  | { kind: 'server'; id: string }
);

/** The clusters of both, each once, this notebook's first. */
export function mergeClusters(
  state: IState | null,
  server: readonly IServerCluster[]
): Listed[] {
  const here = (state?.clusters ?? []).map(
    (cluster): Listed => ({
      kind: 'here',
      name: cluster.name,
      num_processes: cluster.num_processes,
      cluster,
      current: cluster.name === state?.current
    })
  );
  const names = new Set(here.map(({ name }) => name));
  const only = server
    .filter(cluster => cluster.running && !names.has(cluster.name))
    .map(
      (cluster): Listed => ({
        kind: 'server',
        name: cluster.name,
        num_processes: cluster.num_processes,
        id: cluster.id
      })
    );
  return [...here, ...only];
}

interface IClusterList {
  clusters: readonly Listed[];
  /** Whether this notebook's kernel can attach to one. */
  canAttach: boolean;
  clockOffset: number;
  trans: Trans;
  onAttach: (name: string) => void;
  onUse: (name: string) => void;
  onStop: (listed: Listed) => void;
}

export function ClusterList(props: IClusterList): JSX.Element {
  const { clusters, trans } = props;
  if (!clusters.length) {
    return <p className="jxl-empty">{trans.__('No cluster is running.')}</p>;
  }
  return (
    <ul className="jxl-clusters" aria-label={trans.__('Clusters')}>
      {clusters.map(listed => (
        <li key={listed.name} data-cluster={listed.name}>
          <div className="jxl-line">
            <Middle className="jxl-name" text={listed.name} />
            {marksOf(listed, trans).map(([word, meaning, tone]) => (
              <span key={word} className="jxl-mark" data-tone={tone} title={meaning}>
                {word}
              </span>
            ))}
            <span className="jxl-actions">
              {listed.kind === 'here' && props.canAttach && !listed.cluster.connected && (
                <Button
                  label={trans.__('Attach')}
                  name={trans.__('Attach this notebook to %1', listed.name)}
                  title={trans.__('Connect this notebook to it')}
                  onClick={() => props.onAttach(listed.name)}
                />
              )}
              {listed.kind === 'here' && listed.cluster.connected && !listed.current && (
                <Button
                  label={trans.__('Use this cluster')}
                  name={trans.__('Use %1 for the cells of this notebook', listed.name)}
                  title={trans.__('Cells of this notebook run on it from now on')}
                  onClick={() => props.onUse(listed.name)}
                />
              )}
              <Button
                label={trans.__('Stop')}
                name={trans.__('Stop %1', listed.name)}
                title={trans.__('End all its processes')}
                danger
                onClick={() => props.onStop(listed)}
              />
            </span>
          </div>
          <div className="jxl-dim">{factsOf(listed, props.clockOffset, trans).join(' · ')}</div>
        </li>
      ))}
    </ul>
  );
}

function marksOf(listed: Listed, trans: Trans): [string, string, string][] {
  if (listed.kind === 'server') {
    return [];
  }
  const { cluster, current } = listed;
  const marks: [string, string, string][] = [];
  if (current) {
    marks.push([
      trans.__("this notebook's"),
      trans.__('%1 cells of this notebook run on it', '%%spmd'),
      'good'
    ]);
  } else if (cluster.connected) {
    marks.push([trans.__('connected'), trans.__('this notebook is connected to it'), 'good']);
  }
  if (cluster.orphaned) {
    marks.push([
      trans.__('orphaned'),
      trans.__('its owner is gone, and no notebook is connected to it'),
      'bad'
    ]);
  }
  return marks;
}

function factsOf(listed: Listed, offset: number, trans: Trans): string[] {
  const ranks = trans._n('%1 rank', '%1 ranks', listed.num_processes);
  if (listed.kind === 'server') {
    return [ranks, trans.__('known to the Jupyter server')];
  }
  const { cluster } = listed;
  const seconds = (Date.now() + offset - cluster.created) / 1000;
  return [
    ranks,
    cluster.platform,
    cluster.launcher,
    age(seconds, trans),
    cluster.notebook.split('/').pop() || trans.__('from a shell')
  ].filter(Boolean);
}
