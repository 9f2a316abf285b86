import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { PageConfig } from '@jupyterlab/coreutils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { Link } from '../link';
import type { Store } from '../store';
import { IClusters } from '../tokens';

class Clusters implements IClusters {
  /** By notebook: two views of one are one kernel. */
  private readonly links = new Map<NotebookPanel['context'], Link>();
  private shown: Store | null = null;
  private unlisten = () => {};
  readonly changed = new Signal<this, void>(this);

  constructor(private readonly tracker: INotebookTracker) {
    tracker.forEach(panel => this.storeOf(panel));
    tracker.widgetAdded.connect((_, panel) => this.storeOf(panel));
    tracker.currentChanged.connect(() => this.follow());
    this.follow();
  }

  get current(): Store | null {
    return this.shown;
  }

  get currentPanel(): NotebookPanel | null {
    return this.tracker.currentWidget;
  }

  storeOf(panel: NotebookPanel): Store {
    const { context } = panel;
    const known = this.links.get(context);
    if (known) {
      return known;
    }
    const link = new Link(context.sessionContext);
    this.links.set(context, link);
    context.disposed.connect(() => {
      this.links.delete(context);
      link.dispose();
      this.follow();
    });
    return link;
  }

  each(add: (panel: NotebookPanel, store: Store) => void): void {
    const ready = (panel: NotebookPanel) =>
      void panel.context.ready.then(() => panel.isDisposed || add(panel, this.storeOf(panel)));
    this.tracker.forEach(ready);
    this.tracker.widgetAdded.connect((_, panel) => ready(panel));
  }

  private follow(): void {
    const panel = this.tracker.currentWidget;
    const store = panel && !panel.isDisposed ? this.storeOf(panel) : null;
    if (store !== this.shown) {
      this.unlisten();
      this.shown = store;
      const told = store?.listen(before => before.state !== store.state && this.changed.emit());
      this.unlisten = told ?? (() => {});
      this.changed.emit();
    }
  }
}

/** The connection to each notebook's kernel. */
export const links: JupyterFrontEndPlugin<IClusters> = {
  id: 'jaxcluster-labextension:links',
  description: "Provides the connections to the notebooks' kernels.",
  autoStart: true,
  requires: [INotebookTracker],
  provides: IClusters,
  activate: (_, tracker: INotebookTracker): IClusters => {
    const clusters = new Clusters(tracker);
    if (PageConfig.getOption('exposeAppInBrowser').toLowerCase() === 'true') {
      // As the application itself is, for tests and for looking into it.
      Object.assign(window, { jaxcluster: clusters });
    }
    return clusters;
  }
};
