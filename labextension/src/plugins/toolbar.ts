import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { CommandIDs, IClusters } from '../tokens';
import { SpmdSwitch, StateChip } from '../widgets/toolbar';
import { View } from '../widgets/view';

/** The notebook toolbar's SPMD switch and state chip; schema/plugin.json says where they stand. */
export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:toolbar',
  description: "A switch for SPMD mode and the ranks' state in the notebook's toolbar.",
  autoStart: true,
  requires: [IClusters, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    registry: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const add = (name: string, part: typeof StateChip, command: string) =>
      registry.addFactory<NotebookPanel>('Notebook', name, panel => {
        const link = clusters.linkOf(panel);
        const onClick = () => void app.commands.execute(command);
        const view = new View(() =>
          React.createElement(part, { state: link.state, trans, onClick })
        );
        view.addClass('jxl-toolbarItem');
        const update = () => view.update();
        link.stateChanged.connect(update);
        view.disposed.connect(() => link.stateChanged.disconnect(update));
        return view;
      });
    add('jaxcluster-spmd', SpmdSwitch, CommandIDs.toggleSpmd);
    add('jaxcluster-state', StateChip, CommandIDs.showClusters);
  }
};
