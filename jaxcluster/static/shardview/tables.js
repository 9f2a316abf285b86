// Meshes and memory: lines and tables, in which ranks have their colours.

import { h, lines, scrolling, swatch, table } from './dom.js';
import { glyph } from './palette.js';

export function drawTables(root, doc) {
  for (const block of doc.blocks) {
    if (typeof block === 'string') {
      if (block) root.append(...lines([block]));
    } else root.append(drawTable(block), ...lines(block.more ? [block.more] : []));
  }
}

function drawTable({ head, rows }) {
  const isBar = text => /^[█▒·]/.test(text);
  const cell = found => (typeof found !== 'string' ? swatch(found[0], `${glyph(found[0])} ${found[1]}`) : isBar(found) ? h('code', {}, found) : found);
  return scrolling(head.filter(Boolean).join(', ') || 'table', table(head.map(name => [name, name ? '' : 'plain']), rows.map(row => row.map(cell))));
}
