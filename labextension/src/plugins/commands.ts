import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { actionsIn, type Args, type Call, type IQuestion, type IShow } from '../actions';
import { complain, say } from '../messages';
import { writeMode, runStart } from '../startCell';
import type { Store } from '../store';
import { IClusters, IDetails, IPreferences } from '../tokens';
import { askStart } from '../widgets/startForm';

/** All commands, in the palette; schema/plugin.json puts them into the menu and on keys. */
export const commands: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:commands',
  description: 'What can be done with a JAX cluster, as commands.',
  autoStart: true,
  requires: [IClusters, IPreferences, IDetails],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    details: IDetails,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const added: string[] = [];
    const state = () => clusters.current?.state ?? null;

    const add = (
      name: string,
      options: Partial<CommandRegistry.ICommandOptions>,
      execute: (args: Args) => Promise<unknown>
    ): void => {
      const command = `jaxcluster:${name}`;
      app.commands.addCommand(command, {
        ...options,
        describedBy: { args: { type: 'object', properties: {} } },
        execute: args => execute(args as Args).catch(error => complain(error, trans))
      });
      added.push(command);
      palette?.addItem({ command, category: trans.__('JAX cluster') });
    };

    const perform = async (store: Store, deed: Call | IQuestion | IShow): Promise<void> => {
      if ('tab' in deed) {
        details.show(deed);
      } else if ('answers' in deed) {
        const { title, body, answers } = deed;
        const buttons = answers.map(({ label }) => Dialog.warnButton({ label }));
        const cancel = Dialog.cancelButton({ label: trans.__('Cancel') });
        const { button } = await showDialog({ title, body, buttons: [cancel, ...buttons] });
        const chosen = answers.find(({ label }) => button.accept && label === button.label);
        if (chosen) {
          await perform(store, chosen.call);
        }
      } else if (deed.op === 'interrupt' || deed.op === 'cancel') {
        await store.interrupt(deed.op);
      } else {
        const told = await store.call(deed.op, deed.args);
        if (typeof told === 'string') {
          say(told);
        }
      }
    };

    for (const [name, { label, caption, can, does }] of Object.entries(actionsIn(trans))) {
      const isEnabled = (args: object) => state() !== null && can(state()!, args as Args);
      add(name, { label, caption, isEnabled }, async args => {
        const store = clusters.current;
        await (store?.state && perform(store, does(store.state, args)));
      });
    }

    add(
      'start',
      {
        label: trans.__('Start JAX Cluster…'),
        caption: trans.__('Start a cluster for this notebook'),
        isEnabled: () => clusters.current !== null && !state()?.current
      },
      async () => {
        const { current: store, currentPanel: panel } = clusters;
        const { numProcesses, devicesPerProcess } = preferences.values;
        const line = await askStart(
          {
            numProcesses: String(numProcesses),
            devicesPerProcess: devicesPerProcess > 1 ? String(devicesPerProcess) : ''
          },
          trans
        );
        if (line !== null && panel?.content.model?.readOnly === false) {
          await runStart(panel, line);
        } else if (line !== null && store) {
          say(await store.call('start', { line }));
        }
      }
    );

    add(
      'toggle-spmd',
      {
        label: trans.__('Run Every Cell on All Ranks'),
        caption: trans.__('SPMD mode: every following cell is an %1 cell', '%%spmd'),
        isEnabled: () => state() !== null,
        isToggleable: true,
        isToggled: () => state()?.spmd ?? false
      },
      async () => {
        const { current: store, currentPanel: panel } = clusters;
        const on = !store?.state?.spmd;
        await store?.call('auto', { on });
        if (panel && !panel.isDisposed) {
          writeMode(panel, on); // the text is all that nbclient and papermill know of
        }
      }
    );

    clusters.changed.connect(() => added.forEach(id => app.commands.notifyCommandChanged(id)));
  }
};
