import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { staysInNotebook, whereOf } from '../spmd';
import { IClusters, type ILink } from '../tokens';
import { currentCluster, type Trans } from '../widgets/labels';

/** Our part of a notebook's metadata, and of a cell's. */
const KEY = 'jaxcluster';

/** Each notebook's SPMD mode: kept in its metadata, and shown beside each cell that will run on ranks. */
export const mode: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:mode',
  description: "Keeps a notebook's SPMD mode with it, and marks the cells that run on ranks.",
  autoStart: true,
  requires: [INotebookTracker, IClusters],
  optional: [ITranslator],
  activate: (_, tracker: INotebookTracker, clusters: IClusters, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const add = (panel: NotebookPanel) =>
      void panel.context.ready.then(() => {
        if (!panel.isDisposed) {
          new Mode(panel, clusters.linkOf(panel), trans);
        }
      });
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
  }
};

/** Metadata of a notebook or a cell, as far as this needs it. */
interface IMetadata {
  getMetadata(key: string): any;
  setMetadata(key: string, value: any): void;
  deleteMetadata(key: string): void;
}

const isKept = (model: IMetadata): boolean => model.getMetadata(KEY)?.spmd === true;

/** Write it there, or take it away; what stands beside it stays. */
function keep(model: IMetadata, on: boolean): void {
  if (isKept(model) === on) {
    return;
  }
  const { spmd: _, ...others } = model.getMetadata(KEY) ?? {};
  if (on) {
    model.setMetadata(KEY, { ...others, spmd: true });
  } else if (Object.keys(others).length) {
    model.setMetadata(KEY, others);
  } else {
    model.deleteMetadata(KEY);
  }
}

class Mode {
  private asked = false;
  private marked = '';
  private isDue = false;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly link: ILink,
    private readonly trans: Trans
  ) {
    const notebook = panel.content;
    link.stateChanged.connect(this.follow, this);
    NotebookActions.executionScheduled.connect(this.onScheduled, this);
    notebook.modelContentChanged.connect(() => this.markSoon());
    notebook.cellInViewportChanged.connect((_, cell) => this.markOne(cell));
    panel.disposed.connect(() => {
      link.stateChanged.disconnect(this.follow, this);
      NotebookActions.executionScheduled.disconnect(this.onScheduled, this);
    });
    this.follow();
  }

  /** As the kernel has it; until that has said so, as the notebook was left. */
  private get on(): boolean {
    const model = this.panel.content.model;
    return this.link.state?.spmd ?? (model !== null && isKept(model));
  }

  private follow(): void {
    const { model } = this.panel.content;
    const { state } = this.link;
    if (!state) {
      this.asked = false;
    } else if (model && state.spmd !== null && !model.readOnly) {
      keep(model, state.spmd);
    } else if (model && state.spmd === null && isKept(model) && !this.asked) {
      this.asked = true;
      // Where it can't be heard the next cell brings it.
      this.link.call('auto', { on: true, restore: true }).catch(() => (this.asked = false));
    }
    const cluster = state && currentCluster(state);
    const marked = JSON.stringify([this.on, cluster?.name, cluster?.num_processes]);
    if (marked !== this.marked) {
      this.marked = marked;
      this.mark();
    }
  }

  /**
   * The cell's metadata go to the kernel with it. After a restart all cells may be on their way before
   * the kernel has even loaded jaxcluster: so each brings the mode with it.
   */
  private onScheduled(_: unknown, { cell }: { cell: Cell }): void {
    const { model, widgets } = this.panel.content;
    if (model && cell instanceof CodeCell && widgets.includes(cell)) {
      keep(cell.model, isKept(model) && !staysInNotebook(cell.model.sharedModel.getSource()));
    }
  }

  /** A letter that is typed changes the notebook, too. */
  private markSoon(): void {
    if (!this.isDue) {
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        if (!this.panel.isDisposed) {
          this.mark();
        }
      });
    }
  }

  /** Mark those cells that can be seen; the others are when they come into view. */
  private mark(): void {
    this.panel.content.widgets.forEach(cell => {
      if (cell.inViewport) {
        this.markOne(cell);
      }
    });
  }

  /** "4 ranks" below the number of a cell that will run there. */
  private markOne(cell: Cell): void {
    const prompt = cell instanceof CodeCell ? cell.inputArea?.promptNode : null;
    if (!prompt) {
      return; // not drawn yet
    }
    const { trans } = this;
    const where = whereOf(cell.model.sharedModel.getSource(), this.on);
    if (where === null) {
      if (prompt.dataset.jxlWhere !== undefined) {
        delete prompt.dataset.jxlWhere;
        prompt.title = '';
      }
      return;
    }
    const { state } = this.link;
    const cluster = state && currentCluster(state);
    const ranks = where || (cluster && trans._n('%1 rank', '%1 ranks', cluster.num_processes));
    const text = where ? trans.__('ranks %1', where) : (ranks ?? trans.__('ranks'));
    const title = cluster
      ? trans.__('Runs on %1 of cluster %2', text, cluster.name)
      : trans.__('Runs on %1, once there is a cluster', text);
    if (prompt.dataset.jxlWhere !== text || prompt.title !== title) {
      prompt.dataset.jxlWhere = text;
      prompt.title = title;
    }
  }
}
