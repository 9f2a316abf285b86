/** Where in a notebook the line that starts its cluster stands, or is to stand. */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { NotebookActions } from '@jupyterlab/notebook';
import { OutputArea } from '@jupyterlab/outputarea';
import type { CodeCell } from '@jupyterlab/cells';
import {
  LOAD,
  hasOnly,
  linesToRun,
  loadIn,
  numberIn,
  placeMode,
  placeStart,
  startIn,
  withNumber,
  withoutMode
} from './startLine';
import type { ISettings } from './tokens';

/** Run these lines of a cell and show their output under it; the whole cell if it has no other lines. */
async function runLines(panel: NotebookPanel, index: number, start: boolean): Promise<void> {
  const { content: notebook, sessionContext } = panel;
  notebook.activeCellIndex = index;
  notebook.deselectAll();
  const { model, outputArea } = notebook.widgets[index] as CodeCell;
  const source = model.sharedModel.getSource();
  const lines = linesToRun(source, start);
  if (hasOnly(source, lines)) {
    await NotebookActions.run(notebook, sessionContext);
  } else {
    await OutputArea.execute(lines, outputArea, sessionContext, { cellId: model.sharedModel.getId() });
  }
}

/**
 * Write the line into the notebook, and run it, but not what else its cell has. A line that starts the same cluster is replaced:
 * a notebook that is run from its top starts one once.
 */
export async function runStart(panel: NotebookPanel, line: string): Promise<void> {
  const notebook = panel.content;
  const shared = notebook.model!.sharedModel;
  const { index, source, isNew } = placeStart(sourcesOf(panel), line);
  if (isNew) {
    shared.insertCell(index, { cell_type: 'code', source });
  } else {
    notebook.widgets[index].model.sharedModel.setSource(source);
  }
  void notebook.scrollToItem(index);
  await runLines(panel, index, true);
}

export const sourcesOf = (panel: NotebookPanel): (string | null)[] =>
  panel.content.widgets.map(({ model }) =>
    model.type === 'code' ? model.sharedModel.getSource() : null
  );

/** Whether the notebook uses jaxcluster, or means to. */
export const mentions = (panel: NotebookPanel): boolean =>
  sourcesOf(panel).some(source => /jaxcluster|^\s*%%?spmd\b/m.test(source ?? ''));

/** Have the notebook's text say that every cell runs on the ranks, or not. Runs nothing, and leaves cells that are locked. */
export function writeMode(panel: NotebookPanel, on: boolean): void {
  const { model, widgets } = panel.content;
  if (!model || model.readOnly) {
    return;
  }
  const place = on ? placeMode(sourcesOf(panel)) : null;
  if (place?.isNew) {
    model.sharedModel.insertCell(place.index, { cell_type: 'code', source: place.source });
    return;
  }
  for (const { index, source } of place ? [place] : on ? [] : withoutMode(sourcesOf(panel))) {
    if (widgets[index].model.getMetadata('editable') !== false) {
      widgets[index].model.sharedModel.setSource(source);
    }
  }
}

/** How many ranks the notebook asks for, or the user's settings; null where it is not Python's. */
export function numberFor(panel: NotebookPanel, settings: ISettings): number | null {
  const model = panel.content.model;
  if (!model || model.readOnly || !['python', ''].includes(model.defaultKernelLanguage)) {
    return null;
  }
  const line = startIn(sourcesOf(panel));
  return (line === null ? null : numberIn(line)) ?? settings.numProcesses;
}

/**
 * Start a cluster of so many ranks: by the notebook's own start line if it has one, which keeps its
 * other options, else by a new one.
 *
 * @param loaded - Whether the kernel has jaxcluster loaded.
 */
export async function startWith(
  panel: NotebookPanel,
  number: number,
  { devicesPerProcess }: ISettings,
  loaded: boolean
): Promise<void> {
  const cells = sourcesOf(panel);
  const options = devicesPerProcess > 1 ? `--devices-per-process ${devicesPerProcess}` : '';
  const line = withNumber(startIn(cells) ?? options, number);
  if (!loaded && !placeStart(cells, line).source.includes(LOAD)) {
    await load(panel);
  }
  await runStart(panel, line);
}

/** Load jaxcluster in the notebook's kernel: by the line that does so, else by a new cell. */
export async function load(panel: NotebookPanel): Promise<void> {
  const notebook = panel.content;
  const there = loadIn(sourcesOf(panel));
  if (there < 0) {
    NotebookActions.insertAbove(notebook);
    notebook.activeCell?.model.sharedModel.setSource(LOAD);
  }
  await runLines(panel, there < 0 ? notebook.activeCellIndex : there, false);
}
