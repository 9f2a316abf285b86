/** The sidebar: the current notebook's cluster rank by rank, and the other clusters below it. */

import * as React from 'react';
import type { Execute } from '../actions';
import type { IState } from '../protocol';
import type { Store } from '../store';
import { ClusterList } from './clusters';
import { chipText, currentCluster, isBroken, isBusy, type Trans } from './labels';
import { Busy, Button, Middle, useKnown } from './parts';
import { Ranks } from './ranks';
import { StartHere } from './startHere';
import { Failed, Starting } from './starting';

const DIFFERS =
  'This page and the kernel have different versions of jaxcluster. Reload the page. If this text stays, ' +
  'install the same version where JupyterLab runs and where the kernel runs.';

export interface ISidebar {
  /** The current notebook's name; null without a notebook. */
  notebook: string | null;
  /** What is known of its kernel. */
  store: Store | null;
  trans: Trans;
  execute: Execute;
  /** How many ranks are proposed for a cluster. */
  number: number;
  /** Start a cluster of so many; null where the notebook is not one for it. */
  onStart: ((number: number) => void) | null;
  /** Ask for all options of a start; null where there is no form for them. */
  onForm: (() => void) | null;
  /** Load jaxcluster in the notebook's kernel; null where there is no notebook for it. */
  onLoad: (() => void) | null;
}

export function Sidebar(props: ISidebar): JSX.Element {
  const { store, trans, execute } = props;
  const state = useKnown(store)?.state ?? null;
  const others = state?.clusters.filter(({ name }) => name !== state.current) ?? [];
  return (
    <div className="jxl-sidebar">
      <section aria-label={trans.__('This notebook')}>
        <h2 title={props.notebook ?? ''}>{props.notebook ?? trans.__('This notebook')}</h2>
        {store && state ? (
          <Notebook {...props} store={store} state={state} />
        ) : (
          <Empty {...props} state={null} />
        )}
      </section>
      {store && others.length > 0 && (
        <section aria-label={trans.__('Other clusters')}>
          <h2>{trans.__('Other clusters')}</h2>
          <ClusterList clusters={others} {...{ trans, execute }} clockOffset={store.clockOffset} />
        </section>
      )}
    </div>
  );
}

function Notebook(props: ISidebar & { store: Store; state: IState }): JSX.Element {
  const { store, state, trans } = props;
  const cluster = currentCluster(state);
  const { start } = state;
  if (start?.failure) {
    return (
      <>
        <Failed start={start} trans={trans} />
        <Empty {...props} />
      </>
    );
  }
  const progress = start ? (
    <Starting {...props} start={start} />
  ) : (
    state.progress && <Busy text={state.progress} />
  );
  if (!cluster) {
    return progress ? <>{progress}</> : <Empty {...props} />;
  }
  return (
    <>
      <div className="jxl-line jxl-head">
        <Middle className="jxl-name" text={cluster.name} />
        <span className="jxl-summary">{chipText({ ...state, progress: '' }, trans)}</span>
      </div>
      <Actions {...props} />
      {progress}
      <Ranks store={store} ranks={state.ranks} trans={trans} execute={props.execute} />
    </>
  );
}

/** Where there is no cluster: why, and *Start*. */
function Empty(props: ISidebar & { state: IState | null }): JSX.Element {
  const { notebook, state, store, trans } = props;
  if (store?.known.differs) {
    return <p className="jxl-empty">{trans.__(DIFFERS)}</p>;
  }
  const why =
    notebook === null
      ? trans.__('No notebook is open. Start opens a new one.')
      : state
        ? trans.__('This notebook has no cluster.')
        : trans.__('jaxcluster is not loaded in the kernel of this notebook.');
  return (
    <div className="jxl-empty">
      <p>{why}</p>
      {props.onStart && <StartHere number={props.number} trans={trans} onStart={props.onStart} />}
      {state && props.onForm && (
        <Button
          label={trans.__('Options…')}
          title={trans.__('Choose hosts, devices and time limits')}
          onClick={props.onForm}
        />
      )}
      {!state && props.onLoad && (
        <Button
          label={trans.__('Load it')}
          title={trans.__('Load jaxcluster to use a running cluster')}
          onClick={props.onLoad}
        />
      )}
    </div>
  );
}

/** What can be done with the cluster; the button to press now stands out. */
function Actions({ state, trans, execute }: ISidebar & { state: IState }): JSX.Element {
  const broken = isBroken(state);
  return (
    <div className="jxl-buttons" role="group" aria-label={trans.__('Actions')}>
      {isBusy(state) && (
        <Button
          look={broken ? undefined : 'primary'}
          label={trans.__('Interrupt')}
          title={trans.__('Stop the cell on all ranks')}
          onClick={() => execute('interrupt')}
        />
      )}
      <Button
        look={broken ? 'primary' : undefined}
        label={trans.__('Restart…')}
        title={trans.__('Give the ranks new processes, with their variables or without')}
        onClick={() => execute('restart')}
      />
      <Button
        label={trans.__('Stop…')}
        title={trans.__('End the ranks and lose their variables')}
        onClick={() => execute('stop')}
      />
      <Button
        label={trans.__('Details')}
        title={trans.__('Report, stacks, logs and arrays')}
        onClick={() => execute(state.report ? 'report' : 'stacks')}
      />
    </div>
  );
}
