import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { ICell } from '../protocol';
import { addedText } from '../ranksOutputs';
import { readRun } from '../savedRun';
import { IClusters, type ILink } from '../tokens';

/** How often a page looks at a cell that goes on. */
const EVERY_MS = 1000;
/** How long after its ranks have ended a cell may take to be over. */
const LAST_MS = 30_000;

const wait = (ms: number) => new Promise<void>(resolve => setTimeout(resolve, ms));

/** Below cells that ran, or run, before their page was there: what it has missed. */
export const returned: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:returned',
  description: 'Shows the output of cells that ran while no page was there.',
  autoStart: true,
  requires: [INotebookTracker, IClusters],
  activate: (_, tracker: INotebookTracker, clusters: IClusters) => {
    const add = (panel: NotebookPanel) => void new Returned(panel, clusters.linkOf(panel));
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
  }
};

/**
 * A page gets what a kernel outputs only for what it has sent to it. After a reload, and when a notebook
 * was closed and opened, a cell that goes on would stay empty: here it is asked for.
 */
class Returned {
  /** Runs that began before had their output sent to another page. */
  private readonly since = Date.now();
  /** Cells that are followed, were, or have been run again on this page. */
  private readonly known = new Set<string>();
  /** When the runs began that are saved with their cells: what came of them is as its user has left it. */
  private readonly saved = new Map<string, number>();

  constructor(
    private readonly panel: NotebookPanel,
    private readonly link: ILink
  ) {
    link.cellChanged.connect(this.look, this);
    NotebookActions.executionScheduled.connect(this.onScheduled, this);
    void panel.context.ready.then(() => {
      for (const { model } of panel.content.widgets) {
        const run = readRun(model.getMetadata('jaxcluster')?.run, model.id);
        this.saved.set(model.id, run?.started ?? 0);
      }
      this.look();
    });
    panel.disposed.connect(() => {
      link.cellChanged.disconnect(this.look, this);
      NotebookActions.executionScheduled.disconnect(this.onScheduled, this);
    });
  }

  /** It is this page's from now on. */
  private onScheduled(_: unknown, { notebook, cell }: { notebook: unknown; cell: Cell }): void {
    if (notebook === this.panel.content) {
      this.known.add(cell.model.id);
    }
  }

  private look(): void {
    if (this.panel.isDisposed || !this.panel.context.isReady) {
      return;
    }
    for (const run of this.link.cells.values()) {
      if (run.started - this.link.clockOffset >= this.since || this.known.has(run.cell_id)) {
        continue;
      }
      const cell = this.cellOf(run.cell_id);
      if (cell && this.isMissed(cell, run)) {
        this.known.add(run.cell_id);
        void this.follow(cell, run);
      }
    }
  }

  private cellOf(id: string): CodeCell | null {
    const found = this.panel.content.widgets.find(({ model }) => model.id === id);
    return found instanceof CodeCell ? found : null;
  }

  /** Whether a cell does not have what a run has brought. Its number comes at the end. */
  private isMissed(cell: CodeCell, run: ICell): boolean {
    const count = cell.model.executionCount;
    const isNewer = count === null || count < run.number;
    return isNewer && !cell.outputArea.future && this.saved.get(run.cell_id) !== run.started;
  }

  private async follow(cell: CodeCell, { cell_id, seq }: ICell): Promise<void> {
    await cell.ready;
    const { model } = cell;
    let mark = '';
    for (let since = Date.now(); Date.now() < since + LAST_MS; await wait(EVERY_MS)) {
      const run = this.link.cells.get(cell_id);
      if (run?.seq !== seq) {
        return;
      }
      if (run.ended === null) {
        since = Date.now();
      }
      // A kernel that is busy is asked again.
      const shown = await this.link.call('shown', { cell_id, mark }).catch(() => null);
      if (this.panel.isDisposed || cell.isDisposed || cell.outputArea.future) {
        return; // gone, or run again on this page
      }
      if (!shown) {
        continue;
      }
      if (shown.outputs) {
        show(model, shown.outputs as IOutput[]);
      }
      mark = shown.mark;
      if (shown.is_over) {
        model.executionCount = shown.number;
        return;
      }
      cell.setPrompt('*');
    }
  }
}

/** Put outputs below a cell, in place of those that are there. What goes on is only added to. */
function show(model: CodeCell['model'], outputs: IOutput[]): void {
  const before = model.outputs.toJSON();
  const text = addedText(before, outputs);
  if (text) {
    const { name } = outputs[outputs.length - 1];
    model.outputs.add({ output_type: 'stream', name, text } as IOutput);
  } else if (text === null) {
    model.trusted = true; // this kernel has run it
    model.outputs.fromJSON(outputs);
  }
}
