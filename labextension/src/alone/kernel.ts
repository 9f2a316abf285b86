/** The store of the sidebar in a cell's output: jaxcluster/notebook/panel/widget.py. No part of Jupyter in here. */

import type { IHeard, IHello, IOperations, Message, Operation } from '../protocol';
import { NOTHING, Requests, Store, greeted, reduce, type Result } from '../store';

/** The part of an anywidget's model that is used. */
export interface IWidgetModel {
  get(key: string): any;
  on(event: string, listener: (message?: any) => void): void;
  off(event: string, listener: (message?: any) => void): void;
  send(message: object): void;
  /** ipywidgets' own, which is not promised. */
  widget_manager?: { kernel?: { interrupt?: () => Promise<void> } | null };
}

/** How long a request may wait to be heard. Later it would be done when nobody expects it any more. */
const HEARD_MS = 2000;
/** The same for an interrupt, where the page can interrupt the kernel. */
const INTERRUPT_MS = 400;
/** How much longer the page waits than the kernel takes it. */
const MARGIN_MS = 300;
const ANSWER_MS = 3_600_000;

export const BUSY =
  'The kernel runs a cell and hears nothing else until that ends. The notebook’s stop button interrupts all ranks.';
const NO_ANSWER = 'The kernel has not answered for an hour.';

export class Kernel extends Store {
  /** It has answered: a saved notebook has none. */
  override isLive = false;
  private readonly unheard = new Map<string, () => void>();

  constructor(
    private readonly widget: IWidgetModel,
    signal: AbortSignal
  ) {
    super(new Requests(Math.random().toString(36).slice(2)));
    const saved = widget.get('state');
    this.known = { ...NOTHING, state: saved?.type === 'state' ? saved : null };
    const heard: [string, (message?: any) => void][] = [
      ['change:state', () => this.become(reduce(this.known, widget.get('state'), Date.now()))],
      ['msg:custom', message => this.onMessage(message)],
      ['comm:close', () => this.hangUp()]
    ];
    heard.forEach(([event, listener]) => widget.on(event, listener));
    signal.addEventListener('abort', () => {
      heard.forEach(([event, listener]) => widget.off(event, listener));
      this.requests.dropAll(BUSY);
    });
    this.greet().catch(() => undefined); // the signal has ended it
  }

  call<O extends Operation>(op: O, args: IOperations[O]['args']): Result<O> {
    return this.ask(op, args, HEARD_MS);
  }

  async interrupt(op: 'interrupt' | 'cancel' = 'interrupt'): Promise<unknown> {
    const { kernel } = this.widget.widget_manager ?? {};
    const interrupt = kernel?.interrupt?.bind(kernel);
    if (!interrupt) {
      return this.call(op, {});
    }
    return this.ask(op, {}, INTERRUPT_MS, interrupt);
  }

  /** @param otherwise - What is done instead where the kernel has not heard it. */
  private async ask<O extends Operation>(
    op: O,
    args: IOperations[O]['args'],
    patience: number,
    otherwise?: () => Promise<unknown>
  ): Result<O> {
    const { request, result } = this.requests.make(op, args, ANSWER_MS, NO_ANSWER);
    let isLate = false;
    const late = setTimeout(() => {
      isLate = true;
      this.requests.drop(request.id, BUSY);
    }, patience + MARGIN_MS);
    this.unheard.set(request.id, () => clearTimeout(late));
    this.widget.send({ ...request, until: Date.now() + this.clockOffset + patience });
    try {
      return await result;
    } catch (error) {
      if (!isLate || !otherwise) {
        throw error;
      }
      return (await otherwise()) as never;
    } finally {
      this.heard(request.id);
    }
  }

  /** A kernel that is in a cell answers at its end. */
  private async greet(): Promise<void> {
    const { request, result } = this.requests.make('hello', {}, ANSWER_MS, NO_ANSWER);
    this.widget.send(request);
    const answer: IHello = await result;
    this.isLive = true;
    this.become(greeted(this.known, answer, Date.now()));
    this.tell();
  }

  private onMessage(message: Message | IHeard): void {
    if (message?.type === 'heard') {
      this.heard(message.id);
    } else if (message) {
      this.hear(message);
    }
  }

  private heard(id: string): void {
    this.unheard.get(id)?.();
    this.unheard.delete(id);
  }

  private hangUp(): void {
    this.isLive = false;
    this.become({ ...this.known, clockOffset: null });
  }
}
