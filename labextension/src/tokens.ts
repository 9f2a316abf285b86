/** What the plugins share. */

import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { NotebookPanel } from '@jupyterlab/notebook';
export { CommandIDs } from './commandIds';
import type { ICell, IOperations, IRankUse, IState, Operation } from './protocol';

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
  /** What each rank uses, while somebody watches it. */
  readonly resources: readonly IRankUse[];
  readonly resourcesChanged: ISignal<ILink, void>;
  /** Have `resources` kept fresh until what is returned is disposed of. */
  watchResources(): IDisposable;
  /** What to add to Date.now() to get the kernel's clock, in milliseconds. */
  readonly clockOffset: number;
  /**
   * Ask the kernel's side. Never blocks a page; rejects with an Error whose message is for the user:
   * what the kernel's side said, or that the kernel is busy and can't be reached (ipykernel 6).
   */
  call<O extends Operation>(op: O, args: IOperations[O]['args']): Promise<IOperations[O]['result']>;
  /**
   * Interrupt all ranks, or cancel a start: by request, or through the kernel's own interrupt where that
   * can't be heard.
   */
  interrupt(op?: 'interrupt' | 'cancel'): Promise<void>;
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
  badges: boolean;
}

/** The user's settings as they are now. Defaults where Jupyter keeps no settings. */
export interface IPreferences {
  readonly values: ISettings;
  readonly changed: ISignal<IPreferences, void>;
  set<K extends keyof ISettings>(key: K, value: ISettings[K]): Promise<void>;
}

export const IPreferences = new Token<IPreferences>(
  'jaxcluster:IPreferences',
  "The settings of jaxcluster's extension."
);
