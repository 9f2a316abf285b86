/** A quantity over the last minutes, small; its present value stands beside it in words. */

import * as React from 'react';

const WIDTH = 60;
const HEIGHT = 14;

interface ISparkline {
  /** Oldest first; null where nothing is known. */
  values: readonly (number | null)[];
  /** What the upper edge stands for; the greatest value where that is more. */
  most: number;
  /** How many values the whole width has: the newest are at its right. */
  length: number;
}

/** An area under a line. Of what is not known there is none. */
export function pathOf({ values, most, length }: ISparkline): string {
  const top = Math.max(most, ...values.map(value => value ?? 0)) || 1;
  const from = length - values.length;
  const x = (at: number) => Math.round(((from + at) / Math.max(1, length - 1)) * WIDTH * 10) / 10;
  const y = (value: number) => Math.round((1 - value / top) * (HEIGHT - 1) * 10) / 10 + 0.5;
  const parts: string[] = [];
  let run: string[] = [];
  const end = (at: number) => {
    if (run.length) {
      parts.push(`${run.join('')}L${x(at - 1)} ${HEIGHT}Z`);
    }
    run = [];
  };
  values.forEach((value, at) => {
    if (value === null) {
      end(at);
    } else {
      run.push(run.length ? `L${x(at)} ${y(value)}` : `M${x(at)} ${HEIGHT}L${x(at)} ${y(value)}`);
    }
  });
  end(values.length);
  return parts.join('');
}

export const Sparkline = React.memo(function Sparkline(props: ISparkline): JSX.Element {
  return (
    <svg
      className="jxl-spark"
      width={WIDTH}
      height={HEIGHT}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <path d={pathOf(props)} />
    </svg>
  );
});
