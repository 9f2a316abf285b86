import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { addCommands } from '../commands';
import { CommandIDs, IClusters, IPreferences } from '../tokens';

/** All commands, in the palette; schema/plugin.json puts them into the menu and on keys. */
export const commands: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:commands',
  description: 'What can be done with a JAX cluster, as commands.',
  autoStart: true,
  requires: [IClusters, IPreferences],
  optional: [ILabShell, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    lab: ILabShell | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    addCommands({ app, lab, clusters, preferences, trans });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: trans.__('JAX cluster') });
    }
  }
};
