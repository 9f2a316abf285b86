import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { CommandIDs, IClusters } from '../tokens';
import { StatusItem } from '../widgets/toolbar';
import { View } from '../widgets/view';

/** The status bar's item: "JAX: 4/4 idle · SPMD". */
export const status: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:status',
  description: "The ranks' state in the status bar.",
  autoStart: true,
  requires: [IClusters],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ) => {
    if (!statusBar) {
      return; // Notebook 7 has none
    }
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const onClick = () => void app.commands.execute(CommandIDs.showClusters);
    const item = new View(() =>
      React.createElement(StatusItem, { state: clusters.current?.state ?? null, trans, onClick })
    );
    item.addClass('jp-mod-highlighted');
    clusters.changed.connect(() => item.update());
    statusBar.registerStatusItem('jaxcluster:status', {
      item,
      align: 'left',
      rank: 50,
      isActive: () => !!clusters.current?.state,
      activeStateChanged: clusters.changed
    });
  }
};
