/** Times that go on, counted here: nothing is asked of the kernel for them. */

import * as React from 'react';
import { lasting, type Trans } from './labels';

/** Calls its listeners once a second, and rests while there are none. */
export class Ticker {
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setInterval> | null = null;

  /** @param isVisible - Whether anybody can see the listeners now. */
  constructor(private readonly isVisible: () => boolean = () => true) {}

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    this.timer ??= setInterval(() => this.tick(), 1000);
    return () => {
      this.listeners.delete(listener);
      if (!this.listeners.size && this.timer !== null) {
        clearInterval(this.timer);
        this.timer = null;
      }
    };
  }

  /** Whether it is running, for tests. */
  get active(): boolean {
    return this.timer !== null;
  }

  private tick(): void {
    if (document.visibilityState === 'visible' && this.isVisible()) {
      for (const listener of [...this.listeners]) {
        listener();
      }
    }
  }
}

export const TickerContext = React.createContext(new Ticker());

/** How long it is since `since`, a time of the kernel's clock; `offset` leads from ours to that. */
export function Elapsed(props: { since: number; offset: number; trans: Trans }): JSX.Element {
  const ticker = React.useContext(TickerContext);
  const [, draw] = React.useReducer((n: number) => n + 1, 0);
  React.useEffect(() => ticker.listen(draw), [ticker]);
  return <>{lasting((Date.now() + props.offset - props.since) / 1000, props.trans)}</>;
}
