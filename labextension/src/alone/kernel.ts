/** The kernel behind the sidebar in a cell's output: jaxcluster/panel/widget.py. No part of Jupyter in here. */

import * as model from '../model';
import type { IAnswer, IHeard, IOperations, IResources, IState, Operation } from '../protocol';

/** The part of an anywidget's model that is used. */
export interface IWidgetModel {
  get(key: string): any;
  on(event: string, listener: (message?: any) => void): void;
  off(event: string, listener: (message?: any) => void): void;
  send(message: object): void;
  /** ipywidgets' own, of which this is not promised. */
  widget_manager?: { kernel?: { interrupt?: () => Promise<void> } | null };
}

/** What the kernel sends: an answer, that a request has come, or what the ranks use. */
type Message = IAnswer | IHeard | IResources;

/** How long a request may wait to be heard. Later it would be done when nobody expects it any more. */
const HEARD_MS = 2000;
/** The same for an interrupt, where the page can interrupt the kernel. */
const INTERRUPT_MS = 400;
/** How much longer the page waits than the kernel takes it. */
const MARGIN_MS = 300;
const ANSWER_MS = 3_600_000;

const BUSY =
  'The kernel runs a cell, and hears nothing else until that ends. Its stop button interrupts all ranks.';
const NO_ANSWER = 'The kernel has not answered for an hour.';

/** What is known of the kernel, and the way to ask it. */
export class Kernel {
  /** As it was saved, or is now. */
  known: model.IModel;
  /** Whether the kernel has answered: without one, as in a saved notebook, nothing can be done. */
  isLive = false;
  private readonly requests = new model.Requests(Math.random().toString(36).slice(2));
  private readonly unheard = new Map<string, () => void>();
  private readonly listeners = new Set<() => void>();

  constructor(private readonly widget: IWidgetModel, signal: AbortSignal) {
    this.known = { ...model.NOTHING, state: stateOf(widget) };
    const heard: [string, (message?: any) => void][] = [
      ['change:state', () => this.become(model.reduce(this.known, widget.get('state'), Date.now()))],
      ['msg:custom', message => this.hear(message)],
      ['comm:close', () => this.hangUp()]
    ];
    heard.forEach(([event, listener]) => widget.on(event, listener));
    signal.addEventListener('abort', () => {
      heard.forEach(([event, listener]) => widget.off(event, listener));
      this.requests.dropAll(BUSY);
    });
    this.greet().catch(() => undefined); // the signal has ended it
  }

  listen = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Rejects with an Error whose message is for the user. */
  async call<O extends Operation>(
    op: O,
    args: IOperations[O]['args']
  ): Promise<IOperations[O]['result']> {
    const { request, result } = this.requests.make(op, args, ANSWER_MS, NO_ANSWER);
    const { kernel } = this.widget.widget_manager ?? {};
    const ends = op === 'interrupt' || op === 'cancel';
    const interrupt = ends && kernel?.interrupt?.bind(kernel);
    const patience = interrupt ? INTERRUPT_MS : HEARD_MS;
    let isLate = false;
    const late = setTimeout(() => {
      isLate = true;
      this.requests.drop(request.id, BUSY);
    }, patience + MARGIN_MS);
    this.unheard.set(request.id, () => clearTimeout(late));
    const until = Date.now() + (this.known.clockOffset ?? 0) + patience;
    this.widget.send({ ...request, until });
    try {
      return await result;
    } catch (error) {
      if (!isLate || !interrupt) {
        throw error;
      }
      await interrupt();
      return [] as never;
    } finally {
      this.heard(request.id);
    }
  }

  /** A kernel that is in a cell answers at its end. */
  private async greet(): Promise<void> {
    const { client } = this.requests;
    const { request, result } = this.requests.make('hello', { client }, ANSWER_MS, NO_ANSWER);
    this.widget.send(request);
    const answer = (await result) as IOperations['hello']['result'];
    this.isLive = true;
    this.become(model.greeted(this.known, answer, Date.now()));
    this.tell();
  }

  private hear(message: Message): void {
    if (message?.type === 'answer') {
      this.requests.settle(message);
    } else if (message?.type === 'heard') {
      this.heard(message.id);
    } else if (message?.type === 'resources') {
      this.become(model.reduce(this.known, message, Date.now()));
    }
  }

  private heard(id: string): void {
    this.unheard.get(id)?.();
    this.unheard.delete(id);
  }

  private hangUp(): void {
    this.isLive = false;
    this.known = { ...this.known, clockOffset: null };
    this.tell();
  }

  private become(known: model.IModel): void {
    if (known !== this.known) {
      this.known = known;
      this.tell();
    }
  }

  private tell(): void {
    this.listeners.forEach(listener => listener());
  }
}

/** What was saved last; null where nothing was. */
function stateOf(widget: IWidgetModel): IState | null {
  const state = widget.get('state');
  return state?.type === 'state' ? state : null;
}
