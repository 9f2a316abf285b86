/** The last launches of all ranks side by side: a lane for those that made the same ones. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { ILane, ILaunch, ITimeline } from '../protocol';
import { RankChips } from './rankChips';
import type { Trans } from './labels';

/** What most ranks have launched at each place of a timeline; null where most have launched nothing. */
export function usual(lanes: readonly ILane[], at: number): number | null {
  const counts = new Map<number | null, number>();
  for (const { ranks, launches } of lanes) {
    const program = launches[at]?.program ?? null;
    counts.set(program, (counts.get(program) ?? 0) + ranks.length);
  }
  return [...counts].sort(([, a], [, b]) => b - a)[0]?.[0] ?? null;
}

/** The first place at which lanes differ; -1 where none does. */
export function firstDifference({ lanes }: ITimeline): number {
  const length = Math.max(0, ...lanes.map(({ launches }) => launches.length));
  for (let at = 0; at < length; at++) {
    if (new Set(lanes.map(({ launches }) => launches[at]?.program ?? null)).size > 1) {
      return at;
    }
  }
  return -1;
}

/** A program's name without what each of them has: "jit(_reduce_sum)" is "_reduce_sum". */
export const shortName = (name: string): string => /^\w+\((.+)\)$/.exec(name)?.[1] ?? name;

interface ITimelineView {
  timeline: ITimeline;
  trans: Trans;
  onPlace: (cell: number, line: number) => void;
  has: (cell: number) => boolean;
}

export function Timeline({ timeline, trans, onPlace, has }: ITimelineView): JSX.Element {
  const { lanes, first, processes, hidden } = timeline;
  const box = React.useRef<HTMLDivElement>(null);
  // The last launches are what it is about.
  React.useLayoutEffect(() => {
    box.current!.scrollLeft = box.current!.scrollWidth;
  }, [timeline]);
  const length = Math.max(0, ...lanes.map(({ launches }) => launches.length));
  const places = Array.from({ length }, (_, at) => at);
  const parts = firstDifference(timeline);
  const label = trans.__('Last launches of %1', name(processes, trans));
  return (
    <div className="jxl-timelineBox">
    <h3>{label}</h3>
    <div className="jxl-timeline" ref={box} tabIndex={0} role="group" aria-label={label}>
      <table aria-label={label}>
        <thead>
          <tr>
            <th scope="col">{trans.__('launch')}</th>
            {places.map(at => (
              <th key={at} scope="col" data-first={at === parts ? '' : undefined}>
                {first + at}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {lanes.map(lane => (
            <tr key={lane.ranks.join()}>
              <th scope="row">
                <RankChips ranks={lane.ranks} />
                {name(lane.ranks, trans)}
              </th>
              {places.map(at => (
                <td key={at}>
                  <Launch
                    launch={lane.launches[at] ?? null}
                    odd={parts >= 0 && (lane.launches[at]?.program ?? null) !== usual(lanes, at)}
                    trans={trans}
                    onPlace={onPlace}
                    has={has}
                  />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      </div>
      {hidden.length > 0 && (
        <p className="jxl-dim">
          {trans.__('Not shown, each with launches of its own: %1', name(hidden, trans))}
        </p>
      )}
    </div>
  );
}

interface ILaunchView extends Omit<ITimelineView, 'timeline'> {
  launch: ILaunch | null;
  odd: boolean;
}

function Launch({ launch, odd, trans, onPlace, has }: ILaunchView): JSX.Element {
  if (!launch) {
    return (
      <span className="jxl-launch jxl-mod-none" title={trans.__('not launched')}>
        {trans.__('none')}
      </span>
    );
  }
  const { cell, line } = launch;
  const place = cell === null || line === null ? '' : trans.__('[%1] line %2', cell, line);
  return (
    <span className="jxl-launch" data-odd={odd ? '' : undefined} title={launch.name}>
      <span className="jxl-program">{shortName(launch.name)}</span>
      {place &&
        (has(cell!) ? (
          <button type="button" className="jxl-link" onClick={() => onPlace(cell!, line!)}>
            {place}
          </button>
        ) : (
          <span className="jxl-dim">{place}</span>
        ))}
    </span>
  );
}

function name(ranks: readonly number[], trans: Trans): string {
  return trans._n('rank %2', 'ranks %2', ranks.length, ranksText([...ranks]));
}
