/** Stands for @jupyterlab/services, which Node can't load: what connection.ts takes from it. */

import Module from 'node:module';

const KernelMessage = {
  isCommMsgMsg: (message: any) => message.header.msg_type === 'comm_msg',
  isUpdateDisplayDataMsg: (message: any) => message.header.msg_type === 'update_display_data',
  createMessage: ({ channel, msgType, content }: any) => ({
    channel,
    content,
    header: { msg_type: msgType }
  })
};

const { _load } = Module as any;
(Module as any)._load = (request: string, ...rest: unknown[]) =>
  request === '@jupyterlab/services' ? { KernelMessage } : _load(request, ...rest);

/** What is told of a change, as Lumino's signals do it. */
export class Told {
  private readonly slots: [slot: (...args: any[]) => void, self: unknown][] = [];

  connect(slot: (...args: any[]) => void, self?: unknown): void {
    this.slots.push([slot, self]);
  }

  disconnect(slot: (...args: any[]) => void): void {
    this.slots.splice(this.slots.findIndex(([other]) => other === slot), 1);
  }

  emit(sender: unknown, what?: unknown): void {
    for (const [slot, self] of [...this.slots]) {
      slot.call(self, sender, what);
    }
  }
}

/** A kernel connection that keeps what it is sent and answers as it is told. */
export class FakeKernel {
  connectionStatus = 'connected';
  readonly connectionStatusChanged = new Told();
  status = 'idle';
  username = 'me';
  clientId = 'page';
  readonly sent: any[] = [];
  interrupts = 0;

  constructor(
    readonly loaded: boolean,
    readonly subshells = true
  ) {}

  get info(): Promise<any> {
    return Promise.resolve(this.about);
  }

  private get about() {
    return {
      language_info: { name: 'python' },
      supported_features: this.subshells ? ['kernel subshells'] : []
    };
  }

  /** The requests that came by the rpc comm. */
  get requests(): { id: string; op: string; args: any }[] {
    return this.sent.filter(m => m.header.msg_type === 'comm_msg').map(m => m.content.data);
  }

  types(channel?: string): string[] {
    return this.sent.filter(m => !channel || m.channel === channel).map(m => m.header.msg_type);
  }

  sendShellMessage(message: any): any {
    return this.take(message, {
      comm_info_request: { comms: this.loaded ? { 'jaxcluster-events': {} } : {} }
    });
  }

  sendControlMessage(message: any): any {
    return this.take(message, {
      kernel_info_request: this.about,
      create_subshell_request: { subshell_id: 'sub-1' }
    });
  }

  interrupt(): Promise<void> {
    this.interrupts += 1;
    return Promise.resolve();
  }

  clone(): FakeKernel {
    return this;
  }

  dispose(): void {}

  private take(message: any, replies: Record<string, any>): any {
    this.sent.push(message);
    const future: any = { done: Promise.resolve() };
    const content = replies[message.header.msg_type];
    if (content) {
      setImmediate(() => future.onReply?.({ content }));
    }
    return future;
  }
}

/** A notebook's session, whose kernel says things. */
export class FakeContext {
  readonly kernelChanged = new Told();
  readonly iopubMessage = new Told();
  readonly statusChanged = new Told();
  readonly connectionStatusChanged = new Told();
  session: { kernel: FakeKernel | null } | null;

  constructor(kernel: FakeKernel | null) {
    this.session = { kernel };
  }

  use(kernel: FakeKernel | null): void {
    this.session = { kernel };
    this.kernelChanged.emit(this);
  }

  /** A message of the panel's. */
  say(data: unknown, comm_id = 'jaxcluster-events'): void {
    this.iopubMessage.emit(this, { header: { msg_type: 'comm_msg' }, content: { comm_id, data } });
  }

  become(status: string): void {
    this.statusChanged.emit(this, status);
  }
}
