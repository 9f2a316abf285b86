// Thousands of tiles: one canvas, without labels.

import { h } from './dom.js';
import { on } from './lifetime.js';
import { PALE, color } from './palette.js';
import { neighbour } from './parts.js';
import { MAX_STRIPES } from './svg.js';
import { count } from './wording.js';

/** Draws them, in the `state` that they were left in; returns what focuses them. */
export function canvasPicture(box, tiles, g, state, signal) {
  const scale = window.devicePixelRatio || 1;
  const canvas = h('canvas', { width: g.width * scale, height: g.height * scale, tabindex: 0, role: 'application',
    'aria-roledescription': 'map of shards', 'aria-label': `${g.label}; arrow keys go from part to part`, style: `width:${g.width}px;height:${g.height}px` });
  box.append(canvas, h('p', { class: 'jxc-small' }, `${count(tiles.length, 'part')}, drawn without labels: point at one, or use the arrow keys.`));
  const ctx = canvas.getContext('2d');
  if (!ctx) return () => canvas.focus();
  const bounds = tile => {
    const [x0, x1] = tile.columns.map(g.x), [y0, y1] = tile.rows.map(g.y);
    return [x0, y0, x1 - x0, y1 - y0];
  };
  const frame = (tile, style, width) => {
    Object.assign(ctx, { strokeStyle: style, lineWidth: width });
    ctx.strokeRect(...bounds(tile));
  };
  const paint = () => {
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, g.width, g.height);
    for (const tile of tiles) {
      const [x, y, wide, high] = bounds(tile), stripes = tile.ranks.slice(0, MAX_STRIPES), w = wide / stripes.length;
      ctx.globalAlpha = PALE;
      stripes.forEach((rank, k) => { ctx.fillStyle = color(rank); ctx.fillRect(x + k * w, y, w, high); });
      ctx.globalAlpha = 1;
      if (wide > 4 && high > 4) frame(tile, '#ffffff', 0.5);
      if (g.alarm(tile)) frame(tile, '#b00020', 3);
    }
    frame(tiles[state.active], '#000000', 3);
    frame(tiles[state.active], '#ffffff', 1);
  };
  const go = i => {
    if (i >= 0 && i !== state.active) {
      state.active = i;
      if (state.kept !== null) state.kept = i;
      paint();
    }
    g.onTile(tiles[state.active], state.kept !== null);
  };
  const under = event => {
    const r = canvas.getBoundingClientRect(), px = event.clientX - r.left, py = event.clientY - r.top;
    return tiles.findIndex(t => px >= g.x(t.columns[0]) && px < g.x(t.columns[1]) && py >= g.y(t.rows[0]) && py < g.y(t.rows[1]));
  };
  on(canvas, 'pointermove', event => state.kept === null && go(under(event)), signal);
  on(canvas, 'click', event => {
    const i = under(event);
    state.kept = i >= 0 && state.kept !== i ? i : null;
    go(i);
  }, signal);
  on(canvas, 'focus', () => go(state.active), signal);
  on(canvas, 'keydown', event => {
    if (event.key.startsWith('Arrow')) go(neighbour(tiles, state.active, event.key));
    else if (event.key === 'Enter' || event.key === ' ') {
      state.kept = state.kept === null ? state.active : null;
      go(state.active);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }, signal);
  paint();
  return () => canvas.focus();
}
