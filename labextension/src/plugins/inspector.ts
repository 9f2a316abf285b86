import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import type { Ask } from '../draw/shardview';
import { icon } from '../icon';
import { showPanel } from '../panels';
import type { Document, IVariable } from '../protocol';
import { CommandIDs, IClusters, type ILink } from '../tokens';
import { Inspector, type Shown } from '../widgets/inspector';
import { View } from '../widgets/view';
import type { Trans } from '../widgets/labels';

/** The panel of the cluster's variables. */
export const inspector: JupyterFrontEndPlugin<void> = {
  id: 'jaxcluster-labextension:inspector',
  description: "The cluster's variables, and which device holds which part of them.",
  autoStart: true,
  requires: [IClusters],
  optional: [ILabShell, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    clusters: IClusters,
    lab: ILabShell | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jaxcluster');
    app.commands.addCommand(CommandIDs.inspect, {
      label: trans.__('Inspect Arrays'),
      caption: trans.__('Which device holds which part of which variable'),
      icon,
      isEnabled: () => !!clusters.current?.state?.current,
      execute: () => {
        showPanel(app, lab, 'jaxcluster-arrays', clusters.currentPanel?.id, () => {
          const made = new MainAreaWidget({ content: new InspectorPanel(clusters, trans).view });
          made.title.label = trans.__('Arrays');
          made.title.icon = icon;
          made.title.closable = true;
          return made;
        });
      }
    });
    clusters.changed.connect(() => app.commands.notifyCommandChanged(CommandIDs.inspect));
  }
};

/** Follows the current notebook: asks its ranks when it is looked at, and when a cell has ended. */
class InspectorPanel {
  readonly view: View;
  private link: ILink | null = null;
  private cluster: string | null = null;
  private variables: IVariable[] | null = null;
  private failure = '';
  private busy = false;
  private stale = true;
  private shown: Shown | null = null;
  private document: Document | null = null;
  private documentFailure = '';
  private ask: Ask | null = null;
  /** Counts what was asked for, so that a late answer is known for one. */
  private asked = 0;

  constructor(
    private readonly clusters: IClusters,
    private readonly trans: Trans
  ) {
    this.view = new View(() =>
      React.createElement(Inspector, {
        variables: this.variables,
        failure: this.failure,
        busy: this.busy,
        shown: this.shown,
        document: this.document,
        documentFailure: this.documentFailure,
        ask: this.ask,
        trans,
        onShow: this.show,
        onRefresh: this.refresh
      })
    );
    this.view.addClass('jxl-view');
    clusters.changed.connect(this.follow, this);
    this.view.visibilityChanged.connect((_, visible) => visible && this.stale && this.refresh());
    this.view.disposed.connect(() => {
      clusters.changed.disconnect(this.follow, this);
      this.link?.cellChanged.disconnect(this.onCell, this);
    });
    this.follow();
  }

  /** Another notebook, or another cluster: all that is shown was said by other ranks. */
  private follow(): void {
    const { current } = this.clusters;
    const cluster = current?.state?.current ?? null;
    if (current === this.link && cluster === this.cluster) {
      return;
    }
    if (current !== this.link) {
      this.link?.cellChanged.disconnect(this.onCell, this);
      current?.cellChanged.connect(this.onCell, this);
    }
    this.link = current;
    this.cluster = cluster;
    this.variables = null;
    this.shown = null;
    this.document = null;
    this.documentFailure = '';
    this.refresh();
  }

  private onCell(link: ILink, id: string): void {
    const cell = link.cells.get(id);
    if (cell && cell.ended !== null) {
      this.refresh();
    }
  }

  private readonly refresh = (): void => {
    this.stale = true;
    if (this.view.isVisible && !this.busy) {
      void this.load();
    }
  };

  private async load(): Promise<void> {
    const { link, cluster } = this;
    this.stale = false;
    if (!link || cluster === null) {
      this.variables = null;
      this.failure = this.trans.__('This notebook has no cluster.');
      this.view.update();
      return;
    }
    this.busy = true;
    this.view.update();
    try {
      const variables = await link.call('variables', {});
      if (this.link === link && this.cluster === cluster) {
        this.variables = variables;
        this.failure = '';
        const { shown } = this;
        // What is shown may have changed with the cell; without a flicker, if it has not.
        if (shown && (shown.kind !== 'variable' || variables.some(v => v.name === shown.name))) {
          void this.look(shown);
        }
      }
    } catch (error) {
      this.failure = messageOf(error);
    }
    this.busy = false;
    this.view.update();
    if (this.stale) {
      this.refresh(); // more was told in the meantime
    }
  }

  private readonly show = (shown: Shown): void => {
    this.shown = shown;
    this.document = null;
    void this.look(shown);
  };

  private async look(shown: Shown): Promise<void> {
    const { link } = this;
    if (!link) {
      return;
    }
    const asked = ++this.asked;
    this.documentFailure = '';
    this.view.update();
    let document: Document | null = null;
    let failure = '';
    try {
      document =
        shown.kind === 'variable'
          ? await link.call('look', { name: shown.name })
          : await link.call(shown.kind, {});
    } catch (error) {
      failure = messageOf(error);
    }
    if (asked === this.asked) {
      if (JSON.stringify(document) !== JSON.stringify(this.document)) {
        const name = shown.kind === 'variable' ? shown.name : null;
        this.ask = name === null ? null : question => link.call('ask', { name, question });
        this.document = document;
      }
      this.documentFailure = failure;
      this.view.update();
    }
  }
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
