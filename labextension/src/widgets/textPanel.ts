/** A panel of plain text that can be asked for again: the stacks. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon, ToolbarButton } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import { icon } from '../icon';

export class TextPanel extends MainAreaWidget<Widget> {
  private readonly pre = document.createElement('pre');
  private readonly nothing: string;

  /** `load` brings the text; its errors are shown in the text's place. */
  constructor(
    id: string,
    label: string,
    private readonly load: () => Promise<string>,
    trans: TranslationBundle
  ) {
    super({ content: new Widget() });
    this.nothing = trans.__('Nothing so far.');
    this.id = id;
    this.title.label = label;
    this.title.icon = icon;
    this.title.closable = true;
    this.content.addClass('jxl-textPanel');
    this.pre.className = 'jxl-text';
    // It scrolls, so it must be reachable by keyboard.
    this.pre.tabIndex = 0;
    this.pre.setAttribute('role', 'region');
    this.pre.setAttribute('aria-label', label);
    this.content.node.append(this.pre);
    this.toolbar.addItem(
      'refresh',
      new ToolbarButton({
        icon: refreshIcon,
        tooltip: trans.__('Ask again'),
        onClick: () => void this.refresh()
      })
    );
  }

  async refresh(): Promise<void> {
    this.pre.setAttribute('aria-busy', 'true');
    try {
      this.pre.textContent = (await this.load()) || this.nothing;
    } catch (error) {
      this.pre.textContent = (error as Error).message;
    }
    this.pre.removeAttribute('aria-busy');
    // What matters in a log is its end.
    this.content.node.scrollTop = this.content.node.scrollHeight;
  }
}
