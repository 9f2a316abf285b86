/** Several ranks' outputs under a cell, equal ones once: groups that fold, or how they differ. */

import type { IOutput } from '@jupyterlab/nbformat';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, Widget } from '@lumino/widgets';
import type { IOutputGroup, IRanksOutputs } from '../protocol';
import { formatRanks } from '../ranks';
import { differences, linesOf } from '../ranksOutputs';
import { glyphOf, type Trans } from './labels';

/** One group's outputs, kept while they stay the same: what is drawn may be a live widget. */
class Area extends Panel {
  private readonly button = button();
  private readonly model: OutputAreaModel;
  private readonly outputs: Widget;
  private readonly changes = new Widget({ node: document.createElement('pre') });
  private drawn = '';

  constructor(
    trusted: boolean,
    rendermime: IRenderMimeRegistry,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-group');
    this.node.setAttribute('role', 'group');
    this.model = new OutputAreaModel({ trusted });
    this.outputs = new SimplifiedOutputArea({ model: this.model, rendermime });
    this.changes.addClass('jxl-changes');
    this.button.setAttribute('aria-expanded', 'true');
    this.button.addEventListener('click', () => {
      const folded = this.toggleClass('jxl-mod-folded');
      this.button.setAttribute('aria-expanded', String(!folded));
    });
    const head = headOf(this.button);
    head.addClass('jxl-groupHead');
    [head, this.outputs, this.changes].forEach(part => this.addWidget(part));
  }

  /**
   * @param failed - The cell has failed on some of these ranks.
   * @param base - The outputs from which to show the differences; null: show all.
   */
  draw({ ranks, outputs }: IOutputGroup, failed: boolean, base: IOutputGroup | null): void {
    const { button, trans, changes } = this;
    const drawn = JSON.stringify(outputs);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.model.fromJSON(outputs as unknown as IOutput[]);
    }
    const name = trans._n('rank %2', 'ranks %2', ranks.length, formatRanks(ranks));
    const text = outputs.length ? name : trans.__('%1: no output', name);
    button.textContent = failed ? `${glyphOf('failed')} ${text}` : text;
    button.dataset.tone = failed ? 'bad' : '';
    button.title = failed ? trans.__('The cell has failed there') : '';
    this.node.setAttribute('aria-label', trans.__('Output of %1', name));
    this.outputs.setHidden(base !== null);
    changes.setHidden(base === null);
    if (base !== null) {
      changes.node.replaceChildren(
        ...differences(linesOf(base.outputs), linesOf(outputs)).map(({ sign, line }) => {
          const node = document.createElement('span');
          node.dataset.sign = sign;
          node.textContent = `${sign} ${line}\n`;
          return node;
        })
      );
    }
  }
}

export class RanksView extends Panel {
  private shown: IRanksOutputs | null = null;
  private readonly compare = button();
  private readonly head = headOf(this.compare);
  /** By the first rank of each group. */
  private readonly areas = new Map<number, Area>();

  constructor(
    private readonly rendermime: IRenderMimeRegistry,
    private readonly trusted: boolean,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-ranksOutputs');
    this.head.addClass('jxl-outputsHead');
    this.addWidget(this.head);
    this.compare.setAttribute('aria-pressed', 'false');
    this.compare.addEventListener('click', () => {
      this.compare.setAttribute('aria-pressed', String(!this.compares));
      this.draw();
    });
  }

  private get compares(): boolean {
    return this.compare.getAttribute('aria-pressed') === 'true';
  }

  present(shown: IRanksOutputs): void {
    this.shown = shown;
    this.draw();
  }

  private draw(): void {
    const { groups, failed = [] } = this.shown!;
    for (const [rank, area] of this.areas) {
      if (!groups.some(({ ranks }) => ranks[0] === rank)) {
        area.dispose();
        this.areas.delete(rank);
      }
    }
    const [base] = groups;
    this.head.setHidden(groups.length < 2);
    this.compare.textContent = this.trans.__('Differences from rank %1', base?.ranks[0]);
    groups.forEach((group, index) => {
      const [rank] = group.ranks;
      const area = this.areas.get(rank) ?? new Area(this.trusted, this.rendermime, this.trans);
      this.areas.set(rank, area);
      this.insertWidget(index + 1, area);
      const isBad = group.ranks.some(one => failed.includes(one));
      area.draw(group, isBad, this.compares && group !== base ? base : null);
    });
  }
}

function button(): HTMLButtonElement {
  const made = document.createElement('button');
  made.type = 'button';
  made.className = 'jxl-button';
  return made;
}

function headOf(node: HTMLElement): Widget {
  const head = new Widget({ node: document.createElement('div') });
  // The notebook would take Enter for itself.
  head.node.setAttribute('data-lm-suppress-shortcuts', 'true');
  head.node.append(node);
  return head;
}
