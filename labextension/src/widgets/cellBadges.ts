/** What stands below a cell: the strip of its ranks and, on demand, one rank's own output. */

import { CodeCell, type Cell } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Signal } from '@lumino/signaling';
import { Panel } from '@lumino/widgets';
import * as React from 'react';
import type { ICell } from '../protocol';
import { keptOutputs } from '../ranksOutputs';
import type { ILink } from '../tokens';
import { Badges, OutputHead } from './badges';
import { TickerContext } from './clock';
import { Busy, Failure } from './parts';
import { View } from './view';
import type { Trans } from './labels';

interface IServices {
  link: ILink;
  cell: Cell;
  rendermime: IRenderMimeRegistry;
  trans: Trans;
  chosen: ChosenRank;
  /** Show the report of what went wrong last. */
  onReport: () => void;
}

/** The rank whose output is open below the cells of a notebook: chosen at one of them, for all. */
export class ChosenRank {
  rank: number | null = null;
  readonly changed = new Signal<this, void>(this);

  set(rank: number | null): void {
    this.rank = rank;
    this.changed.emit();
  }
}

export class CellBadges extends Panel {
  private shown: number | null = null;
  private output: Panel | null = null;
  /** Counts what was asked for, so that a late answer is known for one. */
  private asked = 0;
  private readonly strip: View;
  /** Whether the link to the report is drawn. */
  private drawn = false;

  constructor(
    private readonly services: IServices,
    private run: ICell,
    private isSaved = false
  ) {
    super();
    this.addClass('jxl-cell');
    // The notebook would take Enter and the arrow keys for itself.
    this.node.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape' && this.shown !== null) {
        event.stopPropagation();
        this.choose(null);
      }
    });
    this.strip = new View(ticker =>
      React.createElement(
        TickerContext.Provider,
        { value: ticker },
        React.createElement(Badges, {
          cell: this.run,
          shown: this.shown,
          clockOffset: services.link.clockOffset,
          trans: services.trans,
          onShow: this.toggle,
          onReport: this.isReported ? services.onReport : null
        })
      )
    );
    this.addWidget(this.strip);
    services.link.stateChanged.connect(this.onState, this);
    services.chosen.changed.connect(this.follow, this);
    this.follow();
  }

  /** @param isSaved - It was read from the notebook: no kernel knows of it. */
  setRun(run: ICell, isSaved = false): void {
    const again = run.seq !== this.run.seq;
    const ended = run.ended !== null && this.run.ended === null;
    this.run = run;
    this.isSaved = isSaved;
    if (again) {
      this.closeOutput();
    } else if (ended && this.shown !== null) {
      void this.openOutput(this.shown); // it may have more output since
    }
    this.follow();
    this.strip.update();
  }

  override dispose(): void {
    this.services.link.stateChanged.disconnect(this.onState, this);
    this.services.chosen.changed.disconnect(this.follow, this);
    super.dispose();
  }

  /** Whether the last report is of this run. */
  private get isReported(): boolean {
    const report = this.services.link.state?.report;
    return !this.isSaved && report?.cell_id === this.run.cell_id && report.cell === this.run.number;
  }

  private onState(): void {
    if (this.isReported !== this.drawn) {
      this.drawn = this.isReported;
      this.strip.update();
    }
  }

  private readonly toggle = (rank: number): void => this.choose(rank === this.shown ? null : rank);

  /** At this cell, for all of the notebook; here also what the others leave out, such as why not. */
  private choose(rank: number | null): void {
    if (rank !== null) {
      void this.openOutput(rank);
    }
    this.services.chosen.set(rank);
  }

  /** Show what was chosen at another cell, if there is something to show. */
  private follow(): void {
    const { chosen, cell } = this.services;
    const { rank } = chosen;
    const { ranks, ended } = this.run;
    if (rank === this.shown) {
      return;
    }
    if (rank === null || !ranks.some(one => one.rank === rank)) {
      this.closeOutput();
    } else if (ended !== null && cell.inViewport && rank !== ranks[0].rank) {
      void this.openOutput(rank, true);
    }
  }

  private closeOutput(): void {
    const rank = this.shown;
    const focused = this.output?.node.contains(document.activeElement);
    this.asked += 1;
    this.shown = null;
    this.output?.dispose();
    this.output = null;
    this.strip.update();
    if (focused && rank !== null) {
      const buttons = this.node.querySelectorAll<HTMLElement>('.jxl-badges button');
      const own = this.node.querySelector<HTMLElement>(`.jxl-badge[data-rank="${rank}"]`);
      (own ?? buttons[buttons.length - 1])?.focus();
    }
  }

  /** @param quietly - Leave it closed where there is no output, or it is not known any more. */
  private async openOutput(rank: number, quietly = false): Promise<void> {
    const { cell, rendermime, trans } = this.services;
    const asked = ++this.asked;
    this.shown = rank;
    if (quietly) {
      const found = await this.outputsOf(rank).catch(() => []);
      if (asked !== this.asked || !found.length) {
        return;
      }
    }
    this.strip.update();
    if (!this.output) {
      this.output = new Panel();
      this.output.addClass('jxl-rankOutput');
      this.output.addWidget(
        new View(() =>
          this.shown === null
            ? null
            : React.createElement(OutputHead, {
                cell: this.run,
                rank: this.shown,
                trans,
                onShow: (other: number) => this.choose(other),
                onClose: () => this.choose(null)
              })
        )
      );
      this.addWidget(this.output);
      this.setBody(new View(() => React.createElement(Busy, { text: trans.__('The rank is asked …') })));
    } else {
      this.output.widgets[0].update();
    }
    try {
      const values = await this.outputsOf(rank);
      if (asked === this.asked) {
        const model = new OutputAreaModel({ values, trusted: cell.model.trusted });
        this.setBody(
          values.length
            ? new SimplifiedOutputArea({ model, rendermime })
            : new View(() =>
                React.createElement('p', { className: 'jxl-empty' }, trans.__('It has no output.'))
              )
        );
      }
    } catch (error) {
      if (asked === this.asked) {
        const text = error instanceof Error ? error.message : String(error);
        this.setBody(new View(() => React.createElement(Failure, { text })));
      }
    }
  }

  /** As the kernel has it, else what the notebook has kept. */
  private async outputsOf(rank: number): Promise<IOutput[]> {
    const { link, cell, trans } = this.services;
    let error: unknown = null;
    if (!this.isSaved) {
      try {
        return (await link.call('outputs', { cell_id: this.run.cell_id, rank })) as IOutput[];
      } catch (failed) {
        error = failed;
      }
    }
    const kept = cell instanceof CodeCell ? cell.model.outputs.toJSON() : [];
    const shown = keptOutputs(kept, rank);
    if (shown) {
      return shown as IOutput[];
    }
    if (rank === this.run.ranks[0].rank && kept.length) {
      return kept;
    }
    throw (
      error ??
      new Error(
        trans.__(
          'The output of rank %1 was not kept: a notebook keeps only what its cells show. With %2 this cell would show all its ranks.',
          rank,
          '%%spmd --all'
        )
      )
    );
  }

  private setBody(body: Panel['widgets'][number]): void {
    body.addClass('jxl-rankOutputBody');
    this.output?.widgets[1]?.dispose();
    this.output?.addWidget(body);
  }
}
