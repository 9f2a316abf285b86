/** What the plugins share. */

import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ICell, IOperations, IState, Operation } from './protocol';

/** One notebook's kernel as this extension sees it. Made by connection.ts, one for each notebook panel. */
export interface ILink extends IDisposable {
  /** Null: jaxcluster is not loaded in the kernel, or the kernel is gone. */
  readonly state: IState | null;
  /** The newest run of each Jupyter cell, by the cell's id. */
  readonly cells: ReadonlyMap<string, ICell>;
  /** The state has changed (also to null). */
  readonly stateChanged: ISignal<ILink, void>;
  /** One cell has changed: its id. '' when all have (after a reload or a kernel restart). */
  readonly cellChanged: ISignal<ILink, string>;
  /** What to add to Date.now() to get the kernel's clock, in milliseconds. */
  readonly clockOffset: number;
  /**
   * Ask the kernel's side. Never blocks a page; rejects with an Error whose message is for the user:
   * what the kernel's side said, or that the kernel is busy and can't be reached (ipykernel 6).
   */
  call<O extends Operation>(
    op: O,
    args: IOperations[O]['args'],
    timeout_ms?: number
  ): Promise<IOperations[O]['result']>;
  /** Interrupt all ranks: by request, or through the kernel's own interrupt where that can't be heard. */
  interrupt(): Promise<void>;
}

/** The notebooks of this page and their links. */
export interface IClusters {
  /** The link of the notebook that the user works in; null without one. */
  readonly current: ILink | null;
  readonly currentPanel: NotebookPanel | null;
  /** Another notebook is current, or its state has changed. */
  readonly changed: ISignal<IClusters, void>;
  linkOf(panel: NotebookPanel): ILink;
}

export const IClusters = new Token<IClusters>(
  'jaxcluster:IClusters',
  'The JAX clusters that the notebooks of this page are connected to.'
);

/** Settings, as schema/plugin.json has them. */
export interface ISettings {
  numProcesses: number;
  devicesPerProcess: number;
  autoShowPanel: boolean;
  badges: boolean;
}

/** The ids of all commands; commands.ts says what each does. */
export namespace CommandIDs {
  export const start = 'jaxcluster:start';
  export const stop = 'jaxcluster:stop';
  export const restart = 'jaxcluster:restart';
  export const resync = 'jaxcluster:resync';
  export const interrupt = 'jaxcluster:interrupt';
  export const attach = 'jaxcluster:attach';
  export const logs = 'jaxcluster:logs';
  export const stacks = 'jaxcluster:stacks';
  export const journal = 'jaxcluster:journal';
  export const toggleSpmd = 'jaxcluster:toggle-spmd';
  export const writeSpmd = 'jaxcluster:write-spmd';
  export const showClusters = 'jaxcluster:show-clusters';
  export const inspect = 'jaxcluster:inspect';
  export const showReport = 'jaxcluster:show-report';
  export const newNotebook = 'jaxcluster:new-notebook';
}
