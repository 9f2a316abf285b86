/** The store of a notebook in JupyterLab: it follows the notebook's kernel through all restarts and changes. */

import type { ISessionContext } from '@jupyterlab/apputils';
import { KernelMessage, type Kernel } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Line, wait, within } from './line';
import {
  EVENTS_ID,
  type IHello,
  type IOperations,
  type Message,
  type Operation
} from './protocol';
import { NOTHING, Requests, Store, greeted, silent, type Result } from './store';

/** How long an interrupt may wait to be heard before the kernel itself is interrupted. */
const HEARD_MS = 400;
/** How long it may take from the first word of jaxcluster until it can be answered. */
const OPEN_MS = 3000;
const TIMEOUT_MS = 30_000;
/** These take as long as they take, and show their progress. */
const SLOW: ReadonlySet<Operation> = new Set(['start', 'attach', 'stop', 'restart']);
const SLOW_MS = 3_600_000;

const GONE = 'The kernel has ended before it answered.';
const NOT_LOADED = "jaxcluster isn't loaded in this notebook's kernel. Run: %load_ext jaxcluster";
const BUSY =
  'The kernel runs a cell and hears nothing else until that ends. Interrupt it, or wait. ' +
  'With ipykernel 7 or newer, it answers during a cell, too.';

export class Link extends Store implements IDisposable {
  private kernel: Kernel.IKernelConnection | null = null;
  private line: Line | null = null;
  isDisposed = false;

  constructor(private readonly context: ISessionContext) {
    super(new Requests(UUID.uuid4()));
    context.kernelChanged.connect(this.follow, this);
    context.iopubMessage.connect(this.onMessage, this);
    context.statusChanged.connect(this.onStatus, this);
    context.connectionStatusChanged.connect(this.onConnection, this);
    // Else every reload would leave the kernel a thread and a comm that nobody uses.
    window.addEventListener('pagehide', this.hangUp);
    this.follow();
  }

  async call<O extends Operation>(op: O, args: IOperations[O]['args']): Result<O> {
    const timeout_ms = SLOW.has(op) ? SLOW_MS : TIMEOUT_MS;
    const line = await this.reached();
    // What an old kernel can't hear now it would do later, when nobody expects it any more.
    if (!line.subshell && !(await line.idle())) {
      throw new Error(BUSY);
    }
    const late = `No answer from the kernel within ${Math.round(timeout_ms / 1000)} s.`;
    return this.ask(line, op, args, timeout_ms, late);
  }

  private ask<O extends Operation>(
    line: Line,
    op: O,
    args: IOperations[O]['args'],
    timeout_ms: number,
    late: string
  ): Result<O> {
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
      if (!this.state) {
        throw new Error(NOT_LOADED);
      }
      if (Date.now() > until) {
        throw new Error(BUSY);
      }
    }
  }

  async interrupt(op: 'interrupt' | 'cancel' = 'interrupt'): Promise<void> {
    const { line, kernel } = this;
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
    this.context.kernelChanged.disconnect(this.follow, this);
    this.context.iopubMessage.disconnect(this.onMessage, this);
    this.context.statusChanged.disconnect(this.onStatus, this);
    this.context.connectionStatusChanged.disconnect(this.onConnection, this);
    this.hangUp();
    this.requests.dropAll(GONE);
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
      this.become(silent(this.known));
    }
  }

  private forget(): void {
    this.requests.dropAll(GONE);
    this.become(NOTHING);
  }

  /** Leave the kernel nothing that it would keep for us. */
  private hangUp = (): void => {
    this.line?.hangUp();
    this.drop();
  };

  /** The kernel is out of reach, or has ended, and with it all that it kept for us. */
  private drop(): void {
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
    const answer: IHello = await this.ask(line, 'hello', {}, SLOW_MS, BUSY);
    if (line === this.line) {
      this.become(greeted(this.known, answer, Date.now()));
    }
  }

  /** Every message of the kernel; those on the events comm are ours. */
  private onMessage(_: ISessionContext, message: KernelMessage.IMessage): void {
    if (KernelMessage.isCommMsgMsg(message) && message.content.comm_id === EVENTS_ID) {
      const said = message.content.data as unknown as Message;
      this.hear(said);
      // %load_ext was run just now.
      if (said.type !== 'answer' && this.line?.ready) {
        this.greet(this.line).catch(() => undefined);
      }
    }
  }
}
