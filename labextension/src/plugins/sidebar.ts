import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import * as React from 'react';
import { Menu } from '@lumino/widgets';
import { complain } from '../messages';
import { load, numberFor, startWith } from '../startCell';
import { CommandIDs, IClusters, IPreferences, type ILink } from '../tokens';
import type { IUses } from '../widgets/resources';
import { icon } from '../icon';
import { Sidebar } from '../widgets/sidebar';
import { View } from '../widgets/view';

/** What the menu has, of which it shows what can be done now. */
const MENU = [
  [CommandIDs.showReport, CommandIDs.stacks, CommandIDs.logs, CommandIDs.inspect],
  [CommandIDs.interrupt, CommandIDs.restart]
];

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
    const execute = (command: string, args?: { [key: string]: string | number | boolean }) => {
      void app.commands.execute(command, args);
    };
    /** The link of the notebook that is shown. */
    const uses: IUses = {
      all: () => clusters.current?.resources,
      listen: listener => {
        listeners.add(listener);
        return () => listeners.delete(listener);
      }
    };
    const listeners = new Set<() => void>();
    const used = () => listeners.forEach(listener => listener());

    const openMenu = (anchor: HTMLElement): void => {
      const menu = new Menu({ commands: app.commands });
      menu.addClass('jxl-menu');
      // What can't be done now is not offered.
      for (const group of MENU) {
        const enabled = group.filter(command => app.commands.isEnabled(command));
        if (enabled.length && menu.items.length) {
          menu.addItem({ type: 'separator' });
        }
        enabled.forEach(command => menu.addItem({ command }));
      }
      const { left, bottom } = anchor.getBoundingClientRect();
      menu.aboutToClose.connect(() => anchor.focus());
      menu.open(left, bottom);
    };

    const start = (number: number): void => {
      const { currentPanel: panel, current: link } = clusters;
      const made = panel ?? newNotebook(app);
      Promise.resolve(made)
        .then(found => startWith(found, number, preferences.values, !!link?.state))
        .catch(error => complain(error, trans));
    };

    const view = new View(ticker => {
      const panel = clusters.currentPanel;
      const { values } = preferences;
      const number = panel ? numberFor(panel, values) : values.numProcesses;
      return React.createElement(Sidebar, {
        notebook: panel?.title.label ?? null,
        state: clusters.current?.state ?? null,
        clockOffset: clusters.current?.clockOffset ?? 0,
        ticker,
        trans,
        execute,
        uses,
        openMenu,
        number: number ?? values.numProcesses,
        onStart: number === null ? null : start,
        hasForm: true,
        load: panel ? () => void load(panel) : null
      });
    });
    view.id = 'jaxcluster-sidebar';
    view.title.icon = icon;
    view.title.caption = trans.__('JAX clusters');
    view.addClass('jxl-view');
    view.node.setAttribute('role', 'region');
    view.node.setAttribute('aria-label', trans.__('JAX clusters'));

    clusters.changed.connect(() => view.update());
    // What the ranks use is wanted of the notebook that is shown, while it can be seen.
    let watched: ILink | null = null;
    let watching: IDisposable | null = null;
    let isVisible = false;
    const watch = (): void => {
      const seen = isVisible && document.visibilityState === 'visible';
      const link = seen ? clusters.current : null;
      if (link !== watched) {
        watching?.dispose();
        watched?.resourcesChanged.disconnect(used);
        watched = link;
        link?.resourcesChanged.connect(used);
        watching = link?.watchResources() ?? null;
        used();
      }
    };
    clusters.changed.connect(watch);
    document.addEventListener('visibilitychange', watch);
    view.visibilityChanged.connect((_, visible) => {
      isVisible = visible;
      watch();
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
