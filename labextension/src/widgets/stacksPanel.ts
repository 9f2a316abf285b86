/** The panel of the ranks' stacks, which can be asked for again. */

import { MainAreaWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon, ToolbarButton } from '@jupyterlab/ui-components';
import { Widget } from '@lumino/widgets';
import { icon } from '../icon';
import type { ILink } from '../tokens';

export class StacksPanel extends MainAreaWidget<Widget> {
  private readonly pre = document.createElement('pre');

  constructor(
    private readonly link: ILink,
    trans: TranslationBundle
  ) {
    super({ content: new Widget() });
    this.title.label = trans.__('Stacks');
    this.title.icon = icon;
    this.title.closable = true;
    this.content.addClass('jxl-textPanel');
    this.pre.className = 'jxl-text';
    // It scrolls, so it must be reachable by keyboard.
    this.pre.tabIndex = 0;
    this.pre.setAttribute('role', 'region');
    this.pre.setAttribute('aria-label', this.title.label);
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
      this.pre.textContent = await this.link.call('stacks', {});
    } catch (error) {
      this.pre.textContent = (error as Error).message;
    }
    this.pre.removeAttribute('aria-busy');
  }
}
