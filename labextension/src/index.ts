import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { settings } from './plugins/settings';

/** Every plugin of the extension. */
const plugins: JupyterFrontEndPlugin<any>[] = [settings];

export default plugins;
