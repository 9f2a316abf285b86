/**
 * The only file that touches a kernel.
 *
 * It sends its messages itself, instead of through Lab's comms, for three reasons: a subshell of our
 * own is known by its id, so that it can be deleted when the page goes; JupyterLab 4.2 and 4.3 don't
 * know subshells, but pass them on; and Lab learns only from an idle kernel whether it has any.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import { KernelMessage, type Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import * as model from './model';
import {
  EVENTS,
  EVENTS_ID,
  PROTOCOL,
  RESOURCES_ID,
  RESOURCES_MIME,
  RPC,
  type IAnswer,
  type ICell,
  type IOperations,
  type IRequest,
  type IRankUse,
  type IResources,
  type IState,
  type Message,
  type Operation
} from './protocol';
import type { ILink } from './tokens';

/** How long an idle kernel may take to say something; then it counts as busy. */
const PROMPT_MS = 150;
/** How long an interrupt may wait to be heard before the kernel itself is interrupted. */
const HEARD_MS = 400;
/** How long a kernel without subshells may take to end what it does before it counts as busy. */
const IDLE_MS = 1000;
/** How long it may take from the first word of jaxcluster until it can be answered. */
const OPEN_MS = 3000;
const TIMEOUT_MS = 30_000;
/** These take as long as they take, and show their progress. */
const SLOW: ReadonlySet<Operation> = new Set([
  'start', 'again', 'attach', 'stop', 'restart'
]);
const SLOW_MS = 3_600_000;

const GONE = 'The kernel is gone, and its answer with it.';
const NOT_LOADED = "jaxcluster isn't loaded in this notebook's kernel. Run: %load_ext jaxcluster";
const BUSY =
  'The kernel runs a cell, and hears nothing else until that ends. Interrupt it, or wait; ' +
  'with ipykernel 7 and newer it would hear.';

const wait = (ms: number) => new Promise<void>(resolve => setTimeout(resolve, ms));
const within = <T>(ms: number, promise: Promise<T>): Promise<T | null> =>
  Promise.race([promise, wait(ms).then(() => null)]);

/** One notebook's kernel, through all its restarts and changes. */
export class Link implements ILink {
  private known = model.NOTHING;
  private requests = new model.Requests(UUID.uuid4());
  private kernel: Kernel.IKernelConnection | null = null;
  private line: Line | null = null;
  readonly stateChanged = new Signal<this, void>(this);
  readonly cellChanged = new Signal<this, string>(this);
  readonly resourcesChanged = new Signal<this, void>(this);
  /** How many show what the ranks use. */
  private watchers = 0;
  /** What the kernel's side was told of that. */
  private watched = false;
  isDisposed = false;

  constructor(private readonly context: ISessionContext) {
    context.kernelChanged.connect(this.follow, this);
    context.iopubMessage.connect(this.hear, this);
    context.statusChanged.connect(this.onStatus, this);
    context.connectionStatusChanged.connect(this.onConnection, this);
    // Else every reload would leave the kernel a thread and a comm that nobody uses.
    window.addEventListener('pagehide', this.hangUp);
    this.follow();
  }

  get state(): IState | null {
    return this.known.state;
  }

  get cells(): ReadonlyMap<string, ICell> {
    return this.known.cells;
  }

  get clockOffset(): number {
    return this.known.clockOffset ?? 0;
  }

  get resources(): readonly IRankUse[] {
    return this.known.resources;
  }

  watchResources(): IDisposable {
    this.watchers += 1;
    this.tellWatching();
    return new DisposableDelegate(() => {
      this.watchers -= 1;
      this.tellWatching();
    });
  }

  /** Tell the kernel's side, once it is met, whether anybody looks. */
  private tellWatching(): void {
    const on = this.watchers > 0;
    if (on !== this.watched && this.line?.open && this.known.state) {
      this.watched = on;
      this.call('watch', { on }).catch(() => (this.watched = false));
    }
  }

  async call<O extends Operation>(op: O, args: IOperations[O]['args']): Promise<IOperations[O]['result']> {
    const timeout_ms = SLOW.has(op) ? SLOW_MS : TIMEOUT_MS;
    const line = await this.reached();
    // What an old kernel can't hear now it would do later, when nobody expects it any more.
    if (!line.subshell && !(await line.idle())) {
      throw new Error(BUSY);
    }
    const late = `No answer from the kernel within ${Math.round(timeout_ms / 1000)} s.`;
    const { request, result } = this.requests.make(op, args, timeout_ms, late);
    line.send(request).catch(() => this.requests.drop(request.id, GONE));
    return result;
  }

  /** The open line. The kernel may be heard of a moment before it can be spoken to. */
  private async reached(): Promise<Line> {
    for (const until = Date.now() + OPEN_MS; ; await wait(50)) {
      if (this.line?.open) {
        return this.line;
      }
      if (!this.known.state) {
        throw new Error(NOT_LOADED);
      }
      if (Date.now() > until) {
        throw new Error(BUSY);
      }
    }
  }

  async interrupt(op: 'interrupt' | 'cancel' = 'interrupt'): Promise<void> {
    const line = this.line;
    const kernel = this.kernel;
    if (line?.open && line.subshell) {
      const { request, result } = this.requests.make(op, {}, TIMEOUT_MS, BUSY);
      const heard = line.send(request).then(
        () => true,
        () => false
      );
      if (await within(HEARD_MS, Promise.race([heard, result.then(() => true)]))) {
        await result;
        return;
      }
      result.catch(() => undefined);
      this.requests.drop(request.id, BUSY);
    }
    if (!kernel) {
      throw new Error(GONE);
    }
    await kernel.interrupt();
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    window.removeEventListener('pagehide', this.hangUp);
    this.hangUp();
    this.requests.dropAll(GONE);
    Signal.clearData(this);
  }

  // ------------------------------------------------------------------------------- the kernel's life

  /** The notebook has another kernel, or none. */
  private follow(): void {
    const kernel = this.context.session?.kernel ?? null;
    if (kernel === this.kernel) {
      return;
    }
    this.hangUp();
    this.kernel = kernel;
    this.forget();
    this.onConnection();
  }

  private onStatus(_: ISessionContext, status: Kernel.Status): void {
    if (['restarting', 'autorestarting', 'terminating', 'dead'].includes(status)) {
      this.drop();
      this.forget();
    }
  }

  private onConnection(): void {
    if (this.kernel?.connectionStatus === 'connected') {
      void this.meet(this.kernel);
    } else {
      this.drop();
      this.requests.dropAll(GONE);
      this.become(model.silent(this.known));
    }
  }

  private forget(): void {
    this.requests.dropAll(GONE);
    this.become(model.NOTHING);
  }

  /** Leave the kernel nothing that it would keep for us. */
  private hangUp = (): void => {
    this.line?.hangUp();
    this.drop();
  };

  /** The kernel is out of reach, or has ended and all that it kept for us too. */
  private drop(): void {
    this.watched = false;
    this.line?.dispose();
    this.line = null;
  }

  // --------------------------------------------------------------------------------------- talking

  /** Learn all there is to know, if the kernel has jaxcluster. */
  private async meet(kernel: Kernel.IKernelConnection): Promise<void> {
    this.hangUp();
    const line = (this.line = new Line(kernel));
    try {
      if (await line.dial()) {
        await this.greet(line);
      }
    } catch {
      // The kernel went away meanwhile, and the next one is met as a new one.
    }
  }

  private async greet(line: Line): Promise<void> {
    if (line !== this.line || !(await line.begin())) {
      return;
    }
    const { client } = this.requests;
    const { request, result } = this.requests.make('hello', { client }, SLOW_MS, BUSY);
    line.send(request).catch(() => this.requests.drop(request.id, GONE));
    const answer = (await result) as IOperations['hello']['result'];
    if (line === this.line) {
      if (answer.state.v !== PROTOCOL) {
        console.warn(
          `jaxcluster: the kernel speaks version ${answer.state.v} of the panel's protocol, ` +
            `this page version ${PROTOCOL}. Install the same jaxcluster for both.`
        );
      }
      this.become(model.greeted(this.known, answer, Date.now()));
      this.tellWatching();
    }
  }

  /** Every message of the kernel; those on the events comm are ours. */
  private hear(_: ISessionContext, message: KernelMessage.IMessage): void {
    if (KernelMessage.isUpdateDisplayDataMsg(message)) {
      if (message.content.transient.display_id === RESOURCES_ID) {
        const used = message.content.data[RESOURCES_MIME] as unknown as IResources;
        this.become(model.reduce(this.known, used, Date.now()));
      }
      return;
    }
    if (!KernelMessage.isCommMsgMsg(message) || message.content.comm_id !== EVENTS_ID) {
      return;
    }
    const said = message.content.data as unknown as Message;
    if (said.type === 'answer') {
      this.requests.settle(said as IAnswer);
      return;
    }
    this.become(model.reduce(this.known, said, Date.now()));
    // %load_ext was run just now.
    if (this.line?.ready) {
      this.greet(this.line).catch(() => undefined);
    }
  }

  private become(after: model.IModel): void {
    const before = this.known;
    this.known = after;
    if (before.state !== after.state) {
      this.stateChanged.emit();
    }
    if (before.resources !== after.resources) {
      this.resourcesChanged.emit();
    }
    for (const id of model.changedCells(before, after)) {
      this.cellChanged.emit(id);
    }
  }
}

type Content = Record<string, any>;

/** The way to one kernel process: its subshell if it has such, and the rpc comm. */
class Line {
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
