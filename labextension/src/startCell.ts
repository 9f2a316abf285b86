/** Where in a notebook the line that starts its cluster stands, or is to stand. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import { placeStart } from './startLine';

/**
 * Write the line into the notebook, and run its cell. A line that starts the same cluster is replaced:
 * a notebook that is run from its top starts one once.
 */
export async function runStart(panel: NotebookPanel, line: string): Promise<void> {
  const notebook = panel.content;
  const shared = notebook.model!.sharedModel;
  const cells = notebook.widgets.map(({ model }) =>
    model.type === 'code' ? model.sharedModel.getSource() : null
  );
  const { index, source, isNew } = placeStart(cells, line);
  if (isNew) {
    shared.insertCell(index, { cell_type: 'code', source });
  } else {
    notebook.widgets[index].model.sharedModel.setSource(source);
  }
  notebook.activeCellIndex = index;
  notebook.deselectAll();
  void notebook.scrollToItem(index);
  await NotebookActions.run(notebook, panel.sessionContext);
}
