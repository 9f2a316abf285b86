// Draws jaxcluster's documents: arrays cut into shards, pytrees, and tables of meshes and memory.
//
// ES modules without dependencies or a build step. JupyterLab's panel and MIME renderer import them; for the widget
// views/widget.py makes one of them. The documents are those of views/shards.py.

import { drawArray } from './array.js';
import { h } from './dom.js';
import { onWidth, within } from './lifetime.js';
import { drawTables } from './tables.js';
import { drawTree } from './tree.js';

export { COLORS, GLYPHS, color, glyph } from './palette.js';
export { bytes, ranksText } from './wording.js';

const VERSION = 1;
const KINDS = { array: drawArray, tree: drawTree, tables: drawTables };
const LINES_PX = 560; // in less, a row of a table or a tree is a few lines
const drawn = new WeakMap(); // what ends the view that an element has

/**
 * Draws a document into `el`, in place of what is there. The view ends with `signal`, and when another is drawn there.
 *
 * `ask(question)` returns a promise of an answer of the ranks; without it the picture stands alone,
 * as in a saved notebook. Questions: {op: 'stats', name, rank, device}, {op: 'peek', name, rank,
 * device, start, stop}, {op: 'check', name}, {op: 'look', name}.
 */
export function draw(el, doc, { ask = null, signal = new AbortController().signal } = {}) {
  drawn.get(el)?.abort();
  const life = within(signal);
  drawn.set(el, life);
  const root = h('div', { class: 'jxc' });
  el.replaceChildren(root);
  const fold = () => root.classList.toggle('jxc-narrow', root.clientWidth > 0 && root.clientWidth < LINES_PX);
  fold();
  onWidth(root, fold, life.signal);
  const kind = KINDS[doc?.kind];
  if (!kind || doc.v > VERSION) root.append(h('p', {}, 'This view was made by another version of jaxcluster; the cell\'s text says the same.'));
  else kind(root, doc, { ask, signal: life.signal });
  return root;
}
