import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import * as React from 'react';
import { CommandIDs, IClusters, IServerClusters } from '../tokens';
import { icon } from '../icon';
import { Sidebar } from '../widgets/sidebar';
import { View } from '../widgets/view';

/** The sidebar "JAX clusters". */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:sidebar',
  description: 'The JAX clusters, and what each rank of the current one does.',
  autoStart: true,
  requires: [IClusters],
  optional: [IServerClusters, ITranslator, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    server: IServerClusters | null,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const execute = (command: string, args?: { [key: string]: string | number }) => {
      void app.commands.execute(command, args);
    };
    const load = (panel: NotebookPanel) => () => {
      NotebookActions.insertAbove(panel.content);
      panel.content.activeCell?.model.sharedModel.setSource('%load_ext jaxcluster');
      void NotebookActions.run(panel.content, panel.sessionContext);
    };

    const view = new View(ticker => {
      const panel = clusters.currentPanel;
      return React.createElement(Sidebar, {
        notebook: panel?.title.label ?? null,
        state: clusters.current?.state ?? null,
        clockOffset: clusters.current?.clockOffset ?? 0,
        server: server?.clusters ?? [],
        ticker,
        trans,
        execute,
        load: panel ? load(panel) : null
      });
    });
    view.id = 'jaxcluster-sidebar';
    view.title.icon = icon;
    view.title.caption = trans.__('JAX clusters');
    view.addClass('jxl-view');
    view.node.setAttribute('role', 'region');
    view.node.setAttribute('aria-label', trans.__('JAX clusters'));

    clusters.changed.connect(() => view.update());
    server?.changed.connect(() => view.update());
    // The server is asked only while somebody looks.
    let watching: IDisposable | null = null;
    view.visibilityChanged.connect((_, visible) => {
      watching?.dispose();
      watching = visible ? (server?.watch() ?? null) : null;
    });

    app.shell.add(view, 'right', { rank: 900, type: 'JAX clusters' });
    restorer?.add(view, view.id);
    app.commands.addCommand(CommandIDs.showClusters, {
      label: trans.__('Show JAX Clusters'),
      caption: trans.__('The clusters, and what each rank does'),
      icon,
      execute: () => app.shell.activateById(view.id)
    });
  }
};
