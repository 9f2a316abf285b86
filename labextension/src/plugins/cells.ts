import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { PanelLayout } from '@lumino/widgets';
import type { ICell } from '../protocol';
import type { Store } from '../store';
import { IClusters, IPreferences } from '../tokens';
import { CellStrip } from '../widgets/cellStrip';
import type { Trans } from '../widgets/labels';

/** A line below each cell that ran on ranks. */
export const cells: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:cells',
  description: 'Shows below each %%spmd cell how its ranks are.',
  autoStart: true,
  requires: [IClusters, IPreferences],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    preferences: IPreferences,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const onReport = () => void app.commands.execute('jaxcluster:report');
    clusters.each((panel, store) => new Strips(panel, store, preferences, trans, onReport));
  }
};

/**
 * The strips of one notebook. A strip is a child of its cell's widget, so it goes where that goes when a windowed
 * notebook takes cells out of the page.
 */
class Strips {
  private readonly strips = new WeakMap<Cell, CellStrip>();

  constructor(
    private readonly panel: NotebookPanel,
    private readonly store: Store,
    private readonly preferences: IPreferences,
    private readonly trans: Trans,
    private readonly onReport: () => void
  ) {
    const notebook = panel.content;
    const all = () => this.updateAll();
    const unlisten = store.listen(before => {
      if (before.cells !== store.cells || before.state?.report !== store.state?.report) {
        this.updateAll();
      }
    });
    preferences.changed.connect(all);
    notebook.cellInViewportChanged.connect((_, cell) => this.update(cell));
    notebook.modelContentChanged.connect(all); // a cell that was moved is a new widget
    NotebookActions.executed.connect(this.onExecuted, this);
    panel.disposed.connect(() => {
      unlisten();
      preferences.changed.disconnect(all);
      NotebookActions.executed.disconnect(this.onExecuted, this);
    });
    this.updateAll();
  }

  private onExecuted(_: unknown, { notebook, cell }: { notebook: unknown; cell: Cell }): void {
    if (notebook === this.panel.content) {
      this.update(cell);
    }
  }

  private updateAll(): void {
    this.panel.content.widgets.forEach(cell => this.update(cell));
  }

  private update(cell: Cell): void {
    const run = this.store.cells.get(cell.model.id);
    const strip = this.strips.get(cell);
    if (!run || isOutdated(run, cell) || !this.preferences.values.badges) {
      strip?.dispose();
      this.strips.delete(cell);
    } else if (strip) {
      strip.present(run);
    } else {
      const { store, trans, onReport } = this;
      const { rendermime } = this.panel.content;
      const added = new CellStrip({ store, cell, rendermime, trans, onReport }, run);
      this.strips.set(cell, added);
      // Before it is ready a cell has no input and output that the strip could stand below.
      void cell.ready.then(() => {
        if (cell.isDisposed) {
          added.dispose();
        } else if (!added.isDisposed) {
          (cell.layout as PanelLayout).addWidget(added);
        }
      });
    }
  }
}

/** Whether the cell has run again since, and not on ranks. */
function isOutdated(run: ICell, cell: Cell): boolean {
  const count = cell instanceof CodeCell ? cell.model.executionCount : null;
  return count !== null && run.ended !== null && count > run.number;
}
