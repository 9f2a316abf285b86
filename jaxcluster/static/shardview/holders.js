// The copies of one part, with statistics and values that their rank is asked for.

import { alarming, h, swatch } from './dom.js';
import { renewing } from './lifetime.js';
import { count, number } from './wording.js';

const PAGE = 8; // rows and columns of one look at values, at most
const VALUE_PX = 90; // the widest that a value gets
const MAX_HOLDERS = 16;

export function showHolders(box, tile, doc, { ask, signal }) {
  if (!tile.index) return;
  if (!ask) {
    box.append(h('p', { class: 'jxc-small' }, `Statistics and values: %shards ${doc.name} --widget`));
    return;
  }
  const out = h('div', { 'aria-live': 'polite' }), nextValues = renewing(signal);
  const button = (label, device, work) => h('button', { type: 'button', 'aria-label': `${label} on ${device.label}`, signal, onclick: async () => {
    out.replaceChildren(h('p', {}, '…'));
    try { await work(); } catch (error) { out.replaceChildren(alarming(error.message)); }
  } }, label);
  const bar = h('div', { class: 'jxc-bar' }, ...tile.holders.slice(0, MAX_HOLDERS).map(({ device }) => {
    const question = { name: doc.name, rank: device.rank, device: device.id };
    const statistics = async () => {
      const f = await ask({ op: 'stats', ...question });
      out.replaceChildren(h('p', { class: f.nan || f.inf ? 'jxc-alarm-text' : null },
        `${device.label}: min ${number(f.minimum)} · max ${number(f.maximum)} · mean ${number(f.mean)} · ${f.nan} NaN · ${f.inf} Inf · ${count(f.size, 'value')}`));
    };
    return h('span', {}, swatch(device.rank), ` ${device.label} `, button('statistics', device, statistics), ' ',
      button('values', device, () => showValues(out, tile, device, question, { ask, signal: nextValues() })));
  }));
  if (tile.holders.length > MAX_HOLDERS) bar.append(`and ${tile.holders.length - MAX_HOLDERS} more copies`);
  box.append(bar, out);
}

/** A page of a shard's values, with buttons to others. */
async function showValues(out, tile, device, question, { ask, signal }) {
  const shape = tile.index.map(([a, b]) => b - a), n = shape.length, corner = shape.map(() => 0);
  const wide = Math.max(1, Math.min(PAGE, Math.floor((out.clientWidth || PAGE * VALUE_PX) / VALUE_PX)));
  const steps = shape.map((_, axis) => (axis === n - 1 ? wide : axis === n - 2 ? PAGE : 1));
  const global = axis => tile.index[axis][0] + corner[axis];
  const grid = h('div', { class: 'jxc-scroll', tabindex: 0, role: 'region', 'aria-label': 'values' });
  const load = async () => {
    const stop = corner.map((at, axis) => Math.min(shape[axis], at + steps[axis]));
    const found = await ask({ op: 'peek', ...question, start: corner, stop });
    grid.replaceChildren(valueTable(found.values, n ? stop[n - 1] - corner[n - 1] : 1, n, n > 1 ? global(n - 2) : 0, n ? global(n - 1) : 0));
  };
  const move = (axis, by) => async () => {
    corner[axis] = Math.max(0, Math.min(shape[axis] - 1, corner[axis] + by));
    try { await load(); } catch (error) { grid.replaceChildren(alarming(error.message)); }
  };
  await load();
  const step = (axis, by, label, arrow) => h('button', { type: 'button', 'aria-label': `${label} along axis ${axis}`, signal, onclick: move(axis, by) }, arrow);
  const bar = h('div', { class: 'jxc-bar' }, ...shape.map((size, axis) => (size <= steps[axis] ? null
    : h('span', {}, `axis ${axis} `, step(axis, -steps[axis], 'earlier', '◀'), ' ', step(axis, steps[axis], 'later', '▶')))).filter(Boolean));
  out.replaceChildren(h('p', {}, `Values on ${device.label}, at their place in the whole array:`), bar, grid);
}

function valueTable(values, across, n, row, column) {
  const rows = [];
  for (let i = 0; i < values.length; i += across) rows.push(values.slice(i, i + across));
  return h('table', { class: 'jxc-values' },
    n ? h('thead', {}, h('tr', {}, n > 1 ? h('td') : null, ...Array.from({ length: across }, (_, k) => h('th', { scope: 'col', class: 'jxc-number' }, String(column + k))))) : null,
    h('tbody', {}, ...rows.map((cells, k) => h('tr', {}, n > 1 ? h('th', { scope: 'row' }, String(row + k)) : null,
      ...cells.map(v => h('td', { class: /nan|inf/.test(v) ? 'jxc-number jxc-alarm-text' : 'jxc-number' }, v))))));
}
