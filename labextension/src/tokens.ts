/** What the plugins share. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
import type { IShow } from './actions';
import type { Store } from './store';

/** The notebooks of this page and their stores. */
export interface IClusters {
  /** The store of the notebook that the user works in; null without one. */
  readonly current: Store | null;
  readonly currentPanel: NotebookPanel | null;
  /** Another notebook is current, or its state has changed. */
  readonly changed: ISignal<IClusters, void>;
  storeOf(panel: NotebookPanel): Store;
  /** Call this with each notebook that is there, and that comes, once its cells are. */
  each(add: (panel: NotebookPanel, store: Store) => void): void;
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
}

export const IPreferences = new Token<IPreferences>(
  'jaxcluster:IPreferences',
  "The settings of jaxcluster's extension."
);

/** The panel with tabs. */
export interface IDetails {
  /** Open it at a tab. */
  show(shown: IShow): void;
}

export const IDetails = new Token<IDetails>(
  'jaxcluster:IDetails',
  'The panel for the report, stacks, logs and arrays of a cluster.'
);
