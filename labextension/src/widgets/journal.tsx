/** The last launches of every set of processes. */

import * as React from 'react';
import type { ITimeline } from '../protocol';
import { Failure } from './parts';
import { Timeline } from './timeline';
import type { Trans } from './labels';

interface IJournalView {
  /** Null until they are known. */
  timelines: readonly ITimeline[] | null;
  /** Whether there are no ranks that could be asked. */
  isAlone?: boolean;
  failure?: string;
  trans: Trans;
  onPlace: (cell: number, line: number) => void;
  has: (cell: number) => boolean;
}

export function Journal({ timelines, isAlone, failure, ...ways }: IJournalView): JSX.Element {
  return (
    <div className="jxl-journal">
      {failure && <Failure text={failure} />}
      {timelines?.map(one => <Timeline key={one.processes.join()} timeline={one} {...ways} />)}
      {timelines === null && isAlone && !failure && (
        <p className="jxl-empty">
          {ways.trans.__('The notebook has no ranks now. What they launch will appear here.')}
        </p>
      )}
      {timelines?.length === 0 && (
        <p className="jxl-empty">
          {ways.trans.__(
            'No program that spans processes has been launched since the ranks were last in lockstep.'
          )}
        </p>
      )}
    </div>
  );
}
