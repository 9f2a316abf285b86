/** Where the extension's panels are: all in one place, beside a notebook or below it. */

import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import type { Widget } from '@lumino/widgets';

/** In a narrower window a notebook and a panel beside it would both have no room. */
const BESIDE_PX = 1500;

/**
 * Bring the panel of this id to the front; make it if there is none.
 *
 * @param lab - Null in Notebook 7, which has room for nothing but the notebook in its middle.
 * @param notebook - The id of the notebook's panel.
 */
export function showPanel<P extends Widget>(
  app: JupyterFrontEnd,
  lab: ILabShell | null,
  id: string,
  notebook: string | undefined,
  make: () => P
): P {
  const open = [...app.shell.widgets(lab ? 'main' : 'right')];
  let panel = open.find(one => one.id === id) as P | undefined;
  if (!panel) {
    panel = make();
    panel.id = id;
    const other = open.find(one => /^jaxcluster-(report|arrays|logs|stacks)/.test(one.id));
    if (!lab) {
      app.shell.add(panel, 'right');
    } else if (other) {
      lab.add(panel, 'main', { mode: 'tab-after', ref: other.id });
    } else {
      const mode = window.innerWidth < BESIDE_PX ? 'split-bottom' : 'split-right';
      lab.add(panel, 'main', { mode, ref: notebook });
    }
  }
  app.shell.activateById(id);
  return panel;
}
