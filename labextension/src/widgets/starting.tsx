/** A start that goes on, rank by rank, or one that has failed. */

import * as React from 'react';
import type { Execute } from '../actions';
import type { IStart, IState, StartStep } from '../protocol';
import { formatRanks } from '../ranks';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Button, Elapsed, Failure, Middle } from './parts';

interface IStarting {
  start: IStart;
  state: IState;
  store: Store;
  trans: Trans;
  execute: Execute;
}

/** How far a rank has come; those that are last stand first. */
const STEPS: Record<StartStep, string> = {
  '': 'the process starts',
  up: 'the process runs, and JAX initializes',
  initialized: 'JAX is initialized, and the engine connects',
  ready: 'ready'
};

export function Starting({ start, state, store, trans, execute }: IStarting): JSX.Element {
  const steps = (Object.keys(STEPS) as StartStep[]).map((step): [StartStep, number[]] => [
    step,
    start.steps.flatMap((own, rank) => (own === step ? [rank] : []))
  ]);
  const title = start.is_restart ? trans.__('Restarting %1', start.name) : trans.__('Starting %1', start.name);
  return (
    <div className="jxl-starting">
      <div className="jxl-line jxl-head">
        <span className="jxl-spinner" aria-hidden="true" />
        <Middle className="jxl-name" text={title} />
        <span className="jxl-summary">
          <Elapsed since={start.since} store={store} trans={trans} />
        </span>
        <Button
          look="primary"
          label={trans.__('Cancel')}
          title={trans.__('End every process that this has started')}
          onClick={() => execute('cancel')}
        />
      </div>
      <p className="jxl-dim" role="status">
        {state.progress || trans.__('starting …')}
      </p>
      <ul className="jxl-steps" aria-label={trans.__('Progress of each rank')}>
        {steps.map(([step, ranks]) =>
          ranks.length ? (
            <li key={step} data-step={step} data-tone={step === 'ready' ? 'good' : 'busy'}>
              <span className="jxl-glyph" aria-hidden="true">
                {step === 'ready' ? '✓' : '…'}
              </span>
              <strong>{trans._n('rank %2', 'ranks %2', ranks.length, formatRanks(ranks))}</strong>{' '}
              {trans.__(STEPS[step])}
            </li>
          ) : null
        )}
      </ul>
    </div>
  );
}

/** Why the last start has failed. */
export function Failed({ start, trans }: { start: IStart; trans: Trans }): JSX.Element {
  return (
    <div className="jxl-alarm jxl-failed">
      <p>
        <strong>{trans.__('Cluster %1 did not start.', start.name)}</strong>
      </p>
      <Failure text={start.failure} />
    </div>
  );
}
