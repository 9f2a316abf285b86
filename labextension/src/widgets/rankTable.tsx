/** A cluster's ranks, a row each: what it does, where, since when, and what it holds. */

import * as React from 'react';
import { bytes, ranksText } from '../draw/shardview';
import type { IRank } from '../protocol';
import { Elapsed } from './clock';
import { Counts, Roving, StatusMark } from './parts';
import { countStatuses, placeOf, type Trans } from './labels';

/** From so many ranks on they are grouped by host; from so many on the groups start folded. */
const GROUP_FROM = 16;
const FOLD_FROM = 65;

interface IRankTable {
  ranks: readonly IRank[];
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

export function RankTable(props: IRankTable): JSX.Element {
  const { ranks, trans } = props;
  const row = (rank: IRank, grouped: boolean) => (
    <Row
      key={rank.rank}
      rank={rank}
      grouped={grouped}
      clockOffset={props.clockOffset}
      trans={trans}
      onLogs={props.onLogs}
    />
  );
  return (
    <Roving stops=".jxl-log" className="jxl-ranks">
      {ranks.length < GROUP_FROM ? (
        <ul aria-label={trans.__('Ranks')}>{ranks.map(rank => row(rank, false))}</ul>
      ) : (
        byHost(ranks).map(([host, own]) => (
          <Host key={host} host={host} ranks={own} open={ranks.length < FOLD_FROM} trans={trans}>
            {() => own.map(rank => row(rank, true))}
          </Host>
        ))
      )}
    </Roving>
  );
}

function byHost(ranks: readonly IRank[]): [string, IRank[]][] {
  const hosts = new Map<string, IRank[]>();
  for (const rank of ranks) {
    const own = hosts.get(rank.host);
    if (own) {
      own.push(rank);
    } else {
      hosts.set(rank.host, [rank]);
    }
  }
  return [...hosts];
}

interface IHost {
  host: string;
  ranks: IRank[];
  open: boolean;
  trans: Trans;
  /** Its rows; not made while it is folded. */
  children: () => JSX.Element[];
}

function Host(props: IHost): JSX.Element {
  const { host, ranks, trans } = props;
  const [open, setOpen] = React.useState(props.open);
  const counts = countStatuses(ranks);
  return (
    <details
      className="jxl-host"
      open={open}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <span className="jxl-name">{host || trans.__('host unknown')}</span>
        <span className="jxl-dim">
          {trans._n('rank %2', 'ranks %2', ranks.length, ranksText(ranks.map(({ rank }) => rank)))}
        </span>
        <span className="jxl-counts">
          <Counts counts={counts} trans={trans} />
        </span>
      </summary>
      {open && (
        <ul aria-label={trans.__('Ranks of %1', host)}>{props.children()}</ul>
      )}
    </details>
  );
}

interface IRow {
  rank: IRank;
  grouped: boolean;
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

/** Each state comes with new objects; a row is drawn again only if something in it is different. */
const Row = React.memo(RankRow, (a, b) => {
  return (
    JSON.stringify(a.rank) === JSON.stringify(b.rank) &&
    a.grouped === b.grouped &&
    a.onLogs === b.onLogs &&
    a.trans === b.trans &&
    (a.rank.since === null || a.clockOffset === b.clockOffset)
  );
});

function RankRow(props: IRow): JSX.Element {
  const { rank, grouped, trans } = props;
  const devices = rank.devices.join(', ');
  const where = [grouped ? '' : rank.host, devices].filter(Boolean).join(' · ');
  const name = trans.__('rank %1', rank.rank);
  return (
    <li className="jxl-rank" data-rank={rank.rank} data-status={rank.status}>
      <span
        className="jxl-number"
        role="img"
        aria-label={name}
        title={trans.__('%1, pid %2', name, rank.pid)}
      >
        {rank.rank}
      </span>
      <StatusMark status={rank.status} trans={trans} />
      <span className="jxl-place">{placeOf(rank, trans)}</span>
      <span className="jxl-time">
        {rank.since !== null && (
          <Elapsed since={rank.since} offset={props.clockOffset} trans={trans} />
        )}
      </span>
      <span className="jxl-second">
        <span className="jxl-where" title={where}>
          {where}
        </span>
        <span title={trans.__('memory of its process')}>{rank.rss > 0 && bytes(rank.rss)}</span>
        <button
          type="button"
          className="jxl-button jxl-mod-quiet jxl-log"
          tabIndex={-1}
          aria-label={trans.__('Log of rank %1', rank.rank)}
          onClick={() => props.onLogs(rank.rank)}
        >
          {trans.__('log')}
        </button>
      </span>
      {rank.note && <span className="jxl-note">{rank.note}</span>}
    </li>
  );
}
