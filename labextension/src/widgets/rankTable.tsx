/** A cluster's ranks: a row each, and from eight on a tile each. */

import * as React from 'react';
import type { IRank } from '../protocol';
import { Elapsed } from './clock';
import { devicesText, placeOf, type Trans } from './labels';
import { Middle } from './middle';
import { Roving, StatusMark } from './parts';
import { RankGrid } from './rankGrid';
import { Resources } from './resources';

/** From so many ranks on each has a tile. */
export const TILES_FROM = 8;

interface IRankTable {
  ranks: readonly IRank[];
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

export function RankTable(props: IRankTable): JSX.Element {
  const { ranks, trans } = props;
  if (ranks.length >= TILES_FROM) {
    return <RankGrid {...props} />;
  }
  return (
    <Roving stops=".jxl-log" className="jxl-ranks">
      <ul aria-label={trans.__('Ranks')}>
        {ranks.map(rank => (
          <RankRow
            key={rank.rank}
            rank={rank}
            clockOffset={props.clockOffset}
            trans={trans}
            onLogs={props.onLogs}
          />
        ))}
      </ul>
    </Roving>
  );
}

interface IRow {
  rank: IRank;
  /** Whether Tab stops at its log, which is no part of a list of logs then. */
  alone?: boolean;
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

/** Each state comes with new objects; a row is drawn again only if something in it is different. */
export const RankRow = React.memo(Row, (a, b) => {
  return (
    JSON.stringify(a.rank) === JSON.stringify(b.rank) &&
    a.onLogs === b.onLogs &&
    a.trans === b.trans &&
    (a.rank.since === null || a.clockOffset === b.clockOffset)
  );
});

function Row(props: IRow): JSX.Element {
  const { rank, trans } = props;
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
        <Middle className="jxl-where" text={rank.host} />
        <span className="jxl-devices" title={trans.__('its devices, as JAX numbers them')}>
          {devicesText(rank.devices)}
        </span>
        <button
          type="button"
          className="jxl-button jxl-mod-quiet jxl-log"
          tabIndex={props.alone ? 0 : -1}
          aria-label={trans.__('Log of rank %1', rank.rank)}
          onClick={() => props.onLogs(rank.rank)}
        >
          {trans.__('log')}
        </button>
      </span>
      {rank.status !== 'dead' && <Resources rank={rank.rank} rss={rank.rss} trans={trans} />}
      {rank.note && <span className="jxl-note">{rank.note}</span>}
    </li>
  );
}
