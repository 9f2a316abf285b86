import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ILink } from '../tokens';
import { goToLine } from '../widgets/lineMarks';
import { cellOf } from './cellsByNumber';

/** Show a line of the cell of a notebook that ran as [number] on the ranks, if it is there still. */
export async function goTo(
  app: JupyterFrontEnd,
  notebook: NotebookPanel,
  link: ILink,
  number: number,
  line: number
): Promise<void> {
  const cell = cellOf(notebook, link, number);
  if (!cell) {
    return;
  }
  app.shell.activateById(notebook.id);
  notebook.content.activeCellIndex = notebook.content.widgets.indexOf(cell);
  await notebook.content.scrollToItem(notebook.content.activeCellIndex);
  await cell.ready;
  notebook.content.mode = 'edit';
  goToLine(cell, line);
}
