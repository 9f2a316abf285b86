/**
 * The one store: what is known of a kernel's clusters and cells, and the requests that wait for its answers.
 * Without any part of Jupyter. JupyterLab's page (link.ts) and the sidebar in a cell (alone/kernel.ts) fill it.
 */

import {
  PROTOCOL,
  type IAnswer,
  type ICell,
  type IHello,
  type IOperations,
  type IRequest,
  type IState,
  type Message,
  type Operation
} from './protocol';

export interface IKnown {
  /** Null: jaxcluster is not loaded in the kernel, or the kernel is gone. */
  readonly state: IState | null;
  /** Whether the kernel has another version of jaxcluster, whose messages this page can't read. */
  readonly differs: boolean;
  /** The newest run of each Jupyter cell, by the cell's id. */
  readonly cells: ReadonlyMap<string, ICell>;
  /** The kernel's clock less ours, in milliseconds; null before the first message. */
  readonly clockOffset: number | null;
}

const OVERTAKEN_MS = 5000;

export const NOTHING: IKnown = { state: null, differs: false, cells: new Map(), clockOffset: null };

/** Nothing is heard of the kernel any more. What its cells did remains true. */
export function silent(known: IKnown): IKnown {
  return { ...known, state: null };
}

/** What is known after a message that came at `received` (Date.now()). The same if it says nothing new. */
export function reduce(known: IKnown, message: Message, received: number): IKnown {
  switch (message.type) {
    case 'state':
      return withState(withClock(known, message.now, received), message);
    case 'cell':
      return withCells(withClock(known, message.now, received), [message]);
    default:
      return known;
  }
}

/** What is known after the answer to hello. */
export function greeted(known: IKnown, answer: IHello, received: number): IKnown {
  const timed = withClock(known, answer.state.now, received);
  return withCells(withState(timed, answer.state), answer.cells);
}

function withState(known: IKnown, state: IState): IKnown {
  if (state.v !== PROTOCOL) {
    return known.differs ? known : { ...known, differs: true };
  }
  if (known.state && overtakes(known.state.now, state.now)) {
    return known;
  }
  return { ...known, state, differs: false };
}

function withCells(known: IKnown, told: readonly ICell[]): IKnown {
  const fresh = told.filter(cell => {
    const before = known.cells.get(cell.cell_id);
    if (!before || before.started < cell.started) {
      return true;
    }
    return before.started === cell.started && !overtakes(before.now, cell.now);
  });
  if (fresh.length === 0) {
    return known;
  }
  const cells = new Map(known.cells);
  fresh.forEach(cell => cells.set(cell.cell_id, cell));
  return { ...known, cells };
}

/**
 * Whether what was said at `known` is later than what was said at `now`: a push that was made after an answer
 * may overtake it. By more than a moment it can't: then the clock was set back.
 */
function overtakes(known: number, now: number): boolean {
  return now < known && known - now < OVERTAKEN_MS;
}

function withClock(known: IKnown, now: number, received: number): IKnown {
  // A message takes a while, so the quickest one of all tells the clocks' difference best.
  const clockOffset = Math.max(known.clockOffset ?? -Infinity, now - received);
  return clockOffset === known.clockOffset ? known : { ...known, clockOffset };
}

// ---------------------------------------------------------------------------- requests and answers

interface IWaiting {
  resolve: (result: any) => void;
  reject: (error: Error) => void;
  timer: ReturnType<typeof setTimeout>;
}

/** The requests of one page to one kernel that have no answer yet. */
export class Requests {
  private readonly waiting = new Map<string, IWaiting>();
  private count = 0;

  /** `client` sets this page's ids apart from those of others. */
  constructor(private readonly client: string) {}

  /** A request to send, and the promise of its result. Rejects with `late` after `timeout_ms`. */
  make(
    op: Operation,
    args: object,
    timeout_ms: number,
    late: string
  ): { request: IRequest; result: Promise<any> } {
    const id = `${this.client}:${++this.count}`;
    const result = new Promise<any>((resolve, reject) => {
      const timer = setTimeout(() => this.drop(id, late), timeout_ms);
      this.waiting.set(id, { resolve, reject, timer });
    });
    return { request: { id, op, args }, result };
  }

  /** Whether the answer was to one of these. Those of other pages, and late ones, are not. */
  settle(answer: IAnswer): boolean {
    const waiting = this.take(answer.id);
    if (answer.error !== undefined) {
      waiting?.reject(new Error(answer.error));
    } else {
      waiting?.resolve(answer.result ?? null);
    }
    return waiting !== undefined;
  }

  /** Give one up. */
  drop(id: string, why: string): void {
    this.take(id)?.reject(new Error(why));
  }

  /** Give all up. */
  dropAll(why: string): void {
    [...this.waiting.keys()].forEach(id => this.drop(id, why));
  }

  private take(id: string): IWaiting | undefined {
    const waiting = this.waiting.get(id);
    this.waiting.delete(id);
    clearTimeout(waiting?.timer);
    return waiting;
  }
}

// ----------------------------------------------------------------------------------------- the store

type Listener = (before: IKnown) => void;

export type Result<O extends Operation> = Promise<IOperations[O]['result']>;

/** What is known of one kernel, and the way to ask it. */
export abstract class Store {
  known = NOTHING;
  /** Whether there is a kernel to ask. */
  isLive = true;
  private readonly listeners = new Set<Listener>();

  protected constructor(protected readonly requests: Requests) {}

  get state(): IState | null {
    return this.known.state;
  }

  get cells(): ReadonlyMap<string, ICell> {
    return this.known.cells;
  }

  /** What to add to Date.now() to get the kernel's clock, in milliseconds; a saved state's has stopped. */
  get clockOffset(): number {
    const { clockOffset, state } = this.known;
    return clockOffset ?? (state ? state.now - Date.now() : 0);
  }

  /** Called after each change, with what was known before; returns what ends that. */
  listen = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Ask the kernel's side. Rejects with an Error whose message is for the user. */
  abstract call<O extends Operation>(op: O, args: IOperations[O]['args']): Result<O>;

  /** Interrupt all ranks, or cancel a start: by request, or through the kernel where that is not heard. */
  abstract interrupt(op?: 'interrupt' | 'cancel'): Promise<unknown>;

  protected hear(message: Message): void {
    if (message.type === 'answer') {
      this.requests.settle(message);
    } else {
      this.become(reduce(this.known, message, Date.now()));
    }
  }

  protected become(known: IKnown): void {
    const before = this.known;
    if (known !== before) {
      this.known = known;
      this.tell(before);
    }
  }

  protected tell(before = this.known): void {
    [...this.listeners].forEach(listener => listener(before));
  }
}
