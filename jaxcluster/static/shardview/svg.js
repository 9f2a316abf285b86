// Up to a few hundred tiles, each an element that can be reached by keyboard.

import { s } from './dom.js';
import { on } from './lifetime.js';
import { glyph, ground } from './palette.js';
import { describe, neighbour } from './parts.js';
import { nameRanks } from './wording.js';

export const MAX_STRIPES = 8; // ranks that hold a part, as stripes of its tile
const SMALL_PX = 6.3; // the width of a character of 11 px

/** Draws them, in the `state` that they were left in; returns what focuses the active one. */
export function svgPicture(box, tiles, g, state, signal) {
  const svg = s('svg', { width: g.width, height: g.height, role: 'group', 'aria-label': g.label });
  // Labels lie over all tiles, whose names say all of it already.
  const labels = s('g', { 'aria-hidden': 'true', 'pointer-events': 'none' });
  svg.append(axes(g));
  const nodes = tiles.map(tile => svg.appendChild(tileNode(tile, g, labels)));
  svg.append(labels);
  box.append(svg);
  listen(svg, nodes, tiles, g, state, signal);
  return () => nodes[state.active].focus();
}

function axes(g) {
  const marks = s('g', { 'aria-hidden': 'true' });
  for (const at of g.columns) marks.append(s('text', { x: g.x(at), y: g.top - 6, class: 'jxc-axis', 'text-anchor': 'middle' }, String(at)));
  for (const at of g.rows) marks.append(s('text', { x: g.left - 6, y: g.y(at) + 4, class: 'jxc-axis', 'text-anchor': 'end' }, String(at)));
  return marks;
}

/** As much of a text as fits, without its middle; nothing where that would say nothing. */
function fit(text, width, character) {
  const most = Math.floor(width / character);
  if (text.length <= most) return text;
  return most < 7 ? '' : `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}`;
}

function tileNode(tile, g, labels) {
  const [x0, x1] = tile.columns.map(g.x), [y0, y1] = tile.rows.map(g.y), high = y1 - y0;
  const label = (text, attributes) => text && labels.append(s('text', attributes, text));
  const bad = g.alarm(tile), name = (bad ? `${bad}. ` : '') + describe(tile);
  const node = s('g', { class: bad ? 'jxc-tile jxc-alarm' : 'jxc-tile', role: 'button', 'aria-label': name }, s('title', {}, name));
  const stripes = tile.stripes ?? tile.ranks.slice(0, MAX_STRIPES), w = (x1 - x0) / stripes.length;
  stripes.forEach((rank, k) => {
    const x = x0 + k * w;
    node.append(s('rect', { x, y: y0, width: w, height: high, style: `fill:${ground(rank)}` }));
    if (w < 16 || high < 16) return;
    const own = tile.holders.filter(t => t.device.rank === rank);
    const under = tile.host != null ? nameRanks(tile.ranks) : own.length > 2 ? `${own.length} devices` : own.map(t => t.device.label).join(', ');
    const inset = w > 40 ? 7 : 4, room = w - 2 * inset;
    const told = `${glyph(rank)} ${tile.host ?? rank}`, both = `${told} · ${under}`;
    const lines = both.length * SMALL_PX <= room ? [both] : [fit(told, room, SMALL_PX) || glyph(rank)];
    if (lines[0] !== both && high > 32) lines.push(fit(under, room, SMALL_PX));
    lines.forEach((text, i) => label(text, { x: x + inset, y: y0 + Math.min(15, high / 2 + 4) + 14 * i, class: 'jxc-axis' }));
  });
  if (!tile.stripes && tile.ranks.length > stripes.length && x1 - x0 > 90 && high > 32) {
    label(`+${tile.ranks.length - stripes.length} ranks`, { x: x1 - 6, y: y1 - 6, class: 'jxc-axis', 'text-anchor': 'end' });
  }
  if (!stripes.length) {
    node.append(s('rect', { class: 'jxc-gap', x: x0 + 2, y: y0 + 2, width: Math.max(1, x1 - x0 - 4), height: Math.max(1, high - 4) }));
    if (high > 15) label(fit('no one', x1 - x0 - 8, SMALL_PX), { x: x0 + 6, y: y0 + 15, class: 'jxc-axis' });
  }
  node.append(s('rect', { class: 'jxc-frame', x: x0, y: y0, width: x1 - x0, height: high }));
  for (const inset of [2.5, 4.5]) { // black and white: one of them is seen on any colour
    node.append(s('rect', { class: 'jxc-ring', x: x0 + inset, y: y0 + inset, width: Math.max(1, x1 - x0 - 2 * inset), height: Math.max(1, high - 2 * inset) }));
  }
  if (bad) {
    labels.append(s('rect', { x: x1 - 22, y: y0 + 4, width: 18, height: 18, rx: 3, fill: '#ffffff' }));
    label('✖', { x: x1 - 13, y: y0 + 18, 'font-size': 14, 'text-anchor': 'middle', fill: '#b00020' });
  }
  return node;
}

/** Pointer and keys, heard once for all tiles. */
function listen(svg, nodes, tiles, g, state, signal) {
  const numbers = new Map(nodes.map((node, i) => [node, i]));
  let under = -1; // the pointer
  const heard = (type, react) => on(svg, type, event => {
    const i = numbers.get(event.target.closest('.jxc-tile'));
    if (i !== undefined) react(i, event);
  }, signal);
  const look = i => state.kept === null && g.onTile(tiles[i], false);
  const mark = () => nodes.forEach((node, i) => {
    node.setAttribute('tabindex', i === state.active ? 0 : -1);
    node.setAttribute('aria-pressed', String(i === state.kept));
  });
  const press = i => {
    state.kept = state.kept === i ? null : i;
    mark();
    g.onTile(tiles[i], state.kept !== null);
  };
  heard('pointerover', i => {
    if (i !== under) look(i);
    under = i;
  });
  heard('focusin', i => {
    state.active = i;
    mark();
    look(i);
  });
  heard('click', i => {
    nodes[i].focus();
    press(i);
  });
  heard('keydown', (i, event) => {
    if (event.key === 'Enter' || event.key === ' ') press(i);
    else if (event.key === 'Home') nodes[0].focus();
    else if (event.key === 'End') nodes.at(-1).focus();
    else if (event.key.startsWith('Arrow')) nodes[neighbour(tiles, i, event.key)].focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // notebooks have their own use for these keys
  });
  mark();
}
