import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget, ReactWidget } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { historyIcon, refreshIcon, ToolbarButton } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { JOURNAL_MIME, JOURNAL_VERSION, type IJournal, type ITimeline } from '../protocol';
import { CommandIDs, IClusters, type ILink } from '../tokens';
import { Journal } from '../widgets/journal';
import type { Trans } from '../widgets/labels';
import { View } from '../widgets/view';
import { cellOf } from './cellsByNumber';
import { goTo } from './goTo';
import { place } from './place';

/** Before text/html (50), which says the same without ways to the lines. */
const RANK = 20;

type Places = {
  has: (cell: number) => boolean;
  onPlace: (cell: number, line: number) => void;
};

/** The ranks' last launches: in a panel of the notebook, and where `%jaxcluster journal` shows them. */
export const journal: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:journal',
  description: 'The last launches of all ranks as a timeline.',
  autoStart: true,
  requires: [INotebookTracker, IClusters, IRenderMimeRegistry],
  optional: [ILabShell, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    clusters: IClusters,
    registry: IRenderMimeRegistry,
    lab: ILabShell | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const panels = new WeakMap<NotebookPanel, JournalPanel>();
    const placesOf = (notebook: NotebookPanel): Places => {
      const link = clusters.linkOf(notebook);
      return {
        has: number => cellOf(notebook, link, number) !== null,
        onPlace: (number, line) => void goTo(app, notebook, link, number, line)
      };
    };

    app.commands.addCommand(CommandIDs.journal, {
      label: trans.__('Show Journal'),
      caption: trans.__('What every rank has launched'),
      icon: historyIcon,
      isEnabled: () => !!clusters.current?.state?.current,
      execute: async () => {
        const notebook = clusters.currentPanel;
        if (!notebook) {
          return;
        }
        let panel = panels.get(notebook);
        if (!panel || panel.isDisposed) {
          const made = new JournalPanel(notebook, clusters.linkOf(notebook), placesOf(notebook), trans);
          panel = made;
          panels.set(notebook, made);
          notebook.disposed.connect(() => made.dispose());
        }
        if (!panel.isAttached) {
          place(app, lab, panel, { ref: notebook.id, activate: false, type: 'JAX journal' });
        }
        app.shell.activateById(panel.id);
        await panel.refresh();
      }
    });
    clusters.changed.connect(() => app.commands.notifyCommandChanged(CommandIDs.journal));

    const around = (node: Node): Places | null => {
      const notebook = tracker.find(panel => panel.node.contains(node));
      return notebook ? placesOf(notebook) : null;
    };
    registry.addFactory(
      {
        safe: true,
        mimeTypes: [JOURNAL_MIME],
        createRenderer: () => new JournalOutput(around, trans)
      },
      RANK
    );
  }
};

/** Which ranks a notebook's cells run on now: another start of the same name has others; '' if there are none. */
function clusterOf({ state }: ILink): string {
  const found = state?.clusters.find(({ name }) => name === state.current);
  return found ? `${found.name} ${found.created}` : '';
}

/** Asks when it is opened, when it is told to, and when a cell has ended while it can be seen. */
class JournalPanel extends MainAreaWidget<View> {
  private timelines: ITimeline[] | null = null;
  private failure = '';
  private asked = 0;
  private stale = true;
  private cluster: string;

  constructor(
    notebook: NotebookPanel,
    private readonly link: ILink,
    places: Places,
    trans: Trans
  ) {
    super({
      content: new View(() =>
        React.createElement(Journal, {
          timelines: this.timelines,
          isAlone: !this.cluster,
          failure: this.failure,
          trans,
          ...places
        })
      )
    });
    this.id = `jaxcluster-journal-${notebook.id}`;
    this.title.label = trans.__('Journal of %1', notebook.title.label);
    this.title.icon = historyIcon;
    this.title.closable = true;
    this.content.addClass('jxl-view');
    this.toolbar.addItem(
      'refresh',
      new ToolbarButton({
        icon: refreshIcon,
        tooltip: trans.__('Ask again'),
        onClick: () => void this.refresh()
      })
    );
    this.cluster = clusterOf(link);
    link.cellChanged.connect(this.onCell, this);
    link.stateChanged.connect(this.onState, this);
    this.content.visibilityChanged.connect((_, visible) => visible && this.stale && this.refresh());
  }

  async refresh(): Promise<void> {
    const asked = ++this.asked;
    this.stale = false;
    let timelines: ITimeline[] | null = null;
    let failure = '';
    try {
      timelines = await this.link.call('journal', {});
    } catch (error) {
      failure = (error as Error).message;
    }
    if (asked === this.asked && !this.isDisposed) {
      this.timelines = timelines ?? this.timelines;
      this.failure = failure;
      this.content.update();
    }
  }

  override dispose(): void {
    this.link.cellChanged.disconnect(this.onCell, this);
    this.link.stateChanged.disconnect(this.onState, this);
    super.dispose();
  }

  private onCell(link: ILink, id: string): void {
    if ((link.cells.get(id)?.ended ?? null) !== null) {
      this.again();
    }
  }

  /** Other ranks than those that said it, or none any more. */
  private onState(): void {
    const now = clusterOf(this.link);
    if (now === this.cluster) {
      return;
    }
    this.cluster = now;
    this.timelines = null;
    this.failure = '';
    if (now) {
      this.again();
    } else {
      this.asked++; // what is answered still is of ranks that are gone
      this.content.update();
    }
  }

  private again(): void {
    if (this.isVisible) {
      void this.refresh();
    } else {
      this.stale = true;
    }
  }
}

/** What `%jaxcluster journal` has shown, in a running notebook and in a saved one. */
class JournalOutput extends ReactWidget implements IRenderMime.IRenderer {
  private timelines: ITimeline[] | null = null;
  private places: Places | null = null;

  constructor(
    private readonly around: (node: Node) => Places | null,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-journalOutput');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const { v, timelines } = model.data[JOURNAL_MIME] as unknown as IJournal;
    if (!(v <= JOURNAL_VERSION)) {
      throw new Error('This journal was made by another version of jaxcluster.');
    }
    this.timelines = timelines;
    this.update();
  }

  protected override onAfterAttach(message: Message): void {
    this.places = this.around(this.node);
    super.onAfterAttach(message);
  }

  protected override render(): JSX.Element {
    return React.createElement(Journal, {
      timelines: this.timelines,
      trans: this.trans,
      has: number => this.places?.has(number) ?? false,
      onPlace: (number, line) => this.places?.onPlace(number, line)
    });
  }
}
