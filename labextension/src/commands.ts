/** What can be done with the current notebook's cluster, each as a command. */

import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  linkIcon,
  listIcon,
  refreshIcon,
  runIcon,
  stopIcon,
  textEditorIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { JSONObject, ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { complain, say, takeBack } from './messages';
import { showPanel } from './panels';
import type { IState } from './protocol';
import { runStart, writeMode } from './startCell';
import {
  CommandIDs,
  type IClusters,
  type ILink,
  type IPreferences
} from './tokens';
import { isBusy } from './widgets/labels';
import { askStart } from './widgets/startForm';
import type { Widget } from '@lumino/widgets';
import { LogPanel } from './widgets/logPanel';
import { StacksPanel } from './widgets/stacksPanel';

type Args = ReadonlyPartialJSONObject;

interface IParts {
  app: JupyterFrontEnd;
  /** Null in Notebook 7. */
  lab: ILabShell | null;
  clusters: IClusters;
  preferences: IPreferences;
  trans: TranslationBundle;
}

interface ICommand extends Omit<CommandRegistry.ICommandOptions, 'execute' | 'describedBy'> {
  /** Its errors are told to the user, as the kernel worded them. */
  execute: (args: Args) => Promise<void>;
  args?: JSONObject;
  icon?: LabIcon;
}

/** Add all commands but those that show a panel; each panel's plugin adds its own. */
export function addCommands(parts: IParts): void {
  const { app, clusters, trans } = parts;
  const state = (): IState | null => clusters.current?.state ?? null;
  const hasCluster = (): boolean => !!state()?.current;
  const added: string[] = [];

  const add = (id: string, { args = {}, execute, ...options }: ICommand): void => {
    app.commands.addCommand(id, {
      ...options,
      describedBy: { args: { type: 'object', properties: args } },
      execute: given => {
        takeBack();
        return execute(given).catch(error => complain(error, trans));
      }
    });
    added.push(id);
  };

  add(CommandIDs.start, {
    label: trans.__('Start JAX Cluster…'),
    caption: trans.__('Start a cluster for this notebook'),
    icon: runIcon,
    args: {
      line: {
        type: 'string',
        description: trans.__('What follows %jaxcluster start. Without it a form asks.')
      },
      cell: {
        type: 'boolean',
        description: trans.__('Write the line into a cell of the notebook, and run that.')
      }
    },
    isEnabled: () => clusters.current !== null && !hasCluster(),
    execute: async args => {
      const link = linkOf(clusters);
      const { numProcesses, devicesPerProcess } = parts.preferences.values;
      const defaults = {
        numProcesses: String(numProcesses),
        devicesPerProcess: devicesPerProcess > 1 ? String(devicesPerProcess) : ''
      };
      const line = args.line as string | undefined;
      const wanted = line === undefined ? await askStart(defaults, trans) : { line, inCell: args.cell === true };
      const panel = clusters.currentPanel;
      if (wanted?.inCell && panel && panel.content.model?.readOnly === false) {
        await runStart(panel, wanted.line);
      } else if (wanted) {
        say(await link.call('start', { line: wanted.line }));
      }
    }
  });

  const failed = (): boolean => !!state()?.start?.failure;
  const isStarting = (): boolean => !!state()?.start && !failed();

  add(CommandIDs.startAgain, {
    label: trans.__('Start JAX Cluster Again'),
    caption: trans.__('Try the failed start again'),
    icon: runIcon,
    args: { on_cpu: { type: 'boolean', description: trans.__('On CPU this time.') } },
    isEnabled: failed,
    execute: async args =>
      say(await linkOf(clusters).call('again', { on_cpu: args.on_cpu === true }))
  });

  add(CommandIDs.cancelStart, {
    label: trans.__('Cancel Start of JAX Cluster'),
    caption: trans.__('End the start, and all that it has started'),
    icon: stopIcon,
    isEnabled: isStarting,
    execute: () => linkOf(clusters).interrupt('cancel')
  });

  add(CommandIDs.dismissStart, {
    label: trans.__('Dismiss Failed Start'),
    isEnabled: failed,
    execute: async () => {
      await linkOf(clusters).call('dismiss', {});
    }
  });

  add(CommandIDs.stop, {
    label: trans.__('Stop JAX Cluster…'),
    caption: trans.__('End the ranks and all that they hold'),
    icon: stopIcon,
    args: {
      name: { type: 'string', description: trans.__("The notebook's own when left out.") }
    },
    isEnabled: args => hasCluster() || (!!args.name && state() !== null),
    execute: async args => {
      const link = linkOf(clusters);
      const name = (args.name as string | undefined) ?? link.state?.current;
      if (!name) {
        return;
      }
      const sure = await confirm(
        trans.__('Stop JAX cluster %1?', name),
        trans.__('Its ranks end, and all that they hold is lost.'),
        trans.__('Stop'),
        trans
      );
      if (sure) {
        say(await link.call('stop', { name }));
      }
    }
  });

  add(CommandIDs.restart, {
    label: trans.__('Restart Ranks…'),
    caption: trans.__('New processes for all ranks, with the variables of the old ones'),
    icon: refreshIcon,
    args: {
      clean: { type: 'boolean', description: trans.__('Leave the variables behind.') }
    },
    isEnabled: hasCluster,
    execute: async args => {
      const link = linkOf(clusters);
      const { button, isChecked } = await showDialog({
        title: trans.__('Restart the ranks of %1?', link.state?.current ?? ''),
        body: trans.__('A running cell ends. Variables are kept as far as they can be.'),
        checkbox: {
          label: trans.__('Clean: keep no variables'),
          checked: args.clean === true
        },
        buttons: [
          Dialog.cancelButton({ label: trans.__('Cancel') }),
          Dialog.warnButton({ label: trans.__('Restart') })
        ]
      });
      if (button.accept) {
        say(await link.call('restart', { clean: isChecked ?? false }));
      }
    }
  });

  add(CommandIDs.interrupt, {
    label: trans.__('Interrupt All Ranks'),
    caption: trans.__('Stop the running cell on every rank'),
    icon: stopIcon,
    isEnabled: () => hasCluster() && isBusy(state()),
    execute: () => linkOf(clusters).interrupt()
  });

  add(CommandIDs.attach, {
    icon: linkIcon,
    label: trans.__('Attach to JAX Cluster…'),
    caption: trans.__('Use a running cluster'),
    args: { name: { type: 'string', description: trans.__('Asked for when left out.') } },
    isEnabled: () => others(state()).length > 0,
    execute: async args => {
      const link = linkOf(clusters);
      const name =
        (args.name as string | undefined) ??
        (
          await InputDialog.getItem({
            title: trans.__('Attach to JAX cluster'),
            label: trans.__('Cluster'),
            items: others(link.state)
          })
        ).value;
      if (name) {
        say(await link.call('attach', { name }));
      }
    }
  });

  add(CommandIDs.use, {
    label: trans.__('Use JAX Cluster…'),
    caption: trans.__('Run the cells of this notebook on another cluster'),
    args: { name: { type: 'string', description: trans.__('Asked for when left out.') } },
    isEnabled: () => unused(state()).length > 0,
    execute: async args => {
      const link = linkOf(clusters);
      const name =
        (args.name as string | undefined) ??
        (
          await InputDialog.getItem({
            title: trans.__('Use JAX cluster'),
            label: trans.__('Cluster'),
            items: unused(link.state)
          })
        ).value;
      if (name) {
        say(await link.call('use', { name }));
      }
    }
  });

  add(CommandIDs.toggleSpmd, {
    label: trans.__('Run Every Cell on All Ranks'),
    caption: trans.__('SPMD mode: every following cell is an %1 cell', '%%spmd'),
    isEnabled: () => state() !== null,
    isToggleable: true,
    isToggled: () => state()?.spmd ?? false,
    execute: async () => {
      const link = linkOf(clusters);
      const panel = clusters.currentPanel;
      const on = !link.state?.spmd;
      await link.call('auto', { on });
      if (panel && !panel.isDisposed) {
        writeMode(panel, on); // for nbclient and papermill, which know of no metadata
      }
    }
  });

  const show = <P extends Widget>(kind: string, make: () => P): P => {
    const notebook = clusters.currentPanel?.id;
    return showPanel(app, parts.lab, `jaxcluster-${kind}-${notebook}`, notebook, make);
  };

  add(CommandIDs.logs, {
    icon: textEditorIcon,
    label: trans.__('Show Logs'),
    caption: trans.__('What the ranks have logged: followed, searched, by rank'),
    args: { rank: { type: 'number', description: trans.__('All when left out.') } },
    isEnabled: hasCluster,
    execute: async args => {
      const link = linkOf(clusters);
      const panel = show('logs', () => new LogPanel(link, trans));
      panel.showRank((args.rank as number | undefined) ?? null);
    }
  });

  add(CommandIDs.stacks, {
    icon: listIcon,
    label: trans.__('Show Stacks'),
    caption: trans.__('Where every rank is just now'),
    isEnabled: hasCluster,
    execute: async () => {
      const link = linkOf(clusters);
      await show('stacks', () => new StacksPanel(link, trans)).refresh();
    }
  });

  let current: string | null = null;
  clusters.changed.connect(() => {
    const now = state()?.current ?? null;
    if (now !== current && now !== null) {
      takeBack(); // there is a cluster after all
    }
    current = now;
    for (const id of added) {
      app.commands.notifyCommandChanged(id);
    }
  });
}

function linkOf(clusters: IClusters): ILink {
  if (!clusters.current) {
    throw new Error('No notebook is open.');
  }
  return clusters.current;
}

/** The clusters that this notebook could be attached to. */
function others(state: IState | null): string[] {
  return (state?.clusters ?? []).filter(c => !c.connected).map(c => c.name);
}

/** The clusters that this notebook's cells don't run on. */
function unused(state: IState | null): string[] {
  return (state?.clusters ?? []).filter(c => c.name !== state?.current).map(c => c.name);
}

async function confirm(
  title: string,
  body: string,
  label: string,
  trans: TranslationBundle
): Promise<boolean> {
  const { button } = await showDialog({
    title,
    body,
    buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.warnButton({ label })]
  });
  return button.accept;
}
