/** Many ranks: a tile each, the ones that differ first, and all that is known of the one looked at. */

import * as React from 'react';
import { ranksText } from '../draw/shardview';
import type { IRank } from '../protocol';
import { countStatuses, glyphOf, oddFirst, statusLabel, toneOf, type Trans } from './labels';
import { Middle } from './middle';
import { Counts, stopAt } from './parts';
import { RankRow, differencesOf } from './rankTable';
import { useUse } from './resources';

/** From so many ranks on hosts start folded. */
const FOLD_FROM = 65;

interface IRankGrid {
  ranks: readonly IRank[];
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

export function RankGrid(props: IRankGrid): JSX.Element {
  const { ranks, trans } = props;
  const [looked, setLooked] = React.useState<number | null>(null);
  const [chosen, setChosen] = React.useState<number | null>(null);
  const box = React.useRef<HTMLDivElement>(null);
  const sorted = React.useMemo(() => oddFirst(ranks), [ranks]);
  const usual = countStatuses(ranks).reduce((a, b) => (b[1] > a[1] ? b : a))[0];
  const known = (rank: number | null) => ranks.find(one => one.rank === rank);
  const shown = known(looked) ?? known(chosen) ?? sorted[0];
  const hosts = React.useMemo(() => byHost(sorted), [sorted]);
  const differ = React.useMemo(() => differencesOf(ranks), [ranks]);
  const onChoose = React.useCallback((rank: number) => setChosen(rank), []);
  const tiles = (own: readonly IRank[]) => (
    <ul className="jxl-tiles">
      {own.map(rank => (
        <Tile
          key={rank.rank}
          rank={rank}
          odd={rank.status !== usual}
          shown={rank.rank === shown.rank}
          trans={trans}
          onLook={setLooked}
          onChoose={onChoose}
        />
      ))}
    </ul>
  );
  // Whatever comes and goes, one of the tiles can be reached by Tab.
  React.useEffect(() => {
    const found = tilesIn(box.current!);
    if (found.length && found.filter(tile => tile.tabIndex === 0).length !== 1) {
      stopAt(found, found[0]);
    }
  });
  return (
    <div
      ref={box}
      className="jxl-grid"
      role="group"
      aria-label={trans.__('Ranks')}
      onKeyDown={event => step(box.current!, event)}
      onMouseLeave={() => setLooked(null)}
    >
      <div className="jxl-gridTiles">
        {hosts.length === 1 || hosts.length === ranks.length
          ? tiles(sorted) // a line for each rank would be no grid
          : hosts.map(([host, own]) => (
              <Host
                key={host}
                host={host}
                ranks={own}
                open={ranks.length < FOLD_FROM}
                trans={trans}
                tiles={tiles}
              />
            ))}
      </div>
      <ul className="jxl-gridDetail" aria-label={trans.__('The rank that is shown')}>
        <RankRow
          alone
          rank={shown}
          {...differ}
          clockOffset={props.clockOffset}
          trans={trans}
          onLogs={props.onLogs}
        />
      </ul>
    </div>
  );
}

function byHost(ranks: readonly IRank[]): [string, IRank[]][] {
  const hosts = new Map<string, IRank[]>();
  for (const rank of ranks) {
    const own = hosts.get(rank.host) ?? [];
    own.push(rank);
    hosts.set(rank.host, own);
  }
  // In the order of their ranks: a host does not move with what its ranks do.
  const first = (own: IRank[]) => Math.min(...own.map(({ rank }) => rank));
  return [...hosts].sort(([, a], [, b]) => first(a) - first(b));
}

interface IHost {
  host: string;
  ranks: IRank[];
  open: boolean;
  trans: Trans;
  /** Its tiles; not made while it is folded. */
  tiles: (own: readonly IRank[]) => JSX.Element;
}

function Host(props: IHost): JSX.Element {
  const { host, ranks, trans } = props;
  const [open, setOpen] = React.useState(props.open);
  return (
    <details
      className="jxl-host"
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <HostLine host={host} ranks={ranks} trans={trans} />
      {open && props.tiles(ranks)}
    </details>
  );
}

type IHostLine = Pick<IHost, 'host' | 'ranks' | 'trans'>;

/** A cluster may have hundreds: one is drawn again only if it looks different. */
const HostLine = React.memo(
  function HostLine({ host, ranks, trans }: IHostLine): JSX.Element {
    const numbers = ranks.map(({ rank }) => rank).sort((a, b) => a - b);
    return (
      <summary>
        <Middle className="jxl-name" text={host || trans.__('host unknown')} />
        <span className="jxl-dim">
          {trans._n('rank %2', 'ranks %2', numbers.length, ranksText(numbers))}
        </span>
        <span className="jxl-counts">
          <Counts counts={countStatuses(ranks)} trans={trans} />
        </span>
      </summary>
    );
  },
  (a, b) =>
    a.trans === b.trans &&
    a.ranks.length === b.ranks.length &&
    a.ranks.every(
      ({ rank, status }, i) => rank === b.ranks[i].rank && status === b.ranks[i].status
    )
);

interface ITile {
  rank: IRank;
  /** Whether it is in another state than most. */
  odd: boolean;
  shown: boolean;
  trans: Trans;
  onLook: (rank: number) => void;
  onChoose: (rank: number) => void;
}

/** Each state comes with new objects; a tile is drawn again only if it looks different. */
const Tile = React.memo(RankTile, (a, b) => {
  const { status, rank, note } = a.rank;
  return (
    status === b.rank.status &&
    rank === b.rank.rank &&
    note === b.rank.note &&
    a.odd === b.odd &&
    a.shown === b.shown &&
    a.trans === b.trans
  );
});

function RankTile(props: ITile): JSX.Element {
  const { rank, odd, shown, trans } = props;
  const cpu = useUse(rank.rank)?.cpu ?? 0;
  const label = trans.__('rank %1: %2', rank.rank, statusLabel(rank.status, trans));
  return (
    <li>
      <button
        type="button"
        className="jxl-tile"
        data-rank={rank.rank}
        data-status={rank.status}
        data-tone={toneOf(rank.status)}
        data-odd={odd ? '' : undefined}
        aria-current={shown ? 'true' : undefined}
        aria-label={rank.note ? `${label}, ${rank.note}` : label}
        tabIndex={-1}
        style={{ '--jxl-use': `${Math.min(100, cpu)}%` } as React.CSSProperties}
        onMouseEnter={() => props.onLook(rank.rank)}
        onFocus={() => props.onLook(rank.rank)}
        onClick={() => props.onChoose(rank.rank)}
      >
        <span aria-hidden="true" className="jxl-tileGlyph">
          {glyphOf(rank.status)}
        </span>
        {rank.rank}
      </button>
    </li>
  );
}

const tilesIn = (box: HTMLElement): HTMLElement[] => [
  ...box.querySelectorAll<HTMLElement>('.jxl-tile')
];

/** The arrow keys, Home and End go among the tiles as they lie. */
function step(box: HTMLElement, event: React.KeyboardEvent): void {
  const found = tilesIn(box);
  const from = event.target as HTMLElement;
  const at = found.indexOf(from);
  if (at < 0) {
    return;
  }
  let next: HTMLElement | undefined;
  switch (event.key) {
    case 'ArrowRight':
      next = found[at + 1];
      break;
    case 'ArrowLeft':
      next = found[at - 1];
      break;
    case 'Home':
      next = found[0];
      break;
    case 'End':
      next = found[found.length - 1];
      break;
    case 'ArrowDown':
      next = nearest(from, found.slice(at + 1), 1);
      break;
    case 'ArrowUp':
      next = nearest(from, found.slice(0, at), -1);
      break;
    default:
      return;
  }
  event.preventDefault();
  event.stopPropagation();
  if (next) {
    stopAt(found, next);
    next.focus();
  }
}

/** The tile of the next row that lies most nearly below (1) or above (-1). */
function nearest(from: HTMLElement, others: HTMLElement[], sign: number): HTMLElement | undefined {
  const own = from.getBoundingClientRect();
  const places = others.map(tile => ({ tile, box: tile.getBoundingClientRect() }));
  const beyond = places.filter(({ box }) => sign * (box.top - own.top) > own.height / 2);
  const rows = beyond.map(({ box }) => sign * box.top);
  const row = Math.min(...rows);
  return beyond
    .filter(({ box }) => sign * box.top < row + own.height / 2)
    .sort((a, b) => Math.abs(a.box.left - own.left) - Math.abs(b.box.left - own.left))[0]?.tile;
}
