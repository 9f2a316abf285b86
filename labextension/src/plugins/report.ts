import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget, Notification } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { DockPanel } from '@lumino/widgets';
import * as React from 'react';
import { icon } from '../icon';
import { CommandIDs, IClusters, IPreferences } from '../tokens';
import { ReportView } from '../widgets/report';
import { View } from '../widgets/view';
import { place } from './place';

/** Says what was found on the ranks, and shows the finding in a panel of its notebook. */
export const report: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:report',
  description: 'Who was where when ranks diverged or died, and what can be done.',
  autoStart: true,
  requires: [INotebookTracker, IClusters, IPreferences],
  optional: [ILabShell, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    clusters: IClusters,
    preferences: IPreferences,
    lab: ILabShell | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const panels = new WeakMap<NotebookPanel, MainAreaWidget>();

    const make = (notebook: NotebookPanel): MainAreaWidget => {
      const link = clusters.linkOf(notebook);
      const showCell = (at: number): void => {
        app.shell.activateById(notebook.id);
        notebook.content.activeCellIndex = at;
        void notebook.content.scrollToItem(at);
      };
      const view = new View(() => {
        const found = link.state?.report ?? null;
        const at = notebook.content.widgets.findIndex(({ model }) => model.id === found?.cell_id);
        return React.createElement(ReportView, {
          report: found,
          trans,
          // The commands act on the current notebook; this panel is about one of its own.
          execute: (command: string) => {
            app.shell.activateById(notebook.id);
            void app.commands.execute(command);
          },
          onShow: at < 0 ? null : () => showCell(at)
        });
      });
      view.addClass('jxl-view');
      const panel = new MainAreaWidget({ content: view });
      const update = () => {
        const found = link.state?.report;
        const heading = found?.title ?? trans.__('Report');
        panel.title.label = trans.__('%1 in %2', heading, notebook.title.label);
        view.update();
      };
      link.stateChanged.connect(update);
      panel.id = `jaxcluster-report-${notebook.id}`;
      panel.title.icon = icon;
      panel.title.closable = true;
      update();
      panel.disposed.connect(() => link.stateChanged.disconnect(update));
      notebook.disposed.connect(() => panel.dispose());
      return panel;
    };

    /** `keepFocus`: what is typed meanwhile must not become commands of the notebook. */
    const show = (notebook: NotebookPanel, keepFocus = false): void => {
      let panel = panels.get(notebook);
      if (!panel || panel.isDisposed) {
        panel = make(notebook);
        panels.set(notebook, panel);
      }
      if (!panel.isAttached) {
        place(app, lab, panel, { ref: notebook.id, activate: false, type: 'JAX report' });
      }
      if (!keepFocus) {
        app.shell.activateById(panel.id);
      } else if (panel.parent instanceof DockPanel) {
        panel.parent.selectWidget(panel);
      }
    };

    app.commands.addCommand(CommandIDs.showReport, {
      label: trans.__('Show Report of What Went Wrong'),
      caption: trans.__('Who was where when ranks diverged or died, and what can be done'),
      icon,
      isEnabled: () => !!clusters.current?.state?.report,
      execute: () => {
        if (clusters.currentPanel) {
          show(clusters.currentPanel);
        }
      }
    });

    clusters.changed.connect(() => app.commands.notifyCommandChanged(CommandIDs.showReport));

    /** A finding that was there when the notebook was opened is not new. */
    const watch = (notebook: NotebookPanel): void => {
      const link = clusters.linkOf(notebook);
      let known = link.state?.report?.id ?? null;
      let first = link.state === null;
      let note = '';
      const onState = () => {
        const found = link.state?.report ?? null;
        if (link.state && (first || !found || found.id === known)) {
          first = false;
          known = found?.id ?? null;
          return;
        }
        if (!found) {
          first = true; // the kernel has gone: what the next one says at first is not new either
          return;
        }
        known = found.id;
        Notification.dismiss(note);
        // The report, and the cell, have it in full.
        const text = preferences.values.autoShowPanel ? found.title : found.lines[0];
        note = Notification.warning(`${notebook.title.label}: ${text}`, {
          autoClose: 20000,
          actions: [{ label: trans.__('Show'), callback: () => show(notebook), displayType: 'accent' }]
        });
        if (preferences.values.autoShowPanel) {
          show(notebook, true);
        }
      };
      link.stateChanged.connect(onState);
      notebook.disposed.connect(() => {
        link.stateChanged.disconnect(onState);
        Notification.dismiss(note);
      });
    };
    tracker.forEach(watch);
    tracker.widgetAdded.connect((_, notebook) => watch(notebook));
  }
};
