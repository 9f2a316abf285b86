import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ServerClusters } from '../server';
import { IServerClusters } from '../tokens';

/** The clusters that the Jupyter server knows. */
export const server: JupyterFrontEndPlugin<IServerClusters> = {
  id: 'jaxcluster-labextension:server',
  description: 'Provides the clusters of the Jupyter server, whoever has started them.',
  autoStart: true,
  provides: IServerClusters,
  activate: (app: JupyterFrontEnd): IServerClusters =>
    new ServerClusters(app.serviceManager.serverSettings)
};
