/**
 * The clusters that the Jupyter server knows, whichever kernel or shell has started them, by way of
 * ipyparallel's server extension: GET and DELETE {base}/ipyparallel/clusters.
 */

import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { Signal } from '@lumino/signaling';
import type { IServerCluster, IServerClusters } from './tokens';

const INTERVAL_MS = 5000;
/** As launchers/local.py names them for ipyparallel: jaxcluster-NAME-1f2e3d4c. */
const OURS = /^jaxcluster-(.+)-[0-9a-f]{8}$/;

/** What ipyparallel says of a cluster, as far as it matters here. */
interface IModel {
  id: string;
  cluster: { cluster_id: string; n: number | null };
  controller?: object;
  engines: { n?: number };
}

export class ServerClusters implements IServerClusters {
  clusters: readonly IServerCluster[] = [];
  readonly changed = new Signal<this, void>(this);
  private watchers = 0;
  private askable = hasIpyparallel();
  private readonly poll: Poll;

  constructor(private readonly settings: ServerConnection.ISettings) {
    this.poll = new Poll({
      name: 'jaxcluster:clusters',
      auto: false,
      factory: () => this.refresh(),
      frequency: { interval: INTERVAL_MS, backoff: false, max: INTERVAL_MS },
      standby: 'when-hidden'
    });
  }

  async refresh(): Promise<void> {
    if (!this.askable) {
      return;
    }
    let models: IModel[];
    try {
      const response = await this.request();
      if (response.status === 404) {
        this.askable = false; // it is installed and switched off
      }
      models = response.ok ? await response.json() : [];
    } catch {
      return; // the server is away, and Lab says so
    }
    const clusters = models.flatMap(ours);
    if (JSON.stringify(clusters) !== JSON.stringify(this.clusters)) {
      this.clusters = clusters;
      this.changed.emit();
    }
  }

  watch(): IDisposable {
    this.watchers += 1;
    void (this.watchers === 1 ? this.poll.start() : this.poll.refresh());
    return new DisposableDelegate(() => {
      this.watchers -= 1;
      if (this.watchers === 0) {
        void this.poll.stop();
      }
    });
  }

  async stop(id: string): Promise<void> {
    const response = await this.request(id, { method: 'DELETE' });
    await this.refresh();
    if (!response.ok && response.status !== 404) {
      const { message } = await ServerConnection.ResponseError.create(response);
      throw new Error(message);
    }
  }

  private request(id = '', init: RequestInit = {}): Promise<Response> {
    const { settings } = this;
    const url = URLExt.join(settings.baseUrl, 'ipyparallel/clusters', encodeURIComponent(id));
    return ServerConnection.makeRequest(url, init, settings);
  }
}

function ours({ id, cluster, controller, engines }: IModel): IServerCluster[] {
  const name = OURS.exec(cluster.cluster_id)?.[1];
  if (name === undefined) {
    return [];
  }
  return [{ id, name, num_processes: engines.n || cluster.n || 0, running: !!controller }];
}

/**
 * Whether it makes sense to ask. A browser reports a 404 in its console, whoever catches it, so it is
 * better known beforehand: ipyparallel ships its server extension with a Lab extension.
 */
function hasIpyparallel(): boolean {
  try {
    const extensions = JSON.parse(PageConfig.getOption('federated_extensions') || '[]');
    return extensions.some((e: { name: string }) => e.name === 'ipyparallel-labextension');
  } catch {
    return false;
  }
}
