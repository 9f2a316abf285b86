import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { badges } from './plugins/badges';
import { commands } from './plugins/commands';
import { inspector } from './plugins/inspector';
import { links } from './plugins/links';
import { mode } from './plugins/mode';
import { outputs } from './plugins/outputs';
import { renderer } from './plugins/renderer';
import { report } from './plugins/report';
import { returned } from './plugins/returned';
import { settings } from './plugins/settings';
import { sidebar } from './plugins/sidebar';
import { toolbar } from './plugins/toolbar';

/** Every plugin of the extension. */
const plugins: JupyterFrontEndPlugin<any>[] = [
  settings,
  links,
  commands,
  renderer,
  outputs,
  sidebar,
  toolbar,
  returned,
  badges,
  mode,
  inspector,
  report
];

export default plugins;
