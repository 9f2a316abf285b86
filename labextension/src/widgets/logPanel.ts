/** The panel of the ranks' logs. It asks only while it is followed and can be seen. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { icon } from '../icon';
import type { ILink } from '../tokens';
import { Logs } from './logs';
import { View } from './view';

const EVERY_MS = 2000;
const LINES = 500;

export class LogPanel extends MainAreaWidget<View> {
  private rank: number | null = null;
  private text = '';
  private failure = '';
  private follow = true;
  private readonly timer: ReturnType<typeof setInterval>;

  constructor(
    private readonly link: ILink,
    trans: TranslationBundle
  ) {
    super({
      content: new View(() =>
        React.createElement(Logs, {
          rank: this.rank,
          ranks: (link.state?.ranks ?? []).map(({ rank }) => rank),
          text: this.text,
          failure: this.failure,
          follow: this.follow,
          trans,
          onRank: rank => this.showRank(rank),
          onFollow: follow => {
            this.follow = follow;
            void this.refresh();
          }
        })
      )
    });
    this.title.label = trans.__('Logs');
    this.title.icon = icon;
    this.title.closable = true;
    this.content.addClass('jxl-view');
    this.timer = setInterval(() => {
      if (this.follow && this.isVisible && document.visibilityState === 'visible') {
        void this.refresh();
      }
    }, EVERY_MS);
  }

  /** Show a rank's log; null: those of all. */
  showRank(rank: number | null): void {
    this.rank = rank;
    void this.refresh();
  }

  async refresh(): Promise<void> {
    const { rank } = this;
    try {
      const text = await this.link.call('logs', { rank, lines: LINES });
      if (rank === this.rank) {
        [this.text, this.failure] = [text, ''];
      }
    } catch (error) {
      this.failure = (error as Error).message;
    }
    if (!this.isDisposed) {
      this.content.update();
    }
  }

  override dispose(): void {
    clearInterval(this.timer);
    super.dispose();
  }
}
