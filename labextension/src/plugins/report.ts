import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { icon } from '../icon';
import { showPanel } from '../panels';
import { CommandIDs, IClusters } from '../tokens';
import { ReportView } from '../widgets/report';
import { View } from '../widgets/view';

/** Shows what was found on the ranks in a panel of their notebook. */
export const report: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:report',
  description: 'What went wrong on the ranks, and what can be done.',
  autoStart: true,
  requires: [IClusters],
  optional: [ILabShell, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    lab: ILabShell | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
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
      panel.title.icon = icon;
      panel.title.closable = true;
      update();
      panel.disposed.connect(() => link.stateChanged.disconnect(update));
      notebook.disposed.connect(() => panel.dispose());
      return panel;
    };

    app.commands.addCommand(CommandIDs.showReport, {
      label: trans.__('Show Report of What Went Wrong'),
      caption: trans.__('What went wrong on the ranks, and what can be done'),
      icon,
      isEnabled: () => !!clusters.current?.state?.report,
      execute: () => {
        const notebook = clusters.currentPanel;
        if (notebook) {
          showPanel(app, lab, `jaxcluster-report-${notebook.id}`, notebook.id, () => make(notebook));
        }
      }
    });

    clusters.changed.connect(() => app.commands.notifyCommandChanged(CommandIDs.showReport));
  }
};
