/**
 * What can be done with a notebook's cluster: JupyterLab's commands, and the buttons of the sidebar wherever it
 * is. Without any part of Jupyter.
 */

import type { IOperations, IState, Operation } from './protocol';
import { isBusy, type Trans } from './widgets/labels';

export type Args = { [key: string]: string | number | boolean | null | undefined };

/** An operation with its arguments. */
export type Call = { [O in Operation]: { op: O; args: IOperations[O]['args'] } }[Operation];

/** What must be confirmed first. */
export interface IQuestion {
  title: string;
  body: string;
  answers: { label: string; call: Call }[];
}

/** The tabs of the panel. */
export type Tab = 'report' | 'stacks' | 'logs' | 'arrays';

/** A tab that is to be shown; `rank`: whose log, null for those of all. */
export interface IShow {
  tab: Tab;
  rank: number | null;
}

export interface IAction {
  label: string;
  /** What it does, in a sentence. */
  caption: string;
  /** Whether it does something now. */
  can: (state: IState, args: Args) => boolean;
  does: (state: IState, args: Args) => Call | IQuestion | IShow;
}

export type ActionId =
  | 'interrupt'
  | 'restart'
  | 'stop'
  | 'attach'
  | 'cancel'
  | Tab;

export type Execute = (action: ActionId, args?: Args) => void;

export function actionsIn(trans: Trans): Record<ActionId, IAction> {
  const has = (state: IState) => !!state.current;
  const named = (state: IState, args: Args) => String(args.name ?? state.current ?? '');
  const tab = (name: Tab) => (_: IState, { rank }: Args): IShow => ({
    tab: name,
    rank: typeof rank === 'number' ? rank : null
  });
  return {
    interrupt: {
      label: trans.__('Interrupt All Ranks'),
      caption: trans.__('Stop the cell; all ranks stop before the same launch'),
      can: state => has(state) && isBusy(state),
      does: () => ({ op: 'interrupt', args: {} })
    },
    restart: {
      label: trans.__('Restart Ranks…'),
      caption: trans.__('Give the ranks new processes, with their variables or without'),
      can: has,
      does: state => ({
        title: trans.__('Restart the ranks of %1?', state.current ?? ''),
        body: trans.__('A running cell ends. Variables are kept where they can be saved.'),
        answers: [
          { label: trans.__('Restart'), call: { op: 'restart', args: { clean: false } } },
          {
            label: trans.__('Restart without variables'),
            call: { op: 'restart', args: { clean: true } }
          }
        ]
      })
    },
    stop: {
      label: trans.__('Stop JAX Cluster…'),
      caption: trans.__('End the ranks and lose their variables'),
      can: (state, args) => !!named(state, args),
      does: (state, args) => ({
        title: trans.__('Stop JAX cluster %1?', named(state, args)),
        body: trans.__('Its ranks end, and their variables are lost.'),
        answers: [{ label: trans.__('Stop'), call: { op: 'stop', args: { name: named(state, args) } } }]
      })
    },
    attach: {
      label: trans.__('Use JAX Cluster'),
      caption: trans.__('Run the cells of this notebook on this cluster'),
      can: (_, args) => !!args.name,
      does: (_, args) => ({ op: 'attach', args: { name: String(args.name) } })
    },
    cancel: {
      label: trans.__('Cancel Start of JAX Cluster'),
      caption: trans.__('End the start and every process that it has started'),
      can: state => !!state.start && !state.start.failure,
      does: () => ({ op: 'cancel', args: {} })
    },
    report: {
      label: trans.__('Show Report'),
      caption: trans.__('Show what went wrong last on the ranks'),
      can: state => !!state.report,
      does: tab('report')
    },
    stacks: {
      label: trans.__('Show Stacks'),
      caption: trans.__('Show the line that each rank is in'),
      can: has,
      does: tab('stacks')
    },
    logs: {
      label: trans.__('Show Logs'),
      caption: trans.__('Show the logs of the ranks'),
      can: has,
      does: tab('logs')
    },
    arrays: {
      label: trans.__('Show Arrays'),
      caption: trans.__('Show which device holds which part of which variable'),
      can: has,
      does: tab('arrays')
    }
  };
}
