/** The sidebar: the current notebook's cluster rank by rank, and all clusters below it. */

import * as React from 'react';
import type { IState } from '../protocol';
import { CommandIDs, type IServerCluster } from '../tokens';
import { ClusterList, mergeClusters, type Listed } from './clusterList';
import { TickerContext, type Ticker } from './clock';
import { Busy, Button } from './parts';
import { RankTable } from './rankTable';
import { chipText, currentCluster, type Trans } from './labels';

export interface ISidebar {
  /** The current notebook's name; null without a notebook. */
  notebook: string | null;
  /** Null: jaxcluster is not loaded in its kernel. */
  state: IState | null;
  clockOffset: number;
  server: readonly IServerCluster[];
  ticker: Ticker;
  trans: Trans;
  /** Everything that can be done is a command. */
  execute: (command: string, args?: { [key: string]: string | number }) => void;
  /** Insert a cell that loads jaxcluster, and run it; null where there is no notebook for it. */
  load: (() => void) | null;
}

export function Sidebar(props: ISidebar): JSX.Element {
  const { state, execute, trans } = props;
  const listed = React.useMemo(
    () => mergeClusters(state, props.server),
    [state, props.server]
  );
  const stop = (one: Listed) =>
    execute(
      CommandIDs.stop,
      one.kind === 'server' ? { name: one.name, id: one.id } : { name: one.name }
    );
  return (
    <TickerContext.Provider value={props.ticker}>
      <div className="jxl-sidebar">
        <section aria-label={trans.__('This notebook')}>
          <h2 title={props.notebook ?? ''}>{props.notebook ?? trans.__('This notebook')}</h2>
          <Notebook {...props} />
        </section>
        <section aria-label={trans.__('All clusters')}>
          <h2>{trans.__('All clusters')}</h2>
          <ClusterList
            clusters={listed}
            canAttach={state !== null}
            clockOffset={props.clockOffset}
            trans={trans}
            onAttach={name => execute(CommandIDs.attach, { name })}
            onUse={name => execute(CommandIDs.use, { name })}
            onStop={stop}
          />
        </section>
      </div>
    </TickerContext.Provider>
  );
}

function Notebook(props: ISidebar): JSX.Element {
  const { state, execute, trans } = props;
  const onLogs = React.useCallback(
    (rank: number) => execute(CommandIDs.logs, { rank }),
    [execute]
  );
  if (props.notebook === null) {
    return <p className="jxl-empty">{trans.__('Open a notebook to see its cluster here.')}</p>;
  }
  if (!state) {
    return (
      <div className="jxl-empty">
        <p>{trans.__('jaxcluster is not loaded in the kernel of this notebook. Run in a cell:')}</p>
        <p>
          <code>%load_ext jaxcluster</code>
        </p>
        {props.load && (
          <Button
            label={trans.__('Insert this cell and run it')}
            title={trans.__('Above the active cell')}
            onClick={props.load}
          />
        )}
      </div>
    );
  }
  const cluster = currentCluster(state);
  if (!cluster) {
    return state.progress ? (
      <Busy text={state.progress} />
    ) : (
      <div className="jxl-empty">
        <p>{trans.__('This notebook has no cluster.')}</p>
        <Button
          label={trans.__('Start a cluster …')}
          onClick={() => execute(CommandIDs.start)}
        />
      </div>
    );
  }
  return (
    <>
      <div className="jxl-line">
        <span className="jxl-name">{cluster.name}</span>
        <span className="jxl-summary">{chipText({ ...state, progress: '' }, trans)}</span>
        {state.strict && (
          <span className="jxl-mark" title={trans.__('Each launch is checked on all ranks first')}>
            {trans.__('strict')}
          </span>
        )}
      </div>
      {state.progress && <Busy text={state.progress} />}
      {state.report?.open && (
        <div className="jxl-alarm">
          <p>{state.report.lines[0]}</p>
          <Button
            label={trans.__('Show who waits where')}
            onClick={() => execute(CommandIDs.showReport)}
          />
        </div>
      )}
      <Actions {...props} />
      <RankTable
        ranks={state.ranks}
        clockOffset={props.clockOffset}
        trans={trans}
        onLogs={onLogs}
      />
    </>
  );
}

function Actions({ execute, trans }: ISidebar): JSX.Element {
  return (
    <div className="jxl-buttons" role="group" aria-label={trans.__('Actions')}>
      <Button
        label={trans.__('Interrupt')}
        title={trans.__('Stop what runs on all ranks; variables are kept')}
        onClick={() => execute(CommandIDs.interrupt)}
      />
      <Button
        label={trans.__('Resync')}
        title={trans.__('Bring the ranks back into lockstep')}
        onClick={() => execute(CommandIDs.resync)}
      />
      <Button
        label={trans.__('Stacks')}
        title={trans.__('Where every rank is now')}
        onClick={() => execute(CommandIDs.stacks)}
      />
      <Button
        label={trans.__('Journal')}
        title={trans.__('The last launches, ranks side by side')}
        onClick={() => execute(CommandIDs.journal)}
      />
      <Button
        label={trans.__('Arrays')}
        title={trans.__('Which device holds which part of which variable')}
        onClick={() => execute(CommandIDs.inspect)}
      />
      <Button
        label={trans.__('Restart …')}
        title={trans.__('New processes, with the variables or without')}
        danger
        onClick={() => execute(CommandIDs.restart)}
      />
      <Button
        label={trans.__('Stop …')}
        title={trans.__('End all processes of this cluster')}
        danger
        onClick={() => execute(CommandIDs.stop)}
      />
    </div>
  );
}
