import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { PageConfig } from '@jupyterlab/coreutils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { Link } from '../connection';
import { IClusters, type ILink } from '../tokens';

interface IEntry {
  link: Link;
  panels: Set<NotebookPanel>;
}

class Clusters implements IClusters {
  /** By notebook: two views of one are one kernel. */
  private readonly links = new Map<NotebookPanel['context'], IEntry>();
  private shown: ILink | null = null;
  readonly changed = new Signal<this, void>(this);

  constructor(private readonly tracker: INotebookTracker) {
    tracker.forEach(panel => this.add(panel));
    tracker.widgetAdded.connect((_, panel) => this.add(panel));
    tracker.currentChanged.connect(() => this.follow());
    this.follow();
  }

  get current(): ILink | null {
    return this.shown;
  }

  get currentPanel(): NotebookPanel | null {
    return this.tracker.currentWidget;
  }

  linkOf(panel: NotebookPanel): ILink {
    return this.add(panel).link;
  }

  private add(panel: NotebookPanel): IEntry {
    const { context } = panel;
    const entry = this.links.get(context) ?? {
      link: new Link(context.sessionContext),
      panels: new Set()
    };
    this.links.set(context, entry);
    if (!entry.panels.has(panel)) {
      entry.panels.add(panel);
      panel.disposed.connect(() => {
        entry.panels.delete(panel);
        if (entry.panels.size === 0) {
          this.links.delete(context);
          entry.link.dispose();
        }
        this.follow();
      });
    }
    return entry;
  }

  private follow(): void {
    const panel = this.tracker.currentWidget;
    const link = panel && !panel.isDisposed ? this.linkOf(panel) : null;
    if (link === this.shown) {
      return;
    }
    this.shown?.stateChanged.disconnect(this.announce, this);
    this.shown = link;
    link?.stateChanged.connect(this.announce, this);
    this.announce();
  }

  private announce(): void {
    this.changed.emit();
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
