import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';
import { IPreferences, type ISettings } from '../tokens';

const ID = 'jaxcluster-labextension:plugin';

/** As in schema/plugin.json. */
const DEFAULTS: ISettings = {
  numProcesses: 4,
  devicesPerProcess: 1,
  badges: true
};

class Preferences implements IPreferences {
  private stored: ISettingRegistry.ISettings | null = null;
  readonly changed = new Signal<this, void>(this);

  get values(): ISettings {
    return { ...DEFAULTS, ...(this.stored?.composite as Partial<ISettings> | undefined) };
  }

  use(stored: ISettingRegistry.ISettings): void {
    this.stored = stored;
    stored.changed.connect(() => this.changed.emit());
    this.changed.emit();
  }
}

/** The user's settings. */
export const settings: JupyterFrontEndPlugin<IPreferences> = {
  id: ID,
  description: "Provides the settings of jaxcluster's extension.",
  autoStart: true,
  provides: IPreferences,
  optional: [ISettingRegistry],
  activate: (_, registry: ISettingRegistry | null): IPreferences => {
    const preferences = new Preferences();
    registry
      ?.load(ID)
      .then(stored => preferences.use(stored))
      .catch(error => console.error('jaxcluster: its settings could not be read', error));
    return preferences;
  }
};
