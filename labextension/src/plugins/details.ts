import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILabShell } from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { SplitPanel } from '@lumino/widgets';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';
import type { IShow } from '../actions';
import { icon } from '../icon';
import { IClusters, IDetails } from '../tokens';
import { Arrays } from '../widgets/arrays';
import { Details } from '../widgets/details';
import { View } from '../widgets/view';

/** In Notebook 7 what is added below the notebook has no height. */
const open = (view: Widget): void => {
  let above: Widget | null = view.parent;
  while (above && !(above instanceof SplitPanel)) {
    above = above.parent;
  }
  above?.setRelativeSizes([2, 1]);
};

/** The panel below the notebook: the report, stacks, logs and arrays of the current one's cluster. */
export const details: JupyterFrontEndPlugin<IDetails> = {
  id: 'jaxcluster-labextension:details',
  description: 'One panel for the report, stacks, logs and arrays of a cluster.',
  autoStart: true,
  provides: IDetails,
  requires: [IClusters],
  optional: [ITranslator, ILabShell],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    translator: ITranslator | null,
    lab: ILabShell | null
  ): IDetails => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    let view: View | null = null;

    const showCell = (panel: NotebookPanel, cell_id: string): void => {
      const { content } = panel;
      const at = content.widgets.findIndex(({ model }) => model.id === cell_id);
      if (at >= 0) {
        app.shell.activateById(panel.id);
        content.activeCellIndex = at;
        void content.scrollToItem(at);
      }
    };

    const draw = (shown: IShow): JSX.Element => {
      const { current: store, currentPanel: panel } = clusters;
      if (!store || !panel) {
        return React.createElement('p', { className: 'jxl-empty' }, trans.__('No notebook is open.'));
      }
      return React.createElement(Details, {
        key: panel.id,
        store,
        shown,
        trans,
        execute: (action, args) => void app.commands.execute(`jaxcluster:${action}`, { ...args }),
        onShow: show,
        onCell: id => showCell(panel, id),
        arrays: React.createElement(Arrays, { store, trans })
      });
    };

    let shown: IShow;
    let notebook: string | undefined;
    const show = (wanted: IShow): void => {
      shown = wanted;
      if (!view || view.isDisposed) {
        view = new View(() => draw(shown));
        view.id = 'jaxcluster-details';
        view.title.label = trans.__('JAX cluster');
        view.title.icon = icon;
        view.title.closable = true;
        view.addClass('jxl-view');
        app.shell.add(view, 'down');
        if (!lab) {
          open(view);
        }
      }
      view.update();
      app.shell.activateById(view.id);
    };
    // What a tab shows follows its store; here another notebook is followed.
    clusters.changed.connect(() => {
      if (clusters.currentPanel?.id !== notebook) {
        notebook = clusters.currentPanel?.id;
        view?.update();
      }
    });
    return { show };
  }
};
