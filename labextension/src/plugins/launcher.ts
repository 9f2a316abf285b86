import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import type { INotebookContent } from '@jupyterlab/nbformat';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { KernelSpec } from '@jupyterlab/services';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { UUID } from '@lumino/coreutils';
import { icon } from '../icon';
import { complain } from '../messages';
import { CommandIDs, IPreferences, type ISettings } from '../tokens';

/** What a new notebook begins with. */
export function firstCells({ numProcesses, devicesPerProcess }: ISettings): string[] {
  const devices = devicesPerProcess > 1 ? ` --devices-per-process ${devicesPerProcess}` : '';
  return [
    `%load_ext jaxcluster\n%jaxcluster start -n ${numProcesses}${devices}`,
    '%%spmd\n' +
      'import jax\n' +
      'import jax.numpy as jnp\n' +
      'from jax.sharding import NamedSharding, PartitionSpec as P\n' +
      '\n' +
      "mesh = jax.make_mesh((jax.device_count(),), ('x',))\n" +
      "across = NamedSharding(mesh, P('x'))\n" +
      'x = jax.jit(lambda: jnp.arange(8.0 * jax.device_count()), out_shardings=across)()\n' +
      'print(jax.process_index(), jax.local_devices(), x.sum())',
    '%shards x'
  ];
}

function content(settings: ISettings, spec: KernelSpec.ISpecModel | null): INotebookContent {
  return {
    cells: firstCells(settings).map(source => ({
      cell_type: 'code',
      id: UUID.uuid4().slice(0, 8),
      source,
      metadata: {},
      outputs: [],
      execution_count: null
    })),
    metadata: spec
      ? { kernelspec: { name: spec.name, display_name: spec.display_name } }
      : {},
    nbformat: 4,
    nbformat_minor: 5
  };
}

/** The server's default kernel if that is Python, else the first one that is. */
function pythonOf(specs: KernelSpec.ISpecModels | null): KernelSpec.ISpecModel | null {
  const all = Object.values(specs?.kernelspecs ?? {}).filter(spec => spec?.language === 'python');
  return all.find(spec => spec?.name === specs?.default) ?? all[0] ?? null;
}

/** The card "JAX cluster notebook": a notebook whose first cells start a cluster. */
export const launcher: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:launcher',
  description: 'Makes notebooks that start a cluster.',
  autoStart: true,
  requires: [IPreferences],
  optional: [ILauncher, IDefaultFileBrowser, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    preferences: IPreferences,
    cards: ILauncher | null,
    browser: IDefaultFileBrowser | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const make = async (path: string, settings: ISettings): Promise<unknown> => {
      const { contents, kernelspecs } = app.serviceManager;
      await kernelspecs.ready;
      const file = await contents.newUntitled({ path, type: 'notebook' });
      await contents.save(file.path, {
        type: 'notebook',
        format: 'json',
        content: content(settings, pythonOf(kernelspecs.specs))
      });
      return app.commands.execute('docmanager:open', { path: file.path, factory: 'Notebook' });
    };
    /** Run the first cell of a new notebook, which starts its cluster. */
    const runFirst = async (panel: NotebookPanel): Promise<void> => {
      await panel.context.ready;
      await panel.sessionContext.ready;
      panel.content.activeCellIndex = 0;
      await NotebookActions.run(panel.content, panel.sessionContext);
    };
    app.commands.addCommand(CommandIDs.newNotebook, {
      label: args =>
        args.isLauncher ? trans.__('JAX cluster notebook') : trans.__('New JAX Cluster Notebook'),
      caption: trans.__('A notebook whose first cells start a JAX cluster'),
      icon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            cwd: { type: 'string', description: trans.__('The folder for it.') },
            isLauncher: { type: 'boolean' },
            number: { type: 'number', description: trans.__('Of ranks; else as in the settings.') },
            run: { type: 'boolean', description: trans.__('Whether to start the cluster.') }
          }
        }
      },
      execute: async args => {
        const path = (args.cwd as string | undefined) ?? browser?.model.path ?? '';
        const number = args.number as number | undefined;
        const settings = { ...preferences.values, ...(number ? { numProcesses: number } : {}) };
        try {
          const panel = await make(path, settings);
          if (args.run) {
            await runFirst(panel as NotebookPanel);
          }
          return panel;
        } catch (error) {
          complain(error, trans);
        }
      }
    });
    cards?.add({
      command: CommandIDs.newNotebook,
      args: { isLauncher: true },
      category: trans.__('Notebook'),
      rank: 50,
      // A card of this category shows no icon of the command's.
      kernelIconUrl: `data:image/svg+xml;base64,${btoa(icon.svgstr)}`
    });
  }
};
