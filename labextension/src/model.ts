/**
 * What the kernel's messages make of what is known, without any part of Jupyter: a pure reduce, and
 * the requests that wait for their answers.
 */

import {
  PROTOCOL,
  type IAnswer,
  type ICell,
  type IRankUse,
  type IRequest,
  type IState,
  type Message,
  type Operation
} from './protocol';

export interface IModel {
  readonly state: IState | null;
  /** The newest run of each Jupyter cell, by the cell's id. */
  readonly cells: ReadonlyMap<string, ICell>;
  /** The kernel's clock less ours, in milliseconds; null before the first message. */
  readonly clockOffset: number | null;
  /** What each rank of the current cluster uses. */
  readonly resources: readonly IRankUse[];
}

const OVERTAKEN_MS = 5000;

export const NOTHING: IModel = {
  state: null,
  cells: new Map(),
  clockOffset: null,
  resources: []
};

/** Nothing is heard of the kernel any more; what its cells did remains true. */
export function silent(model: IModel): IModel {
  return { ...model, state: null, resources: [] };
}

/** The model after a message that came at `received` (Date.now()). The same one if it says nothing new. */
export function reduce(model: IModel, message: Message, received: number): IModel {
  switch (message.type) {
    case 'state':
      return withState(withClock(model, message.now, received), message);
    case 'cell':
      return withCells(withClock(model, message.now, received), [message]);
    case 'resources':
      return { ...model, resources: message.ranks };
    default:
      return model;
  }
}

/** The model after the answer to hello. */
export function greeted(
  model: IModel,
  answer: { state: IState; cells: ICell[] },
  received: number
): IModel {
  const timed = withClock(model, answer.state.now, received);
  return withCells(withState(timed, answer.state), answer.cells);
}

function withState(model: IModel, state: IState): IModel {
  if (state.v !== PROTOCOL || (model.state && overtakes(model.state.now, state.now))) {
    return model;
  }
  return { ...model, state };
}

function withCells(model: IModel, told: readonly ICell[]): IModel {
  const fresh = told.filter(cell => {
    const known = model.cells.get(cell.cell_id);
    if (!known || known.started < cell.started) {
      return true;
    }
    return known.started === cell.started && !overtakes(known.now, cell.now);
  });
  if (fresh.length === 0) {
    return model;
  }
  const cells = new Map(model.cells);
  for (const cell of fresh) {
    cells.set(cell.cell_id, cell);
  }
  return { ...model, cells };
}

/**
 * Whether what was said at `known` is later than what was said at `now`: an answer may be overtaken
 * by a push that was made after it. By more than a moment it can't: then the clock was set back.
 */
function overtakes(known: number, now: number): boolean {
  return now < known && known - now < OVERTAKEN_MS;
}

function withClock(model: IModel, now: number, received: number): IModel {
  // A message takes a while, so the quickest one of all tells the clocks' difference best.
  const clockOffset = Math.max(model.clockOffset ?? -Infinity, now - received);
  return clockOffset === model.clockOffset ? model : { ...model, clockOffset };
}

/** The cells that differ; '' for all when a whole set was taken away. */
export function changedCells(before: IModel, after: IModel): string[] {
  if (before.cells === after.cells) {
    return [];
  }
  if ([...before.cells.keys()].some(id => !after.cells.has(id))) {
    return [''];
  }
  return [...after.cells].filter(([id, cell]) => before.cells.get(id) !== cell).map(([id]) => id);
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
  constructor(readonly client: string) {}

  /** A request to send, and the promise of its result. Rejects with `late` after `timeout_ms`. */
  make(
    op: Operation,
    args: object,
    timeout_ms: number,
    late: string
  ): { request: IRequest; result: Promise<any> } {
    const id = `${this.client}:${++this.count}`;
    const result = new Promise<any>((resolve, reject) => {
      const timer = setTimeout(() => this.take(id)?.reject(new Error(late)), timeout_ms);
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
    for (const id of [...this.waiting.keys()]) {
      this.drop(id, why);
    }
  }

  private take(id: string): IWaiting | undefined {
    const waiting = this.waiting.get(id);
    this.waiting.delete(id);
    clearTimeout(waiting?.timer);
    return waiting;
  }
}
