/** Several ranks' outputs under a cell: as groups that fold, as tabs, or as a grid with one scroll. */

import type { IOutput } from '@jupyterlab/nbformat';
import { OutputAreaModel, SimplifiedOutputArea } from '@jupyterlab/outputarea';
import type { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, Widget } from '@lumino/widgets';
import type { IOutputGroup, IRanksOutputs } from '../protocol';
import { formatRanks } from '../ranks';
import { differences, groupOf, linesOf } from '../ranksOutputs';
import { glyphOf, type Trans } from './labels';

type Way = 'groups' | 'tabs' | 'grid';

const REMEMBERED = 'jaxcluster:outputs';
/** From so many ranks on each group has a tab, not each rank. */
const MOST_TABS = 16;

/** All that are on the page: what is chosen at one of them is so at the others too. */
const views = new Set<RanksView>();
let chosen: number | null = null;
let way: Way = recall();

function drawAll(): void {
  views.forEach(view => view.draw());
}

/** One group's outputs, kept while they stay the same: what is drawn may be a live widget. */
class Area {
  readonly widget: Panel;
  private readonly model: OutputAreaModel;
  private drawn = '';

  constructor(
    readonly rank: number,
    trusted: boolean,
    rendermime: IRenderMimeRegistry
  ) {
    this.model = new OutputAreaModel({ trusted });
    this.widget = new Panel();
    this.widget.addClass('jxl-group');
    this.widget.addWidget(new Widget({ node: document.createElement('div') }));
    this.widget.addWidget(new SimplifiedOutputArea({ model: this.model, rendermime }));
    const changes = new Widget({ node: document.createElement('pre') });
    changes.addClass('jxl-changes');
    this.widget.addWidget(changes);
  }

  get head(): HTMLElement {
    return this.widget.widgets[0].node;
  }

  draw({ outputs }: IOutputGroup): void {
    const drawn = JSON.stringify(outputs);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.model.fromJSON(outputs as unknown as IOutput[]);
    }
  }

  /** Show how it differs from the base; null: show it as it is. */
  compare(group: IOutputGroup, base: IOutputGroup | null): void {
    const [, area, changes] = this.widget.widgets;
    area.setHidden(base !== null);
    changes.setHidden(base === null);
    if (base !== null) {
      changes.node.replaceChildren(
        ...differences(linesOf(base.outputs), linesOf(group.outputs)).map(({ sign, line }) => {
          const node = document.createElement('span');
          node.dataset.sign = sign;
          node.textContent = `${sign} ${line}\n`;
          return node;
        })
      );
    }
  }

  fold(folded: boolean): void {
    this.widget.toggleClass('jxl-mod-folded', folded);
  }
}

export class RanksView extends Panel {
  private shown: IRanksOutputs | null = null;
  private compares = false;
  private readonly folded = new Set<number>();
  private readonly areas = new Map<number, Area>();
  private readonly head = new Widget({ node: document.createElement('div') });
  private readonly body = new Panel();

  constructor(
    private readonly rendermime: IRenderMimeRegistry,
    private readonly trusted: boolean,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-ranksOutputs');
    this.head.addClass('jxl-outputsHead');
    this.body.addClass('jxl-outputsBody');
    this.addWidget(this.head);
    this.addWidget(this.body);
    // The notebook would take Enter and the arrow keys for itself.
    this.head.node.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.head.node.addEventListener('keydown', event => this.onKey(event));
    views.add(this);
    this.disposed.connect(() => views.delete(this));
  }

  present(shown: IRanksOutputs): void {
    this.shown = shown;
    this.draw();
  }

  draw(): void {
    const { shown } = this;
    if (!shown) {
      return;
    }
    const first = new Set(shown.groups.map(({ ranks }) => ranks[0]));
    for (const [rank, area] of [...this.areas]) {
      if (!first.has(rank)) {
        area.widget.dispose();
        this.areas.delete(rank);
      }
    }
    const base = shown.groups[0];
    const how: Way = shown.groups.length > 1 ? way : 'groups';
    const selected = (chosen !== null && groupOf(shown, chosen)) || base;
    shown.groups.forEach((group, index) => {
      const area = this.areas.get(group.ranks[0]) ?? this.addArea(group.ranks[0]);
      this.body.insertWidget(index, area.widget);
      area.draw(group);
      area.compare(group, this.compares && group !== base ? base : null);
      area.widget.setHidden(how === 'tabs' && group !== selected);
      area.fold(how === 'groups' && this.folded.has(area.rank));
      this.drawLabel(area, group, how);
    });
    this.body.node.dataset.way = how;
    this.drawHead(how, selected);
  }

  private addArea(rank: number): Area {
    const area = new Area(rank, this.trusted, this.rendermime);
    this.areas.set(rank, area);
    return area;
  }

  /** "rank 1", "ranks 0, 2-5": in groups a button that folds it. */
  private drawLabel(area: Area, { ranks, outputs }: IOutputGroup, how: Way): void {
    const { trans } = this;
    const name = trans._n('rank %2', 'ranks %2', ranks.length, formatRanks(ranks));
    area.head.hidden = how === 'tabs';
    area.head.className = 'jxl-groupHead';
    area.widget.node.setAttribute('role', 'group');
    area.widget.node.setAttribute('aria-label', trans.__('Output of %1', name));
    const folds = how === 'groups';
    const button = element(folds ? 'button' : 'span', outputs.length ? name : trans.__('%1: no output', name));
    this.mark(button, ranks);
    if (folds) {
      button.setAttribute('aria-expanded', String(!this.folded.has(area.rank)));
      button.addEventListener('click', () => {
        if (!this.folded.delete(area.rank)) {
          this.folded.add(area.rank);
        }
        this.draw();
        area.head.querySelector('button')?.focus();
      });
    }
    replace(area.head, button);
  }

  /** Say that the cell has failed on some of these ranks. */
  private mark(node: HTMLElement, ranks: readonly number[]): void {
    if (ranks.some(rank => this.shown!.failed?.includes(rank))) {
      node.dataset.tone = 'bad';
      node.textContent = `${glyphOf('failed')} ${node.textContent}`;
      node.title = this.trans.__('The cell has failed there');
    }
  }

  private drawHead(how: Way, selected: IOutputGroup): void {
    const { trans, shown } = this;
    const focused = (document.activeElement as HTMLElement | null)?.dataset?.jxlKey;
    const had = this.head.node.contains(document.activeElement);
    this.head.setHidden(shown!.groups.length < 2);
    const ways: [Way, string][] = [
      ['groups', trans.__('Groups')],
      ['tabs', trans.__('Tabs')],
      ['grid', trans.__('Grid')]
    ];
    const choose = element('div');
    choose.setAttribute('role', 'group');
    choose.setAttribute('aria-label', trans.__('How the ranks are shown'));
    for (const [name, label] of ways) {
      const button = element('button', label, `way-${name}`);
      button.setAttribute('aria-pressed', String(name === how));
      button.addEventListener('click', () => {
        way = name;
        remember(name);
        drawAll();
      });
      choose.append(button);
    }
    const compare = element('button', trans.__('Differences from rank %1', shown!.groups[0].ranks[0]), 'compare');
    compare.setAttribute('aria-pressed', String(this.compares));
    compare.addEventListener('click', () => {
      this.compares = !this.compares;
      this.draw();
    });
    const parts = [choose, compare];
    if (how === 'tabs') {
      parts.push(this.tabs(selected));
    }
    replace(this.head.node, ...parts);
    if (had && focused) {
      this.head.node.querySelector<HTMLElement>(`[data-jxl-key="${focused}"]`)?.focus();
    }
  }

  private tabs(selected: IOutputGroup): HTMLElement {
    const { trans, shown } = this;
    const ranks = shown!.groups.flatMap(group => group.ranks).sort((a, b) => a - b);
    const each: number[][] =
      ranks.length <= MOST_TABS ? ranks.map(rank => [rank]) : shown!.groups.map(group => group.ranks);
    const open = chosen !== null && ranks.includes(chosen) ? chosen : selected.ranks[0];
    const list = element('div');
    list.setAttribute('role', 'tablist');
    list.setAttribute('aria-label', trans.__('Ranks'));
    for (const own of each) {
      const name = trans._n('rank %2', 'ranks %2', own.length, formatRanks(own));
      const tab = element('button', name, `tab-${own[0]}`);
      const isChosen = own.includes(open);
      this.mark(tab, own);
      tab.setAttribute('role', 'tab');
      tab.setAttribute('aria-selected', String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      tab.addEventListener('click', () => {
        chosen = own[0];
        drawAll();
      });
      list.append(tab);
    }
    return list;
  }

  /** Arrow keys go from tab to tab. */
  private onKey(event: KeyboardEvent): void {
    const tabs = [...this.head.node.querySelectorAll<HTMLElement>('[role=tab]')];
    const at = tabs.indexOf(event.target as HTMLElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at >= 0 && to !== undefined) {
      const key = tabs[Math.max(0, Math.min(tabs.length - 1, to))].dataset.jxlKey;
      const find = () => this.head.node.querySelector<HTMLElement>(`[data-jxl-key="${key}"]`);
      find()?.click();
      find()?.focus();
      event.preventDefault();
      event.stopPropagation();
    }
  }
}

function element(tag: string, text = '', key = ''): HTMLElement {
  const made = document.createElement(tag);
  made.textContent = text;
  if (tag === 'button') {
    (made as HTMLButtonElement).type = 'button';
    made.className = 'jxl-button';
  }
  if (key) {
    made.dataset.jxlKey = key;
  }
  return made;
}

/** Only where something has changed: what has the focus keeps it. */
function replace(node: HTMLElement, ...parts: HTMLElement[]): void {
  const html = parts.map(part => part.outerHTML).join('');
  if (node.dataset.drawn !== html) {
    node.dataset.drawn = html;
    node.replaceChildren(...parts);
  }
}

function remember(way: Way): void {
  try {
    localStorage.setItem(REMEMBERED, way);
  } catch {
    // Then it is chosen again.
  }
}

function recall(): Way {
  try {
    const found = localStorage.getItem(REMEMBERED);
    return found === 'tabs' || found === 'grid' ? found : 'groups';
  } catch {
    return 'groups';
  }
}
