/** What stands below a cell: the strip of its ranks and, on demand, one rank's own output. */

import type { Cell } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, type Widget } from '@lumino/widgets';
import * as React from 'react';
import type { ICell } from '../protocol';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Busy, Failure } from './parts';
import { OutputHead, Strip } from './strip';
import { View } from './view';

interface IServices {
  store: Store;
  cell: Cell;
  rendermime: IRenderMimeRegistry;
  trans: Trans;
  /** Show the report of what went wrong last. */
  onReport: () => void;
}

export class CellStrip extends Panel {
  private shown: number | null = null;
  private output: Panel | null = null;
  /** Counts what was asked for, so that a late answer is known for one. */
  private asked = 0;
  private readonly strip: View;
  private drawn: unknown[] = [];

  constructor(
    private readonly services: IServices,
    private run: ICell
  ) {
    super();
    const { store, trans, onReport } = services;
    this.addClass('jxl-cell');
    // The notebook would take Enter and the arrow keys for itself.
    this.node.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape' && this.shown !== null) {
        event.stopPropagation();
        this.closeOutput();
      }
    });
    this.strip = new View(() =>
      React.createElement(Strip, {
        cell: this.run,
        shown: this.shown,
        store,
        trans,
        onShow: rank => (rank === this.shown ? this.closeOutput() : void this.openOutput(rank)),
        onReport: this.isReported ? onReport : null
      })
    );
    this.addWidget(this.strip);
  }

  /** Whether the last report is of this run. */
  private get isReported(): boolean {
    const report = this.services.store.state?.report;
    return report?.cell_id === this.run.cell_id && report.cell === this.run.number;
  }

  /** Show how the cell is now. */
  present(run: ICell): void {
    const before = this.run;
    this.run = run;
    if (run.seq !== before.seq) {
      this.closeOutput();
    } else if (run.ended !== before.ended && this.shown !== null) {
      void this.openOutput(this.shown); // it may have more output since
    }
    const drawn = [run, this.isReported];
    if (drawn.some((part, index) => part !== this.drawn[index])) {
      this.drawn = drawn;
      this.strip.update();
    }
  }

  private closeOutput(): void {
    const focused = this.output?.node.contains(document.activeElement);
    const rank = this.shown;
    this.asked += 1;
    this.shown = null;
    this.output?.dispose();
    this.output = null;
    this.strip.update();
    if (focused) {
      const own = this.node.querySelector<HTMLElement>(`.jxl-badge[data-rank="${rank}"]`);
      (own ?? this.node.querySelector<HTMLElement>('.jxl-badges button'))?.focus();
    }
  }

  private async openOutput(rank: number): Promise<void> {
    const { store, cell, rendermime, trans } = this.services;
    const asked = ++this.asked;
    this.shown = rank;
    this.strip.update();
    if (!this.output) {
      this.output = new Panel();
      this.output.addClass('jxl-rankOutput');
      this.output.addWidget(this.makeHead());
      this.addWidget(this.output);
      this.setBody(this.said(React.createElement(Busy, { text: trans.__('Asking the rank …') })));
    } else {
      this.output.widgets[0].update();
    }
    const found = await store
      .call('outputs', { cell_id: this.run.cell_id, rank })
      .catch((error: Error) => error);
    if (asked !== this.asked) {
      return;
    }
    if (found instanceof Error) {
      this.setBody(this.said(React.createElement(Failure, { text: found.message })));
    } else if (found.length) {
      const model = new OutputAreaModel({ values: found as IOutput[], trusted: cell.model.trusted });
      this.setBody(new SimplifiedOutputArea({ model, rendermime }));
    } else {
      const text = trans.__('It has no output.');
      this.setBody(this.said(React.createElement('p', { className: 'jxl-empty' }, text)));
    }
  }

  private makeHead(): View {
    return new View(() =>
      this.shown === null
        ? null
        : React.createElement(OutputHead, {
            cell: this.run,
            rank: this.shown,
            trans: this.services.trans,
            onShow: other => void this.openOutput(other),
            onClose: () => this.closeOutput()
          })
    );
  }

  private said(element: JSX.Element): View {
    return new View(() => element);
  }

  private setBody(body: Widget): void {
    body.addClass('jxl-rankOutputBody');
    this.output?.widgets[1]?.dispose();
    this.output?.addWidget(body);
  }
}
