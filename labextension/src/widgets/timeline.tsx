/** The last launches of all ranks side by side, each place of the sequence in a column of its own. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { ILane, ILaunch, ITimeline } from '../protocol';
import { RankChips } from './rankChips';
import type { Trans } from './labels';

/** Stands for a program that a lane may still launch, or died before. */
const WAITED_FOR = -1;
/** Up to so many ranks have a row each, if the user does not want it otherwise. */
const FEW = 8;
/** Shades that programs have besides their letters. */
const SHADES = 6;

/** What a lane has launched at a place: a program's number, null for none, WAITED_FOR for none so far. */
function programAt(lane: ILane, at: number): number | null {
  return lane.launches[at]?.program ?? (lane.under_way || lane.died ? WAITED_FOR : null);
}

/** The first place at which lanes differ; -1 where none does. What may still be launched is no difference. */
export function firstDifference({ lanes }: ITimeline): number {
  for (let at = 0; at < lengthOf(lanes); at++) {
    const programs = new Set(lanes.map(lane => programAt(lane, at)));
    programs.delete(WAITED_FOR);
    if (programs.size > 1) {
      return at;
    }
  }
  return -1;
}

const lengthOf = (lanes: readonly ILane[]): number =>
  Math.max(0, ...lanes.map(({ launches }) => launches.length));

/** A program's name without what each of them has: "jit(_reduce_sum)" is "_reduce_sum". */
export const shortName = (name: string): string => /^\w+\((.+)\)$/.exec(name)?.[1] ?? name;

/** What stands for a program: A, B, ..., Z, AA, ... As model/timeline.py has it. */
export const letter = (program: number): string =>
  (program < 26 ? '' : letter(Math.floor(program / 26) - 1)) +
  String.fromCharCode(65 + (program % 26));

interface ITimelineView {
  timeline: ITimeline;
  trans: Trans;
  onPlace: (cell: number, line: number) => void;
  has: (cell: number) => boolean;
}

interface IRow {
  lane: ILane;
  ranks: number[];
}

/** A row and the number of a launch. */
interface ISpot {
  row: string;
  launch: number;
}

export function Timeline({ timeline, trans, onPlace, has }: ITimelineView): JSX.Element {
  const { lanes, first, processes, hidden } = timeline;
  const [each, setEach] = React.useState(processes.length <= FEW);
  /** The mark that Tab leads to, and what is told of: the one under the pointer, else that with the focus. */
  const [focus, setFocus] = React.useState<ISpot | null>(null);
  const [hover, setHover] = React.useState<ISpot | null>(null);
  const box = React.useRef<HTMLDivElement>(null);
  const length = lengthOf(lanes);
  const last = first + length - 1;
  // The last launches are what it is about.
  React.useLayoutEffect(() => {
    box.current!.scrollLeft = box.current!.scrollWidth;
  }, [last]);
  const places = Array.from({ length }, (_, at) => at);
  const parts = firstDifference(timeline);
  const odd = new Set(timeline.odd ?? []);
  const rows: IRow[] = each
    ? lanes
        .flatMap(lane => lane.ranks.map(rank => ({ lane, ranks: [rank] })))
        .sort((a, b) => a.ranks[0] - b.ranks[0])
    : lanes.map(lane => ({ lane, ranks: lane.ranks }));
  const isEqual = lanes.some(({ ranks }) => ranks.length > 1);
  const label = trans.__('Last launches of %1', name(processes, trans));

  const find = (spot: ISpot | null): { row: IRow; at: number } | null => {
    const row = spot && rows.find(({ ranks }) => ranks.join() === spot.row);
    return row && spot.launch >= first && spot.launch <= last
      ? { row, at: spot.launch - first }
      : null;
  };
  const atFocus = find(focus);
  const told = find(hover) ?? atFocus;
  // Where it was nowhere yet, Tab leads to where they part, else to the last one.
  const entry = atFocus ?? { row: rows[0], at: parts >= 0 ? parts : length - 1 };

  const onKeyDown = (event: React.KeyboardEvent) => {
    const at = entry.at;
    const row = rows.indexOf(entry.row);
    const steps: { [key: string]: [number, number] } = {
      ArrowLeft: [row, at - 1],
      ArrowRight: [row, at + 1],
      ArrowUp: [row - 1, at],
      ArrowDown: [row + 1, at],
      Home: [row, 0],
      End: [row, length - 1]
    };
    const to = steps[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const next = box.current!.querySelectorAll('tbody tr')[clamp(to[0], rows.length)];
    next?.querySelectorAll('button')[clamp(to[1], length)]?.focus();
  };

  const tell = (row: IRow, at: number): React.ReactNode => {
    const launch = row.lane.launches[at];
    const who = name(row.ranks, trans);
    if (!launch && row.lane.died) {
      return trans.__('Launch %1: %2 died before it', first + at, who);
    }
    if (!launch) {
      return row.lane.under_way
        ? trans.__('Launch %1: not yet on %2', first + at, who)
        : trans.__('Launch %1: none on %2', first + at, who);
    }
    return trans.__('Launch %1 on %2: %3', first + at, who, described(launch, trans));
  };
  const go = (launch: ILaunch | null) => {
    if (launch?.cell != null && launch.line !== null && has(launch.cell)) {
      onPlace(launch.cell, launch.line);
    }
  };

  return (
    <div className="jxl-timelineBox">
      <div className="jxl-timelineHead">
        <p>{label}</p>
        {isEqual && (
          <label>
            <input type="checkbox" checked={each} onChange={event => setEach(event.target.checked)} />
            {trans.__('A row for each rank')}
          </label>
        )}
      </div>
      <div className="jxl-timeline" ref={box} role="group" aria-label={label} onKeyDown={onKeyDown}>
        <table aria-label={label} onPointerLeave={() => setHover(null)}>
          <thead>
            <tr>
              <th scope="col">{trans.__('launch')}</th>
              {places.map(at => (
                <th key={first + at} scope="col" data-first={at === parts ? '' : undefined}>
                  {at === parts ? `${first + at} ≠` : first + at}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(row => (
              <tr key={row.ranks.join()}>
                <th scope="row">
                  <RankChips ranks={row.ranks} />
                  {name(row.ranks, trans)}
                  {row.lane.died && ` ${trans.__('died')}`}
                </th>
                {places.map(at => {
                  const spot = { row: row.ranks.join(), launch: first + at };
                  const isOdd = at === parts && row.ranks.every(rank => odd.has(rank));
                  return (
                    <td key={first + at} onPointerEnter={() => setHover(spot)}>
                      <Mark
                        launch={row.lane.launches[at] ?? null}
                        odd={isOdd}
                        label={tell(row, at) as string}
                        none={row.lane.died ? '✖' : row.lane.under_way ? '…' : '–'}
                        isEntry={entry.row === row && entry.at === at}
                        onFocus={() => setFocus(spot)}
                        onClick={() => go(row.lane.launches[at] ?? null)}
                      />
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className="jxl-launchTold">
        {told
          ? tell(told.row, told.at)
          : trans.__('Point at a letter for its place; a click leads there.')}
      </p>
      {parts >= 0 && <Difference {...{ timeline, at: parts, trans, onPlace, has }} />}
      <Programs lanes={lanes} />
      {hidden.length > 0 && (
        <p className="jxl-dim">
          {trans.__('Not shown, each with launches of its own: %1', name(hidden, trans))}
        </p>
      )}
    </div>
  );
}

interface IMark {
  launch: ILaunch | null;
  odd: boolean;
  /** All of it in words. */
  label: string;
  /** What stands for no launch: the rank died, may still launch, or has not. */
  none: '✖' | '…' | '–';
  isEntry: boolean;
  onFocus: () => void;
  onClick: () => void;
}

/** One launch of a row: its program's letter, `≠` before it where ranks first differ, on those that do. */
function Mark({ launch, odd, label, none, isEntry, onFocus, onClick }: IMark): JSX.Element {
  const kind = launch ? '' : none === '…' ? ' jxl-mod-later' : ' jxl-mod-none';
  return (
    <button
      type="button"
      className={`jxl-launch${kind}`}
      data-odd={odd ? '' : undefined}
      data-shade={launch ? launch.program % SHADES : undefined}
      tabIndex={isEntry ? 0 : -1}
      aria-label={label}
      title={label}
      onFocus={onFocus}
      onClick={onClick}
    >
      {odd && '≠'}
      {launch ? letter(launch.program) : none}
    </button>
  );
}

/** Who has launched what at the first place where they differ, with the ways to the lines. */
function Difference(props: ITimelineView & { at: number }): JSX.Element {
  const { timeline, at, trans, onPlace, has } = props;
  const sides = new Map<string, { ranks: number[]; launch: ILaunch | null }>();
  for (const lane of timeline.lanes.filter(one => programAt(one, at) !== WAITED_FOR)) {
    const launch = lane.launches[at] ?? null;
    const key = launch ? [launch.program, launch.cell, launch.line, launch.within].join() : '';
    const ranks = [...(sides.get(key)?.ranks ?? []), ...lane.ranks].sort((a, b) => a - b);
    sides.set(key, { ranks, launch });
  }
  return (
    <div className="jxl-difference">
      <p>{trans.__('Launch %1 is the first that differs:', timeline.first + at)}</p>
      <ul>
        {[...sides].map(([key, { ranks, launch }]) => (
          <li key={key}>
            {name(ranks, trans)}
            {': '}
            {launch ? `${letter(launch.program)} ${shortName(launch.name)} ` : trans.__('none')}
            {launch && placeOf(launch, trans) && (
              <>
                {launch.cell !== null && launch.line !== null && has(launch.cell) ? (
                  <button
                    type="button"
                    className="jxl-link"
                    onClick={() => onPlace(launch.cell!, launch.line!)}
                  >
                    {placeOf(launch, trans)}
                  </button>
                ) : (
                  placeOf(launch, trans)
                )}
              </>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What the letters stand for. */
function Programs({ lanes }: { lanes: readonly ILane[] }): JSX.Element {
  const names = new Map<number, string>();
  for (const launch of lanes.flatMap(({ launches }) => launches)) {
    if (launch) {
      names.set(launch.program, launch.name);
    }
  }
  return (
    <ul className="jxl-programs">
      {[...names]
        .sort(([a], [b]) => a - b)
        .map(([program, text]) => (
          <li key={program} title={text}>
            <span className="jxl-launch" data-shade={program % SHADES}>
              {letter(program)}
            </span>{' '}
            {shortName(text)}
          </li>
        ))}
    </ul>
  );
}

const clamp = (at: number, length: number): number => Math.max(0, Math.min(at, length - 1));

/** "[7] line 3", and the script's line, if that launched it; '' where neither is known. */
function placeOf({ cell, line, within }: ILaunch, trans: Trans): string {
  const place = cell === null || line === null ? '' : trans.__('[%1] line %2', cell, line);
  return [place, within].filter(Boolean).join(', ');
}

function described(launch: ILaunch, trans: Trans): string {
  return [`${letter(launch.program)} ${shortName(launch.name)}`, placeOf(launch, trans)]
    .filter(Boolean)
    .join(', ');
}

function name(ranks: readonly number[], trans: Trans): string {
  return trans._n('rank %2', 'ranks %2', ranks.length, ranksText([...ranks]));
}
