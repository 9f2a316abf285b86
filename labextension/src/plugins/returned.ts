import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { ICell } from '../protocol';
import { wait } from '../line';
import { addedText } from '../outputs';
import type { Store } from '../store';
import { IClusters } from '../tokens';

/** How often a page looks at a cell that goes on. */
const EVERY_MS = 1000;
/** How long after its ranks have ended a cell may take to be over. */
const LAST_MS = 30_000;

/** Of which runs this page has shown everything, also before it was loaded again. */
const SHOWN = 'jaxcluster:shown';
const MOST_SHOWN = 500;

/** Below cells that ran, or run, before their page was there: what it has missed. */
export const returned: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:returned',
  description: 'Shows the output of cells that ran while no page was there.',
  autoStart: true,
  requires: [IClusters],
  activate: (_, clusters: IClusters) => clusters.each((panel, store) => new Returned(panel, store))
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

  constructor(
    private readonly panel: NotebookPanel,
    private readonly store: Store
  ) {
    const unlisten = store.listen(before => before.cells === store.cells || this.look());
    NotebookActions.executionScheduled.connect(this.onScheduled, this);
    panel.disposed.connect(() => {
      unlisten();
      NotebookActions.executionScheduled.disconnect(this.onScheduled, this);
    });
    this.look();
  }

  /** It is this page's from now on. */
  private onScheduled(_: unknown, { notebook, cell }: { notebook: unknown; cell: Cell }): void {
    if (notebook === this.panel.content) {
      this.known.add(cell.model.id);
    }
  }

  private look(): void {
    for (const run of this.store.cells.values()) {
      const isOwn = run.started - this.store.clockOffset >= this.since || this.known.has(run.cell_id);
      const cell = this.cellOf(run.cell_id);
      if (isOwn) {
        if (run.ended !== null) {
          remember(run);
        }
      } else if (cell && this.isMissed(cell, run)) {
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
    return isNewer && !cell.outputArea.future && !remembered.has(keyOf(run));
  }

  private async follow(cell: CodeCell, { cell_id, seq }: ICell): Promise<void> {
    await cell.ready;
    const { model } = cell;
    let mark = '';
    for (let since = Date.now(); Date.now() < since + LAST_MS; await wait(EVERY_MS)) {
      const run = this.store.cells.get(cell_id);
      if (run?.seq !== seq) {
        return;
      }
      if (run.ended === null) {
        since = Date.now();
      }
      // A kernel that is busy is asked again.
      const shown = await this.store.call('shown', { cell_id, mark }).catch(() => null);
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
        remember(run);
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

const keyOf = ({ cell_id, started }: ICell): string => `${cell_id}:${started}`;

const remembered = new Set<string>(JSON.parse(sessionStorage.getItem(SHOWN) ?? '[]'));

/** What its user clears below this cell from now on stays so. */
function remember(run: ICell): void {
  if (!remembered.has(keyOf(run))) {
    remembered.add(keyOf(run));
    sessionStorage.setItem(SHOWN, JSON.stringify([...remembered].slice(-MOST_SHOWN)));
  }
}
