/** What a rank uses: processors, memory and GPUs. */

import * as React from 'react';
import { bytes } from '../draw/shardview';
import type { IRankUse } from '../protocol';
import type { Trans } from './labels';

/** What ranks use comes often, so only what shows it is drawn again. */
export interface IUses {
  all(): readonly IRankUse[] | undefined;
  listen: (listener: () => void) => () => void;
}

export const UsesContext = React.createContext<IUses | null>(null);

function useAll(): readonly IRankUse[] {
  const uses = React.useContext(UsesContext);
  const all = React.useSyncExternalStore(
    React.useCallback(draw => uses?.listen(draw) ?? (() => undefined), [uses]),
    () => uses?.all()
  );
  return all ?? [];
}

/** What one rank uses, as it comes. */
export function useUse(rank: number): IRankUse | undefined {
  return useAll().find(one => one.rank === rank);
}

/** "12 %", and "3.2 CPUs" from two on. */
function cpuText(percent: number, trans: Trans): string {
  return percent < 200
    ? trans.__('%1 % CPU', Math.round(percent))
    : trans.__('%1 CPUs', (percent / 100).toFixed(1));
}

/** A rank's line; `rss` is what is known of its memory where there are no samples. */
export function Resources(props: { rank: number; rss: number; trans: Trans }): JSX.Element | null {
  const { trans } = props;
  const use = useUse(props.rank);
  const rss = use?.rss || props.rss;
  return (
    <span className="jxl-resources">
      {use && use.cpu !== null && (
        <span title={trans.__('time on processors')}>{cpuText(use.cpu, trans)}</span>
      )}
      {rss > 0 && <span title={trans.__('memory of its process')}>{bytes(rss)}</span>}
      {use && use.gpu !== null && (
        <span title={trans.__('time in which its GPUs computed')}>
          {trans.__('%1 % GPU', use.gpu)}
        </span>
      )}
      {use && use.gpu_total > 0 && (
        <span title={trans.__('memory of its GPUs, of all processes on them')}>
          {trans.__('%1 of %2', bytes(use.gpu_used), bytes(use.gpu_total))}
        </span>
      )}
    </span>
  );
}

/** All ranks together: "6.1 CPUs", "4.2 GiB". */
export function Total({ trans }: { trans: Trans }): JSX.Element | null {
  const all = useAll();
  if (!all.length) {
    return null;
  }
  const sum = (of: (use: IRankUse) => number) => all.reduce((total, use) => total + of(use), 0);
  const total = sum(use => use.gpu_total);
  return (
    <div className="jxl-resources jxl-total">
      {all.some(use => use.cpu !== null) && (
        <span title={trans.__('time on processors of all ranks')}>
          {cpuText(
            sum(use => use.cpu ?? 0),
            trans
          )}
        </span>
      )}
      <span title={trans.__('memory of all ranks')}>{bytes(sum(use => use.rss))}</span>
      {total > 0 && (
        <span title={trans.__("memory of all ranks' GPUs")}>
          {trans.__('%1 of %2 GPU', bytes(sum(use => use.gpu_used)), bytes(total))}
        </span>
      )}
    </div>
  );
}
