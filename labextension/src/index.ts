import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { cells } from './plugins/cells';
import { commands } from './plugins/commands';
import { details } from './plugins/details';
import { links } from './plugins/links';
import { mode } from './plugins/mode';
import { outputs } from './plugins/outputs';
import { renderer } from './plugins/renderer';
import { returned } from './plugins/returned';
import { settings } from './plugins/settings';
import { sidebar } from './plugins/sidebar';
import { toolbar } from './plugins/toolbar';

/** Every plugin of the extension. */
const plugins: JupyterFrontEndPlugin<any>[] = [
  settings,
  links,
  details,
  commands,
  renderer,
  outputs,
  sidebar,
  toolbar,
  returned,
  cells,
  mode
];

export default plugins;
