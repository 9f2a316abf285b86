/** The sidebar: the current notebook's cluster rank by rank, and all clusters below it. */

import * as React from 'react';
import type { IState } from '../protocol';
import { CommandIDs } from '../commandIds';
import { ClusterList } from './clusterList';
import { TickerContext, type Ticker } from './clock';
import { Busy, Button } from './parts';
import { RankTable } from './rankTable';
import { chipText, currentCluster, primaryOf, type Trans } from './labels';
import { Middle } from './middle';
import { StartHere } from './startHere';
import { Starting } from './starting';
import { Total, UsesContext, type IUses } from './resources';

interface ISidebar {
  /** The current notebook's name; null without a notebook. */
  notebook: string | null;
  /** Null: jaxcluster is not loaded in its kernel. */
  state: IState | null;
  clockOffset: number;
  ticker: Ticker;
  trans: Trans;
  /** Everything that can be done is a command. */
  execute: (command: string, args?: { [key: string]: string | number | boolean }) => void;
  /** What the ranks use. */
  uses: IUses;
  /** Open the menu of all that can be done now, at a button. */
  openMenu: (anchor: HTMLElement) => void;
  /** How many ranks are proposed for a cluster. */
  number: number;
  /** Start a cluster of so many; null where the notebook is not one for it. */
  onStart: ((number: number) => void) | null;
  /** Whether there is a form with all options of a start. */
  hasForm: boolean;
  /** Load jaxcluster in the notebook's kernel; null where there is no notebook for it. */
  load: (() => void) | null;
}

export function Sidebar(props: ISidebar): JSX.Element {
  const { state, execute, trans } = props;
  return (
    <TickerContext.Provider value={props.ticker}>
      <UsesContext.Provider value={props.uses}>
      <div className="jxl-sidebar">
        <section aria-label={trans.__('This notebook')}>
          <h2 title={props.notebook ?? ''}>{props.notebook ?? trans.__('This notebook')}</h2>
          <Notebook {...props} />
        </section>
        {state && (
          <section aria-label={trans.__('All clusters')}>
            <h2>{trans.__('All clusters')}</h2>
            <ClusterList
              clusters={state.clusters}
              current={state.current}
              clockOffset={props.clockOffset}
              trans={trans}
              onAttach={name => execute(CommandIDs.attach, { name })}
              onUse={name => execute(CommandIDs.use, { name })}
              onStop={name => execute(CommandIDs.stop, { name })}
            />
          </section>
        )}
      </div>
      </UsesContext.Provider>
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
    return (
      <Empty {...props} title={trans.__('In a new notebook')}>
        {trans.__('No notebook is open.')}
      </Empty>
    );
  }
  if (!state) {
    return (
      <Empty {...props}>{trans.__('jaxcluster is not loaded in the kernel of this notebook.')}</Empty>
    );
  }
  const cluster = currentCluster(state);
  if (!cluster) {
    return state.start ? (
      <Starting {...props} start={state.start} state={state} />
    ) : state.progress ? (
      <Busy text={state.progress} />
    ) : (
      <Empty {...props}>{trans.__('This notebook has no cluster.')}</Empty>
    );
  }
  return (
    <>
      <div className="jxl-line jxl-head">
        <Middle className="jxl-name" text={cluster.name} />
        <span className="jxl-summary">{chipText({ ...state, progress: '' }, trans)}</span>
        <Actions {...props} state={state} />
      </div>
      {state.start ? (
        <Starting {...props} start={state.start} state={state} />
      ) : (
        state.progress && <Busy text={state.progress} />
      )}
      {state.report?.open && (
        <div className="jxl-alarm">
          <p>{state.report.title}</p>
          <Button
            label={trans.__('Show report')}
            onClick={() => execute(CommandIDs.showReport)}
          />
        </div>
      )}
      {state.ranks.length > 1 && <Total trans={trans} />}
      <RankTable
        ranks={state.ranks}
        clockOffset={props.clockOffset}
        trans={trans}
        onLogs={onLogs}
      />
    </>
  );
}

/** Where there is no cluster: why, and *Start*. */
function Empty(props: ISidebar & { title?: string; children: string }): JSX.Element {
  const { state, execute, trans } = props;
  return (
    <div className="jxl-empty">
      <p>{props.children}</p>
      {props.onStart && (
        <StartHere
          number={props.number}
          trans={trans}
          label={trans.__('Start')}
          title={props.title ?? trans.__('Start a JAX cluster with this many ranks for this notebook')}
          onStart={props.onStart}
        />
      )}
      {state && props.hasForm && (
        <Button
          label={trans.__('Other options …')}
          title={trans.__('Where it runs, devices, time limits')}
          onClick={() => execute(CommandIDs.start)}
        />
      )}
      {!state && props.load && (
        <Button
          label={trans.__('Load it')}
          title={trans.__('To attach to a cluster that runs')}
          onClick={props.load}
        />
      )}
    </div>
  );
}

/** The one thing to do now, and a menu of all others: nothing in it does nothing. */
function Actions(props: ISidebar & { state: IState }): JSX.Element {
  const { execute, trans } = props;
  const primary = primaryOf(props.state);
  const words: Record<string, [label: string, title: string, command: string]> = {
    interrupt: [
      trans.__('Interrupt'),
      trans.__('Stop what runs on all ranks; variables are kept'),
      CommandIDs.interrupt
    ],
    restart: [
      trans.__('Restart …'),
      trans.__('New processes, with the variables or without'),
      CommandIDs.restart
    ]
  };
  const [label, title, command] = words[primary ?? ''] ?? [];
  return (
    <div className="jxl-buttons" role="group" aria-label={trans.__('Actions')}>
      {label && <Button primary label={label} title={title} onClick={() => execute(command)} />}
      <button
        type="button"
        className="jxl-button jxl-more"
        aria-haspopup="menu"
        aria-label={trans.__('More actions')}
        title={trans.__('Stacks, logs, arrays, restart')}
        onClick={event => props.openMenu(event.currentTarget)}
      >
        <span aria-hidden="true">⋯</span>
      </button>
    </div>
  );
}
