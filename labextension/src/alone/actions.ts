/** What the sidebar's commands do on a page without JupyterLab's. */

import { CommandIDs } from '../commandIds';
import type { IOperations, IState, Operation } from '../protocol';
import { isBusy, type Trans } from '../widgets/labels';

export type Args = { [key: string]: string | number | boolean };

/** An operation with its arguments. */
export type Call = { [O in Operation]: { op: O; args: IOperations[O]['args'] } }[Operation];

/** What must be confirmed first. */
export interface IQuestion {
  title: string;
  body: string;
  answers: { label: string; call: Call }[];
}

/** What is shown below the ranks. */
export type Pane = 'report' | 'stacks' | 'logs';

type Action = { call: Call } | { question: IQuestion } | { pane: Pane; rank: number | null };

/** What a command does; null where this page can't. */
export function actionOf(command: string, args: Args, state: IState, trans: Trans): Action | null {
  const name = String(args.name ?? '');
  switch (command) {
    case CommandIDs.interrupt:
      return { call: { op: 'interrupt', args: {} } };
    case CommandIDs.startAgain:
      return { call: { op: 'again', args: { on_cpu: args.on_cpu === true } } };
    case CommandIDs.cancelStart:
      return { call: { op: 'cancel', args: {} } };
    case CommandIDs.dismissStart:
      return { call: { op: 'dismiss', args: {} } };
    case CommandIDs.attach:
      return { call: { op: 'attach', args: { name } } };
    case CommandIDs.use:
      return { call: { op: 'use', args: { name } } };
    case CommandIDs.stop:
      return {
        question: {
          title: trans.__('Stop JAX cluster %1?', name),
          body: trans.__('Its ranks end, and all that they hold is lost.'),
          answers: [{ label: trans.__('Stop'), call: { op: 'stop', args: { name } } }]
        }
      };
    case CommandIDs.restart:
      return {
        question: {
          title: trans.__('Restart the ranks of %1?', state.current ?? ''),
          body: trans.__('A running cell ends. Variables are kept as far as they can be.'),
          answers: [
            { label: trans.__('Restart'), call: { op: 'restart', args: { clean: false } } },
            {
              label: trans.__('Restart without variables'),
              call: { op: 'restart', args: { clean: true } }
            }
          ]
        }
      };
    case CommandIDs.showReport:
      return { pane: 'report', rank: null };
    case CommandIDs.stacks:
      return { pane: 'stacks', rank: null };
    case CommandIDs.logs:
      return { pane: 'logs', rank: typeof args.rank === 'number' ? args.rank : null };
    default:
      return null;
  }
}

/** The menu's commands that do something now, with their names. */
export function menuOf(state: IState, trans: Trans): [command: string, label: string][] {
  const has = !!state.current;
  const all: [string, string, boolean][] = [
    [CommandIDs.showReport, trans.__('Show Report of What Went Wrong'), !!state.report],
    [CommandIDs.stacks, trans.__('Show Stacks'), has],
    [CommandIDs.logs, trans.__('Show Logs'), has],
    [CommandIDs.interrupt, trans.__('Interrupt All Ranks'), has && isBusy(state)],
    [CommandIDs.restart, trans.__('Restart Ranks…'), has]
  ];
  return all.flatMap(([command, label, can]) => (can ? [[command, label]] : []));
}
