import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { badges } from './plugins/badges';
import { inspector } from './plugins/inspector';
import { links } from './plugins/links';
import { report } from './plugins/report';
import { settings } from './plugins/settings';
import { sidebar } from './plugins/sidebar';
import { status } from './plugins/status';
import { toolbar } from './plugins/toolbar';

/** Every plugin of the extension. */
const plugins: JupyterFrontEndPlugin<any>[] = [
  settings,
  links,
  sidebar,
  toolbar,
  badges,
  inspector,
  report,
  status
];

export default plugins;
