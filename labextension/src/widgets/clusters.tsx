/** The clusters that a notebook's cells don't run on. */

import * as React from 'react';
import type { Execute } from '../actions';
import type { ICluster } from '../protocol';
import { lasting, type Trans } from './labels';
import { Button, Middle } from './parts';

interface IClusterList {
  clusters: readonly ICluster[];
  clockOffset: number;
  trans: Trans;
  execute: Execute;
}

export function ClusterList({ clusters, clockOffset, trans, execute }: IClusterList): JSX.Element {
  const facts = (one: ICluster): string => {
    const seconds = (Date.now() + clockOffset - one.created) / 1000;
    const notebook = one.notebook.split('/').pop() || trans.__('from a shell');
    const ranks = trans._n('%1 rank', '%1 ranks', one.num_processes);
    return [ranks, one.platform, one.launcher, lasting(seconds, trans), notebook].filter(Boolean).join(' · ');
  };
  return (
    <ul className="jxl-clusters" aria-label={trans.__('Other clusters')}>
      {clusters.map(one => (
        <li key={one.name} data-cluster={one.name}>
          <div className="jxl-line">
            <Middle className="jxl-name" text={one.name} />
            {one.orphaned && (
              <span
                className="jxl-mark"
                data-tone="bad"
                title={trans.__('The process that started it has ended, and no notebook is connected')}
              >
                {trans.__('orphaned')}
              </span>
            )}
            <span className="jxl-actions">
              <Button
                label={trans.__('Use')}
                name={trans.__('Use %1', one.name)}
                title={trans.__('Run the cells of this notebook on this cluster')}
                onClick={() => execute('attach', { name: one.name })}
              />
              <Button
                label={trans.__('Stop…')}
                name={trans.__('Stop %1', one.name)}
                title={trans.__('End its ranks')}
                look="danger"
                onClick={() => execute('stop', { name: one.name })}
              />
            </span>
          </div>
          <div className="jxl-dim">{facts(one)}</div>
        </li>
      ))}
    </ul>
  );
}
