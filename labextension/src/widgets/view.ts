/** A Lumino widget that shows a React element, and knows whether anybody can see it. */

import { ReactWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import type * as React from 'react';
import { Ticker } from './clock';

export class View extends ReactWidget {
  /** It can be seen, or it can't any more. */
  readonly visibilityChanged = new Signal<this, boolean>(this);
  private readonly ticker = new Ticker(() => this.isVisible);

  /** @param make - The element as it is now; `update()` asks for it again. */
  constructor(private readonly make: (ticker: Ticker) => React.ReactElement | null) {
    super();
  }

  protected override render(): React.ReactElement | null {
    return this.make(this.ticker);
  }

  /** What nobody sees is drawn when it is shown. */
  protected override onUpdateRequest(msg: Message): void {
    if (this.isVisible) {
      super.onUpdateRequest(msg);
    }
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.visibilityChanged.emit(this.isVisible);
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.update();
    this.visibilityChanged.emit(true);
  }

  protected override onBeforeHide(msg: Message): void {
    super.onBeforeHide(msg);
    this.visibilityChanged.emit(false);
  }

  protected override onBeforeDetach(msg: Message): void {
    super.onBeforeDetach(msg);
    this.visibilityChanged.emit(false);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      Signal.clearData(this);
      super.dispose();
    }
  }
}
