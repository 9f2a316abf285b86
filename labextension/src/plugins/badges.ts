import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { PanelLayout } from '@lumino/widgets';
import type { ICell } from '../protocol';
import { readRun, saveRun, type ISavedRun } from '../savedRun';
import { CommandIDs, IClusters, IPreferences, type ILink } from '../tokens';
import { CellBadges, ChosenRank } from '../widgets/cellBadges';
import type { Trans } from '../widgets/labels';

/** Our part of a cell's metadata. */
const KEY = 'jaxcluster';

/** Strips of ranks below the %%spmd cells of every notebook. */
export const badges: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:badges',
  description: 'What the ranks do, below each %%spmd cell.',
  autoStart: true,
  requires: [INotebookTracker, IClusters, IPreferences],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    clusters: IClusters,
    preferences: IPreferences,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    const onReport = () => void app.commands.execute(CommandIDs.showReport);
    const add = (panel: NotebookPanel) =>
      void new Strips(panel, clusters.linkOf(panel), preferences, trans, onReport);
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
  }
};

/**
 * The strips of one notebook. Only cells that ranks have run have one. A strip is a child of its cell's
 * widget, so it goes where that goes when a windowed notebook takes cells out of the page.
 */
class Strips {
  private readonly strips = new WeakMap<Cell, CellBadges>();
  private readonly chosen = new ChosenRank();

  constructor(
    private readonly panel: NotebookPanel,
    private readonly link: ILink,
    private readonly preferences: IPreferences,
    private readonly trans: Trans,
    private readonly onReport: () => void
  ) {
    const notebook = panel.content;
    const all = () => this.updateAll();
    const executed = (_: unknown, { cell }: { cell: Cell }) => {
      if (notebook.widgets.includes(cell)) {
        this.update(cell);
      }
    };
    link.cellChanged.connect(this.onCell, this);
    preferences.changed.connect(all);
    notebook.cellInViewportChanged.connect((_, cell) => this.update(cell));
    notebook.modelContentChanged.connect(() => this.updateNew());
    NotebookActions.executed.connect(executed);
    NotebookActions.executionScheduled.connect(this.onScheduled, this);
    void panel.context.ready.then(() => panel.isDisposed || this.updateAll());
    panel.disposed.connect(() => {
      link.cellChanged.disconnect(this.onCell, this);
      preferences.changed.disconnect(all);
      NotebookActions.executed.disconnect(executed);
      NotebookActions.executionScheduled.disconnect(this.onScheduled, this);
    });
    this.updateAll();
  }

  private onCell(_: ILink, id: string): void {
    const cell = id && this.panel.content.widgets.find(({ model }) => model.id === id);
    if (cell) {
      this.update(cell);
    } else if (!id) {
      this.updateAll();
    }
  }

  /** How it went before is no longer so. */
  private onScheduled(_: unknown, { notebook, cell }: { notebook: unknown; cell: Cell }): void {
    if (notebook === this.panel.content && !this.isReadOnly) {
      putRun(cell.model, null);
    }
  }

  private get isReadOnly(): boolean {
    return this.panel.content.model?.readOnly !== false;
  }

  /** The newest run of a cell: the kernel's, else the one that is saved with it. */
  private runOf(cell: Cell): { run: ICell; isSaved: boolean } | null {
    const { model } = cell;
    const live = this.link.cells.get(model.id);
    if (live && !isOutdated(live, cell)) {
      const saved = saveRun(live);
      if (saved && !this.isReadOnly) {
        putRun(model, saved);
      }
      return { run: live, isSaved: false };
    }
    const run = live ? null : readRun(model.getMetadata(KEY)?.run, model.id);
    const isOfThese = run && cell instanceof CodeCell && cell.model.executionCount === run.number;
    return isOfThese ? { run, isSaved: true } : null;
  }

  private updateAll(): void {
    this.panel.content.widgets.forEach(cell => this.update(cell));
  }

  /** Cells that were moved are new widgets with an old id. */
  private updateNew(): void {
    if (this.link.cells.size) {
      for (const cell of this.panel.content.widgets) {
        if (!this.strips.has(cell) && this.link.cells.has(cell.model.id)) {
          this.update(cell);
        }
      }
    }
  }

  private update(cell: Cell): void {
    const found = this.runOf(cell);
    const strip = this.strips.get(cell);
    if (!found || !this.preferences.values.badges) {
      strip?.dispose();
      this.strips.delete(cell);
    } else if (strip) {
      strip.setRun(found.run, found.isSaved);
    } else {
      const added = new CellBadges(
        {
          link: this.link,
          cell,
          rendermime: this.panel.content.rendermime,
          trans: this.trans,
          chosen: this.chosen,
          onReport: this.onReport
        },
        found.run,
        found.isSaved
      );
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

/** Keep with a cell how it went; null: no longer. */
function putRun(model: Cell['model'], run: ISavedRun | null): void {
  const { run: before, ...others } = model.getMetadata(KEY) ?? {};
  if (JSON.stringify(before ?? null) === JSON.stringify(run)) {
    return;
  }
  if (run) {
    model.setMetadata(KEY, { ...others, run });
  } else if (Object.keys(others).length) {
    model.setMetadata(KEY, others);
  } else {
    model.deleteMetadata(KEY);
  }
}

/** Whether the cell has run again since, and not on ranks. */
function isOutdated(run: ICell, cell: Cell): boolean {
  const count = cell instanceof CodeCell ? cell.model.executionCount : null;
  return count !== null && run.ended !== null && count > run.number;
}
