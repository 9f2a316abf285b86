import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { draw, type Ask, type Document } from '../draw/shardview';
import { SHARDS_MIME } from '../protocol';
import type { Store } from '../store';
import { IClusters } from '../tokens';

/** Before text/html (50), which is the same picture without its buttons. */
const RANK = 20;

/** A saved or fresh view of shards. With the kernel's cluster it can be asked for more. */
class ShardsOutput extends Widget implements IRenderMime.IRenderer {
  private document: Document | null = null;
  private store: Store | null = null;
  private unlisten = () => {};
  private live = false;
  private readonly life = new AbortController();

  /** `storeAt` finds the store of the notebook that holds a node. */
  constructor(private readonly storeAt: (node: Node) => Store | null) {
    super();
    this.addClass('jxl-shardsOutput');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.document = model.data[SHARDS_MIME] as unknown as Document;
    this.redraw();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.store = this.storeAt(this.node);
    this.unlisten = this.store?.listen(() => this.follow()) ?? (() => {});
    this.follow();
  }

  protected override onBeforeDetach(message: Message): void {
    this.unlisten();
    this.store = null;
    super.onBeforeDetach(message);
  }

  override dispose(): void {
    this.life.abort();
    super.dispose();
  }

  private follow(): void {
    const live = !!this.store?.state?.current;
    if (live !== this.live) {
      this.live = live;
      this.redraw();
    }
  }

  private redraw(): void {
    const { document, store } = this;
    if (!document) {
      return;
    }
    const { name } = document;
    const ask: Ask | null =
      this.live && store && name ? question => store.call('ask', { name, question }) : null;
    draw(this.node, document, { ask, signal: this.life.signal });
  }
}

/** Draws application/vnd.jaxcluster.shards+json, also in notebooks that are not trusted. */
export const renderer: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:renderer',
  description: 'Draws which device holds which part of an array.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [IClusters, INotebookTracker],
  activate: (
    _,
    registry: IRenderMimeRegistry,
    clusters: IClusters | null,
    tracker: INotebookTracker | null
  ) => {
    const storeAt = (node: Node): Store | null => {
      const panel = tracker?.find(({ node: notebook }) => notebook.contains(node));
      return panel && clusters ? clusters.storeOf(panel) : null;
    };
    registry.addFactory(
      { safe: true, mimeTypes: [SHARDS_MIME], createRenderer: () => new ShardsOutput(storeAt) },
      RANK
    );
  }
};
