import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { whereOf } from '../spmd';
import { sourcesOf } from '../startCell';
import { hasMode } from '../startLine';
import type { Store } from '../store';
import { IClusters } from '../tokens';
import { currentCluster, type Trans } from '../widgets/labels';

/** Beside each cell that will run on ranks: on which. */
export const mode: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:mode',
  description: 'Marks the cells that run on ranks.',
  autoStart: true,
  requires: [IClusters],
  optional: [ITranslator],
  activate: (_, clusters: IClusters, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    clusters.each((panel, store) => new Marks(panel, store, trans));
  }
};

class Marks {
  private marked = '';
  private isDue = false;
  private isOn = false;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly store: Store,
    private readonly trans: Trans
  ) {
    const notebook = panel.content;
    panel.disposed.connect(store.listen(() => this.follow()));
    notebook.modelContentChanged.connect(() => this.markSoon());
    notebook.cellInViewportChanged.connect((_, cell) => this.markOne(cell));
    this.markSoon();
  }

  private follow(): void {
    const { state } = this.store;
    const cluster = state && currentCluster(state);
    const marked = JSON.stringify([state?.spmd, cluster?.name, cluster?.num_processes]);
    if (marked !== this.marked) {
      this.marked = marked;
      this.markSoon();
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
    // As the kernel has it; until that has said so, as the notebook's text does.
    this.isOn = this.store.state?.spmd ?? hasMode(sourcesOf(this.panel));
    this.panel.content.widgets.filter(cell => cell.inViewport).forEach(cell => this.markOne(cell));
  }

  /** "4 ranks" below the number of a cell that will run there. */
  private markOne(cell: Cell): void {
    const prompt = cell instanceof CodeCell ? cell.inputArea?.promptNode : null;
    if (!prompt) {
      return; // not drawn yet
    }
    const { trans } = this;
    const where = whereOf(cell.model.sharedModel.getSource(), this.isOn);
    if (where === null) {
      if (prompt.dataset.jxlWhere !== undefined) {
        delete prompt.dataset.jxlWhere;
        prompt.title = '';
      }
      return;
    }
    const { state } = this.store;
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
