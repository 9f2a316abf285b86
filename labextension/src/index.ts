import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { links } from './plugins/links';
import { settings } from './plugins/settings';

/** Every plugin of the extension. */
const plugins: JupyterFrontEndPlugin<any>[] = [settings, links];

export default plugins;
