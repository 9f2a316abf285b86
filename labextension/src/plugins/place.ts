import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import type { Widget } from '@lumino/widgets';

/** In a narrower window a notebook and a panel beside it would both have no room. */
const BESIDE_PX = 1500;

/** Put a panel beside a notebook, or below it, where this extension's other panels are already. */
export function place(
  app: JupyterFrontEnd,
  lab: ILabShell | null,
  panel: Widget,
  options: { ref?: string; activate?: boolean; type?: string } = {}
): void {
  if (!lab) {
    // Notebook 7 has room for nothing but the notebook in its middle.
    app.shell.add(panel, 'right', options);
    return;
  }
  const ours = [...lab.widgets('main')].find(({ id }) => /^jaxcluster-(report|arrays)/.test(id));
  const where = ours
    ? ({ mode: 'tab-after', ref: ours.id } as const)
    : ({
        mode: window.innerWidth < BESIDE_PX ? 'split-bottom' : 'split-right',
        ref: options.ref
      } as const);
  lab.add(panel, 'main', { ...options, ...where });
}
