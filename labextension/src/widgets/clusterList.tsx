/** Every cluster of the kernel's machine. */

import * as React from 'react';
import type { ICluster } from '../protocol';
import { Button } from './parts';
import { age, type Trans } from './labels';
import { Middle } from './middle';

interface IClusterList {
  clusters: readonly ICluster[];
  /** The name of the one that cells of this notebook run on. */
  current: string | null;
  clockOffset: number;
  trans: Trans;
  onAttach: (name: string) => void;
  onUse: (name: string) => void;
  onStop: (name: string) => void;
}

export function ClusterList(props: IClusterList): JSX.Element {
  const { clusters, current, trans } = props;
  if (!clusters.length) {
    return <p className="jxl-empty">{trans.__('No cluster is running.')}</p>;
  }
  return (
    <ul className="jxl-clusters" aria-label={trans.__('Clusters')}>
      {clusters.map(cluster => (
        <li key={cluster.name} data-cluster={cluster.name}>
          <div className="jxl-line">
            <Middle className="jxl-name" text={cluster.name} />
            {marksOf(cluster, cluster.name === current, trans).map(([word, meaning, tone]) => (
              <span key={word} className="jxl-mark" data-tone={tone} title={meaning}>
                {word}
              </span>
            ))}
            <span className="jxl-actions">
              {!cluster.connected && (
                <Button
                  label={trans.__('Attach')}
                  name={trans.__('Attach this notebook to %1', cluster.name)}
                  title={trans.__('Connect this notebook to it')}
                  onClick={() => props.onAttach(cluster.name)}
                />
              )}
              {cluster.connected && cluster.name !== current && (
                <Button
                  label={trans.__('Use this cluster')}
                  name={trans.__('Use %1 for the cells of this notebook', cluster.name)}
                  title={trans.__('Cells of this notebook run on it from now on')}
                  onClick={() => props.onUse(cluster.name)}
                />
              )}
              <Button
                label={trans.__('Stop')}
                name={trans.__('Stop %1', cluster.name)}
                title={trans.__('End all its processes')}
                danger
                onClick={() => props.onStop(cluster.name)}
              />
            </span>
          </div>
          <div className="jxl-dim">{factsOf(cluster, props.clockOffset, trans).join(' · ')}</div>
        </li>
      ))}
    </ul>
  );
}

function marksOf(cluster: ICluster, isCurrent: boolean, trans: Trans): [string, string, string][] {
  const marks: [string, string, string][] = [];
  if (isCurrent) {
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

function factsOf(cluster: ICluster, offset: number, trans: Trans): string[] {
  const seconds = (Date.now() + offset - cluster.created) / 1000;
  return [
    trans._n('%1 rank', '%1 ranks', cluster.num_processes),
    cluster.platform,
    cluster.launcher,
    age(seconds, trans),
    cluster.notebook.split('/').pop() || trans.__('from a shell')
  ].filter(Boolean);
}
