import * as React from 'react';
import { color } from '../draw/shardview';

/** The colours that ranks have in the shard views too; of many ranks none. */
export function RankChips(props: { ranks: readonly number[] }): JSX.Element | null {
  if (props.ranks.length > 8) {
    return null;
  }
  return (
    <span className="jxl-rankColors" aria-hidden="true">
      {props.ranks.map(rank => (
        <span key={rank} style={{ background: color(rank) }} />
      ))}
    </span>
  );
}
