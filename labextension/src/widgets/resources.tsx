/** What a rank uses: processors, memory and GPUs, now and in the last minutes. */

import * as React from 'react';
import { bytes } from '../draw/shardview';
import { SAMPLES } from '../model';
import type { ISeries } from '../protocol';
import type { Trans } from './labels';
import { Sparkline } from './sparkline';

/** Where samples come from; they come often, so only what shows them is drawn again. */
export interface ISamples {
  get(rank: number): ISeries | undefined;
  all(): readonly ISeries[];
  listen: (listener: () => void) => () => void;
}

export const SamplesContext = React.createContext<ISamples | null>(null);

/** One rank's samples, as they come. */
export function useSeries(rank: number): ISeries | undefined {
  const samples = React.useContext(SamplesContext);
  return React.useSyncExternalStore(
    React.useCallback(draw => samples?.listen(draw) ?? (() => undefined), [samples]),
    () => samples?.get(rank)
  );
}

/** The samples of all ranks, as they come. */
export function useAllSeries(): readonly ISeries[] {
  const samples = React.useContext(SamplesContext);
  return React.useSyncExternalStore(
    React.useCallback(draw => samples?.listen(draw) ?? (() => undefined), [samples]),
    () => samples?.all() ?? NONE
  );
}

const NONE: readonly ISeries[] = [];

const last = <T,>(values: readonly T[]): T | undefined => values[values.length - 1];

/** "12 %", and "3.2 CPUs" from two on. */
export function cpuText(percent: number | null | undefined, trans: Trans): string {
  if (percent === null || percent === undefined) {
    return '';
  }
  return percent < 200
    ? trans.__('%1 % CPU', Math.round(percent))
    : trans.__('%1 CPUs', (percent / 100).toFixed(1));
}

/** A rank's line of sparklines; `rss` is what is known of its memory where there are no samples. */
export function Resources(props: { rank: number; rss: number; trans: Trans }): JSX.Element | null {
  const { trans } = props;
  const series = useSeries(props.rank);
  const rss = (series && last(series.rss)) || props.rss;
  return (
    <span className="jxl-resources">
      {series && (
        <span className="jxl-use" title={trans.__('time on processors, in the last minutes')}>
          <Sparkline values={series.cpu} most={100} length={SAMPLES} />
          <span className="jxl-value">{cpuText(last(series.cpu), trans)}</span>
        </span>
      )}
      {rss > 0 && (
        <span className="jxl-use" title={trans.__('memory of its process')}>
          {series && <Sparkline values={series.rss} most={rss * 1.25} length={SAMPLES} />}
          <span className="jxl-value">{bytes(rss)}</span>
        </span>
      )}
      {series && series.gpu_total > 0 && <Gpu series={series} trans={trans} />}
    </span>
  );
}

function Gpu({ series, trans }: { series: ISeries; trans: Trans }): JSX.Element {
  const percent = last(series.gpu);
  const used = last(series.gpu_used) ?? 0;
  return (
    <>
      {percent !== null && percent !== undefined && (
        <span className="jxl-use" title={trans.__('time in which its GPUs computed')}>
          <Sparkline values={series.gpu} most={100} length={SAMPLES} />
          <span className="jxl-value">{trans.__('%1 % GPU', percent)}</span>
        </span>
      )}
      <span className="jxl-use" title={trans.__('memory of its GPUs, of all processes on them')}>
        <Sparkline values={series.gpu_used} most={series.gpu_total} length={SAMPLES} />
        <span className="jxl-value">
          {trans.__('%1 of %2', bytes(used), bytes(series.gpu_total))}
        </span>
      </span>
    </>
  );
}

/** All ranks together: "6.1 CPUs", "4.2 GiB". */
export function Total({ trans }: { trans: Trans }): JSX.Element | null {
  const all = useAllSeries();
  if (!all.length) {
    return null;
  }
  const length = Math.max(...all.map(({ cpu }) => cpu.length));
  const at = (values: readonly (number | null)[], back: number): number | null =>
    values.length >= back ? values[values.length - back] : null;
  const sums = Array.from({ length }, (_, i) => {
    const found = all.map(({ cpu }) => at(cpu, length - i)).filter(value => value !== null);
    return found.length ? found.reduce((a, b) => a + b, 0) : null;
  });
  const rss = all.reduce((sum, series) => sum + (last(series.rss) ?? 0), 0);
  const total = all.reduce((sum, series) => sum + series.gpu_total, 0);
  const used = all.reduce((sum, series) => sum + (last(series.gpu_used) ?? 0), 0);
  return (
    <div className="jxl-resources jxl-total">
      <span className="jxl-use" title={trans.__('time on processors of all ranks')}>
        <Sparkline values={sums} most={100} length={SAMPLES} />
        <span className="jxl-value">{cpuText(last(sums), trans)}</span>
      </span>
      <span className="jxl-use" title={trans.__('memory of all ranks')}>
        <span className="jxl-value">{bytes(rss)}</span>
      </span>
      {total > 0 && (
        <span className="jxl-use" title={trans.__("memory of all ranks' GPUs")}>
          <span className="jxl-value">{trans.__('%1 of %2 GPU', bytes(used), bytes(total))}</span>
        </span>
      )}
    </div>
  );
}
