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
const TILES_FROM = 8;

interface IRankTable {
  ranks: readonly IRank[];
  clockOffset: number;
  trans: Trans;
  onLogs: (rank: number) => void;
}

export function RankTable(props: IRankTable): JSX.Element {
  const { ranks, trans } = props;
  const differ = differencesOf(ranks);
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
            {...differ}
            clockOffset={props.clockOffset}
            trans={trans}
            onLogs={props.onLogs}
          />
        ))}
      </ul>
    </Roving>
  );
}

/** What is worth a place in a row: what all ranks have alike is not. */
export function differencesOf(ranks: readonly IRank[]): { hosts: boolean; devices: boolean } {
  return {
    hosts: new Set(ranks.map(({ host }) => host)).size > 1,
    // One each, numbered as they are, says nothing. JAX numbers those of CPU with 2048 times the rank.
    devices: ranks.some(({ rank, devices }) => {
      const [platform, id] = (devices[0] ?? '').split(':');
      const usual = platform === 'cpu' ? [rank, 2048 * rank] : [rank];
      return devices.length !== 1 || !usual.includes(Number(id));
    })
  };
}

interface IRow {
  rank: IRank;
  /** Whether its host, and its devices, have a place; else its number has them in its title. */
  hosts: boolean;
  devices: boolean;
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
    a.hosts === b.hosts &&
    a.devices === b.devices &&
    (a.rank.since === null || a.clockOffset === b.clockOffset)
  );
});

function Row(props: IRow): JSX.Element {
  const { rank, trans } = props;
  const name = trans.__('rank %1', rank.rank);
  const isTold = props.hosts || props.devices;
  const resources = rank.status !== 'dead' && (
    <Resources rank={rank.rank} rss={rank.rss} trans={trans} />
  );
  return (
    <li className="jxl-rank" data-rank={rank.rank} data-status={rank.status}>
      <span
        className="jxl-number"
        role="img"
        aria-label={name}
        title={trans.__('%1, pid %2 on %3, %4', name, rank.pid, rank.host, devicesText(rank.devices))}
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
        {props.hosts && <Middle className="jxl-where" text={rank.host} />}
        {props.devices && (
          <span className="jxl-devices" title={trans.__('its devices, as JAX numbers them')}>
            {devicesText(rank.devices)}
          </span>
        )}
        {!isTold && resources}
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
      {isTold && resources}
      {rank.note && <span className="jxl-note">{rank.note}</span>}
    </li>
  );
}
