/**
 * The only file that sends messages to a kernel.
 *
 * It sends them itself, instead of through Lab's comms, for three reasons: a subshell of our own is known by
 * its id, so that it can be deleted when the page goes; JupyterLab 4.2 and 4.3 don't know subshells, but pass
 * them on; and Lab learns only from an idle kernel whether it has any.
 */

import { KernelMessage, type Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { EVENTS, EVENTS_ID, RPC, type IRequest } from './protocol';

/** How long an idle kernel may take to say something; then it counts as busy. */
const PROMPT_MS = 150;
/** How long a kernel without subshells may take to end what it does before it counts as busy. */
const IDLE_MS = 1000;

export const wait = (ms: number) => new Promise<void>(resolve => setTimeout(resolve, ms));
export const within = <T>(ms: number, promise: Promise<T>): Promise<T | null> =>
  Promise.race([promise, wait(ms).then(() => null)]);

type Content = Record<string, any>;

/** The way to one kernel process: its subshell if it has such, and the rpc comm. */
export class Line {
  /** The subshell's id; null where the kernel has none, and hears only between cells. */
  subshell: string | null = null;
  /** Whether it is known how this kernel can be spoken to. */
  ready = false;
  /** Whether the rpc comm is open. */
  open = false;
  private subshells = false;
  private begun = false;
  private isDisposed = false;
  private readonly comm = UUID.uuid4();
  private kernel: Kernel.IKernelConnection;

  constructor(private readonly notebooks: Kernel.IKernelConnection) {
    this.kernel = notebooks;
  }

  /** Whether the kernel has jaxcluster loaded. Takes until the kernel can say so. */
  async dial(): Promise<boolean> {
    // Control is heard during a cell too; a kernel that has nothing there says it of itself.
    const about: Content = await Promise.race([
      this.ask('control', 'kernel_info_request', {}),
      this.kernel.info
    ]);
    if (about.language_info?.name !== 'python') {
      return false;
    }
    this.subshells = (about.supported_features ?? []).includes('kernel subshells');
    const question = { target_name: EVENTS };
    const asked = this.ask('shell', 'comm_info_request', question);
    let found = await within(PROMPT_MS, asked);
    if (!found && this.subshells) {
      await this.reconnect();
      await this.addSubshell();
      found = await this.ask('shell', 'comm_info_request', question);
    }
    found ??= await asked;
    this.ready = true;
    const loaded = EVENTS_ID in (found.comms ?? {});
    if (!loaded) {
      this.dropSubshell();
    }
    return loaded;
  }

  /** Open the rpc comm. False: it is open already, or not wanted any more. */
  async begin(): Promise<boolean> {
    if (this.begun) {
      return false;
    }
    this.begun = true;
    await this.addSubshell();
    if (!this.isDisposed) {
      this.post('shell', 'comm_open', { comm_id: this.comm, target_name: RPC, data: {} });
      this.open = true;
    }
    return this.open;
  }

  /** Resolves when the kernel has heard it. */
  async send(request: IRequest): Promise<void> {
    await this.post('shell', 'comm_msg', { comm_id: this.comm, data: request }).done;
  }

  /** Whether the kernel waits for something to do, now or in a moment. */
  async idle(): Promise<boolean> {
    for (const until = Date.now() + IDLE_MS; this.kernel.status !== 'idle'; await wait(50)) {
      if (Date.now() > until) {
        return false;
      }
    }
    return true;
  }

  hangUp(): void {
    if (this.kernel.isDisposed || this.kernel.connectionStatus !== 'connected') {
      return;
    }
    const { open } = this;
    this.open = false;
    this.dropSubshell();
    if (open) {
      // To the main shell: the subshell may be gone before it has heard it.
      this.post('shell', 'comm_close', { comm_id: this.comm, data: {} });
    }
  }

  dispose(): void {
    this.isDisposed = true;
    this.open = false;
    this.subshell = null;
    if (this.kernel !== this.notebooks) {
      this.kernel.dispose();
    }
  }

  /**
   * Over a connection of our own: for 3 s after a reload Lab keeps back what is sent to a kernel that
   * is busy (KernelConnection._sendPending), as soon as anybody has sent something too early.
   */
  private async reconnect(): Promise<void> {
    const own = this.notebooks.clone();
    this.kernel = own;
    while (own.connectionStatus === 'connecting' && !this.isDisposed) {
      await new Promise(resolve => own.connectionStatusChanged.connect(resolve));
    }
  }

  private async addSubshell(): Promise<void> {
    if (!this.subshells || this.subshell) {
      return;
    }
    const { subshell_id } = await this.ask('control', 'create_subshell_request', {});
    this.subshell = subshell_id ?? null;
    if (this.isDisposed) {
      this.dropSubshell();
    }
  }

  private dropSubshell(): void {
    if (this.subshell) {
      this.post('control', 'delete_subshell_request', { subshell_id: this.subshell });
    }
    this.subshell = null;
  }

  private ask(
    channel: 'shell' | 'control',
    msgType: string,
    content: Content
  ): Promise<Content> {
    return new Promise((resolve, reject) => {
      const future = this.post(channel, msgType, content, true);
      future.onReply = (reply: KernelMessage.IMessage) => resolve(reply.content as Content);
      future.done.catch(reject);
    });
  }

  private post(
    channel: 'shell' | 'control',
    msgType: string,
    content: Content,
    expectReply = false
  ): Kernel.IShellFuture | Kernel.IControlFuture {
    const { kernel } = this;
    const from = { username: kernel.username, session: kernel.clientId };
    const message = KernelMessage.createMessage({ channel, msgType, content, ...from } as any) as any;
    if (channel === 'shell' && this.subshell) {
      message.header.subshell_id = this.subshell;
    }
    const future =
      channel === 'shell'
        ? kernel.sendShellMessage(message, expectReply)
        : kernel.sendControlMessage(message, expectReply);
    future.done.catch(() => undefined); // whoever needs to know awaits it
    return future;
  }
}
