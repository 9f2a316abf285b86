import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Panel } from '@lumino/widgets';
import { OUTPUTS_MIME, type IRanksOutputs } from '../protocol';
import type { Trans } from '../widgets/labels';
import { RanksView } from '../widgets/ranksView';

/** Before text/html (50), which has the same groups. */
const RANK = 20;

/** Drawn once it is in the page: only there is it known whose renderers, and whose widgets, it may use. */
class RanksOutput extends Panel implements IRenderMime.IRenderer {
  private shown: IRanksOutputs | null = null;
  private trusted = false;
  private view: RanksView | null = null;

  constructor(
    private readonly rendermimeAt: (node: Node) => IRenderMimeRegistry,
    private readonly trans: Trans
  ) {
    super();
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.shown = model.data[OUTPUTS_MIME] as unknown as IRanksOutputs;
    this.trusted = model.trusted;
    this.draw();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.draw();
  }

  private draw(): void {
    if (!this.isAttached || !this.shown) {
      return;
    }
    if (!this.view) {
      this.view = new RanksView(this.rendermimeAt(this.node), this.trusted, this.trans);
      this.addWidget(this.view);
    }
    this.view.present(this.shown);
  }
}

/** Draws the output of several ranks in a cell. */
export const outputs: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:outputs',
  description: 'Shows the outputs of several ranks as groups.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker, ITranslator],
  activate: (
    _,
    registry: IRenderMimeRegistry,
    tracker: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    // Widgets are drawn by the registry of the notebook that they belong to.
    const rendermimeAt = (node: Node) =>
      tracker?.find(panel => panel.node.contains(node))?.content.rendermime ?? registry;
    registry.addFactory(
      {
        safe: true,
        mimeTypes: [OUTPUTS_MIME],
        createRenderer: () => new RanksOutput(rendermimeAt, trans)
      },
      RANK
    );
  }
};
