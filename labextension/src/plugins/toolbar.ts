import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { complain } from '../messages';
import { mentions, numberFor, startWith } from '../startCell';
import type { Store } from '../store';
import { IClusters, IPreferences } from '../tokens';
import { SpmdSwitch, StateChip } from '../widgets/toolbar';
import { View } from '../widgets/view';

const SOON_MS = 300;

/** The notebook toolbar's SPMD switch and state chip; schema/plugin.json says where they stand. */
export const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:toolbar',
  description: "A switch for SPMD mode and the ranks' state in the toolbar of notebooks that use jaxcluster.",
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
    const add = (name: string, make: (panel: NotebookPanel, store: Store) => JSX.Element) =>
      registry.addFactory<NotebookPanel>('Notebook', name, panel => {
        const store = clusters.storeOf(panel);
        const uses = () => store.state !== null || mentions(panel);
        const view = new View(() => (uses() ? make(panel, store) : null));
        view.addClass('jxl-toolbarItem');
        const update = () => view.isDisposed || view.update();
        let timer: ReturnType<typeof setTimeout> | undefined;
        const soon = () => {
          clearTimeout(timer);
          timer = setTimeout(update, SOON_MS); // a letter that is typed changes the notebook, too
        };
        const unlisten = store.listen(before => before.state === store.state || update());
        panel.content.modelContentChanged.connect(soon);
        void panel.context.ready.then(update);
        view.disposed.connect(() => {
          unlisten();
          clearTimeout(timer);
        });
        return view;
      });
    const does = (command: string) => () => void app.commands.execute(command);

    add('jaxcluster-spmd', (_, store) =>
      React.createElement(SpmdSwitch, { store, trans, onClick: does('jaxcluster:toggle-spmd') })
    );
    add('jaxcluster-state', (panel, store) =>
      React.createElement(StateChip, {
        store,
        trans,
        number: numberFor(panel, preferences.values),
        onStart: number => {
          startWith(panel, number, preferences.values, store.state !== null).catch(error =>
            complain(error, trans)
          );
        },
        onClick: does('jaxcluster:show-clusters')
      })
    );
  }
};
