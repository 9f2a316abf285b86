import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ILink } from '../tokens';

/**
 * The cell of a notebook that ran as [number] on the ranks; null where it is not there any more, or has
 * run again since.
 */
export function cellOf(panel: NotebookPanel, link: ILink, number: number): Cell | null {
  for (const run of link.cells.values()) {
    if (run.number === number) {
      const found = panel.content.widgets.find(({ model }) => model.id === run.cell_id);
      if (found) {
        return found;
      }
    }
  }
  return (
    panel.content.widgets.find(
      cell => cell instanceof CodeCell && cell.model.executionCount === number
    ) ?? null
  );
}
