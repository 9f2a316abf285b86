/** A start that goes on, rank by rank, or one that has failed and what else would work. */

import * as React from 'react';
import type { IStart, IState, StartStep } from '../protocol';
import { CommandIDs } from '../commandIds';
import { Elapsed } from './clock';
import { rangesText, type Trans } from './labels';
import { Middle } from './middle';
import { Button, Failure } from './parts';

interface IStarting {
  start: IStart;
  state: IState;
  clockOffset: number;
  trans: Trans;
  execute: (command: string, args?: { [key: string]: string | number | boolean }) => void;
}

const STEPS: StartStep[] = ['', 'up', 'initialized', 'ready'];

function stepText(step: StartStep, trans: Trans): string {
  switch (step) {
    case '':
      return trans.__('its process comes up');
    case 'up':
      return trans.__('up; JAX is being initialized');
    case 'initialized':
      return trans.__('JAX is initialized; its engine connects');
    case 'ready':
      return trans.__('ready');
  }
}

/** The ranks at each step, those that are behind first. */
function bySteps(steps: readonly StartStep[]): [StartStep, number[]][] {
  return STEPS.map((step): [StartStep, number[]] => [
    step,
    steps.flatMap((own, rank) => (own === step ? [rank] : []))
  ]).filter(([, ranks]) => ranks.length > 0);
}

export function Starting(props: IStarting): JSX.Element {
  const { start, state, trans, execute } = props;
  if (start.failure) {
    return <Failed {...props} />;
  }
  const groups = bySteps(start.steps);
  return (
    <div className="jxl-starting">
      <div className="jxl-line jxl-head">
        <span className="jxl-spinner" aria-hidden="true" />
        <Middle
          className="jxl-name"
          text={start.is_restart ? trans.__('Restarting %1', start.name) : trans.__('Starting %1', start.name)}
        />
        <span className="jxl-summary">
          <Elapsed since={start.since} offset={props.clockOffset} trans={trans} />
        </span>
        {!start.is_restart && (
          <div className="jxl-buttons">
            <Button
              primary
              label={trans.__('Cancel')}
              title={trans.__('End the start, and all that it has started')}
              onClick={() => execute(CommandIDs.cancelStart)}
            />
          </div>
        )}
      </div>
      <p className="jxl-dim" role="status">
        {state.progress || trans.__('starting …')}
      </p>
      <ul className="jxl-steps" aria-label={trans.__('How far each rank has come')}>
        {groups.map(([step, ranks]) => (
          <li key={step} data-step={step} data-tone={step === 'ready' ? 'good' : 'busy'}>
            <span className="jxl-glyph" aria-hidden="true">
              {step === 'ready' ? '✓' : '…'}
            </span>
            <strong>{trans._n('rank %2', 'ranks %2', ranks.length, rangesText(ranks))}</strong>{' '}
            {stepText(step, trans)}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Failed({ start, trans, execute }: IStarting): JSX.Element {
  return (
    <div className="jxl-alarm jxl-failed">
      <p>
        <strong>{trans.__('Cluster %1 did not start.', start.name)}</strong>
      </p>
      <Failure text={start.failure} />
      <div className="jxl-buttons" role="group" aria-label={trans.__('What to do')}>
        {start.on_cpu && (
          <Button
            primary
            label={trans.__('Start on CPU')}
            title={trans.__('With as many ranks')}
            onClick={() => execute(CommandIDs.startAgain, { on_cpu: true })}
          />
        )}
        <Button
          primary={!start.on_cpu}
          label={trans.__('Try again')}
          title={trans.__('With the same options')}
          onClick={() => execute(CommandIDs.startAgain)}
        />
        <Button
          label={trans.__('Other options …')}
          onClick={() => execute(CommandIDs.start)}
        />
        <Button
          label={trans.__('Dismiss')}
          title={trans.__('Leave it as it is')}
          onClick={() => execute(CommandIDs.dismissStart)}
        />
      </div>
    </div>
  );
}
