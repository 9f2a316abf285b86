import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { complain } from '../messages';
import { numberFor, startWith } from '../startCell';
import { CommandIDs, IClusters, IPreferences, type ILink } from '../tokens';
import { SpmdSwitch, StateChip } from '../widgets/toolbar';
import { View } from '../widgets/view';

/** The notebook toolbar's SPMD switch and state chip; schema/plugin.json says where they stand. */
export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:toolbar',
  description: "A switch for SPMD mode and the ranks' state in the notebook's toolbar.",
  autoStart: true,
  requires: [IClusters, IPreferences, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    registry: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const add = (name: string, make: (panel: NotebookPanel, link: ILink) => React.ReactElement) =>
      registry.addFactory<NotebookPanel>('Notebook', name, panel => {
        const link = clusters.linkOf(panel);
        const view = new View(() => make(panel, link));
        view.addClass('jxl-toolbarItem');
        const update = () => view.update();
        link.stateChanged.connect(update);
        panel.sessionContext.kernelChanged.connect(update);
        void panel.context.ready.then(update);
        view.disposed.connect(() => {
          link.stateChanged.disconnect(update);
          panel.sessionContext.kernelChanged.disconnect(update);
        });
        return view;
      });
    const does = (command: string) => () => void app.commands.execute(command);

    const start = (panel: NotebookPanel, link: ILink) => (number: number) => {
      const { values } = preferences;
      startWith(panel, number, values, link.state !== null).catch(error => complain(error, trans));
    };

    add('jaxcluster-spmd', (_, { state }) =>
      React.createElement(SpmdSwitch, { state, trans, onClick: does(CommandIDs.toggleSpmd) })
    );
    add('jaxcluster-state', (panel, link) =>
      React.createElement(StateChip, {
        state: link.state,
        trans,
        number: numberFor(panel, preferences.values),
        onStart: start(panel, link),
        onClick: does(CommandIDs.showClusters)
      })
    );
  }
};
