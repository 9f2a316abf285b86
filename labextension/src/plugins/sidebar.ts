import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { icon } from '../icon';
import { complain } from '../messages';
import { load, numberFor, startWith } from '../startCell';
import { IClusters, IPreferences } from '../tokens';
import { Sidebar } from '../widgets/sidebar';
import { View } from '../widgets/view';

/** A new notebook, whose kernel is ready. */
async function newNotebook({ commands, serviceManager }: JupyterFrontEnd): Promise<NotebookPanel> {
  const kernelName = serviceManager.kernelspecs.specs?.default;
  const panel: NotebookPanel = await commands.execute('notebook:create-new', { kernelName });
  await panel.context.ready;
  await panel.sessionContext.ready;
  return panel;
}

/** The sidebar "JAX clusters". */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:sidebar',
  description: 'The JAX clusters, and what each rank of the current one does.',
  autoStart: true,
  requires: [IClusters, IPreferences],
  optional: [ITranslator, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');

    const start = (number: number): void => {
      const { currentPanel: panel, current: store } = clusters;
      Promise.resolve(panel ?? newNotebook(app))
        .then(made => startWith(made, number, preferences.values, !!store?.state))
        .catch(error => complain(error, trans));
    };

    const view = new View(() => {
      const { currentPanel: panel, current: store } = clusters;
      const { values } = preferences;
      const number = panel ? numberFor(panel, values) : values.numProcesses;
      return React.createElement(Sidebar, {
        notebook: panel?.title.label ?? null,
        store,
        trans,
        execute: (action, args) => void app.commands.execute(`jaxcluster:${action}`, { ...args }),
        number: number ?? values.numProcesses,
        onStart: number === null ? null : start,
        onForm: () => void app.commands.execute('jaxcluster:start'),
        onLoad: panel ? () => void load(panel) : null
      });
    });
    view.id = 'jaxcluster-sidebar';
    view.title.icon = icon;
    view.title.caption = trans.__('JAX clusters');
    view.addClass('jxl-view');
    view.node.setAttribute('role', 'region');
    view.node.setAttribute('aria-label', trans.__('JAX clusters'));
    clusters.changed.connect(() => view.update());

    app.shell.add(view, 'right', { rank: 900, type: 'JAX clusters' });
    restorer?.add(view, view.id);
    app.commands.addCommand('jaxcluster:show-clusters', {
      label: trans.__('Show JAX Clusters'),
      caption: trans.__('Show the clusters and what each rank does'),
      icon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(view.id)
    });
  }
};
