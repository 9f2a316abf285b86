/** Several ranks' outputs under a cell, equal ones once: groups that fold. */

import type { IOutput } from '@jupyterlab/nbformat';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, Widget } from '@lumino/widgets';
import type { IOutputGroup, IRanksOutputs } from '../protocol';
import { formatRanks } from '../ranks';
import { glyphOf, type Trans } from './labels';

/** One group's outputs, kept while they stay the same: what is drawn may be a live widget. */
class Area extends Panel {
  private readonly button = document.createElement('button');
  private readonly model: OutputAreaModel;
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
    this.button.type = 'button';
    this.button.setAttribute('aria-expanded', 'true');
    this.button.addEventListener('click', () => {
      const folded = this.toggleClass('jxl-mod-folded');
      this.button.setAttribute('aria-expanded', String(!folded));
    });
    const head = new Widget({ node: document.createElement('div') });
    head.addClass('jxl-groupHead');
    // The notebook would take Enter for itself.
    head.node.setAttribute('data-lm-suppress-shortcuts', 'true');
    head.node.append(this.button);
    this.addWidget(head);
    this.addWidget(new SimplifiedOutputArea({ model: this.model, rendermime }));
  }

  /** @param failed - The cell has failed on some of these ranks. */
  draw({ ranks, outputs }: IOutputGroup, failed: boolean): void {
    const { button, trans } = this;
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
  }
}

export class RanksView extends Panel {
  /** By the first rank of each group. */
  private readonly areas = new Map<number, Area>();

  constructor(
    private readonly rendermime: IRenderMimeRegistry,
    private readonly trusted: boolean,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-ranksOutputs');
  }

  present({ groups, failed = [] }: IRanksOutputs): void {
    for (const [rank, area] of this.areas) {
      if (!groups.some(({ ranks }) => ranks[0] === rank)) {
        area.dispose();
        this.areas.delete(rank);
      }
    }
    groups.forEach((group, index) => {
      const [rank] = group.ranks;
      const area = this.areas.get(rank) ?? new Area(this.trusted, this.rendermime, this.trans);
      this.areas.set(rank, area);
      this.insertWidget(index, area);
      area.draw(group, group.ranks.some(one => failed.includes(one)));
    });
  }
}
