// An array: its picture, the axes to look along, who holds what, and what a check has found.

import { alarming, checkButton, h, lines, scrolling, swatch, table } from './dom.js';
import { showHolders } from './holders.js';
import { renewing } from './lifetime.js';
import { glyph } from './palette.js';
import { chooseAxes, cuts, describe, deviceMap, joinByHost, tilesAt, unknownDevice } from './parts.js';
import { MAX_SVG_TILES, picture } from './picture.js';
import { bytes, count, nameRanks, place, ranksText, span, unique } from './wording.js';

const MAX_LEGEND = 64;
export const MAX_TABLE = 256; // rows; more devices are folded into hosts

export function drawArray(root, doc, context) {
  const { signal } = context;
  const devices = context.devices ?? deviceMap(doc.devices ?? []);
  root.append(h('p', {}, h('span', { class: 'jxc-title' }, doc.name), ': ', h('code', {}, doc.type), ` · ${doc.headline}`));
  root.append(...lines(doc.facts));
  if (doc.values) root.append(h('details', {}, h('summary', {}, 'Values'), h('pre', { tabindex: 0 }, doc.values)));
  if (!doc.parts?.length) return;
  const cut = cuts(doc), nextControls = renewing(signal), nextHolders = renewing(signal);
  const view = { axes: chooseAxes(cut), at: doc.shape.map(() => 0), byHost: true, check: doc.check ?? context.check ?? null };
  const box = h('div', { class: 'jxc-picture' }), controls = h('div', { class: 'jxc-bar' });
  const report = h('div', { class: 'jxc-check', 'aria-live': 'polite' }, ...lines(doc.check?.lines ?? []));
  const said = h('div', { 'aria-live': 'polite' }, h('p', {}, 'Point at a part, or go there with Tab and the arrow keys; Enter keeps it.'));
  const more = h('div'), info = h('div', { class: 'jxc-info' }, said, more);

  const wrong = tile => whatIsWrong(tile, view.check, context.leaf ?? '');
  const show = picture(box, (tile, kept) => {
    const bad = wrong(tile);
    said.replaceChildren(...(bad ? [alarming(bad)] : []), h('p', {}, describe(tile)));
    more.textContent = '';
    const ends = nextHolders();
    if (kept) showHolders(more, tile, doc, { ...context, signal: ends });
  }, signal);
  const axisName = axis => {
    if (axis == null) return null;
    const names = (doc.split?.[axis] ?? []).join(', ');
    return `axis ${axis}${names ? ` (${names})` : ''}`;
  };
  const hostToggle = h('label', { hidden: true }, h('input', { type: 'checkbox', checked: true, signal, onchange: event => { view.byHost = event.target.checked; redraw(); } }), 'join the parts of a host');
  const checking = context.ask ? [checkButton(context, doc.name, report, check => { view.check = check; redraw(); })] : [];
  const redraw = () => {
    let tiles = tilesAt(doc, view.axes, view.at, devices);
    const many = tiles.length > MAX_SVG_TILES;
    hostToggle.hidden = !many;
    if (many && view.byHost) tiles = joinByHost(tiles);
    show(tiles, { size: view.axes.map(axis => (axis == null ? 1 : doc.shape[axis])), names: view.axes.map(axisName), alarm: wrong, label: `${doc.name} cut into parts` });
  };

  const chooser = (word, side, ends) => h('label', {}, word, h('select', { signal: ends, onchange: event => {
    const chosen = Number(event.target.value);
    if (view.axes[1 - side] === chosen) view.axes[1 - side] = view.axes[side];
    view.axes[side] = chosen;
    buildControls();
    redraw();
    controls.querySelectorAll('select')[side].focus();
  } }, ...doc.shape.map((size, axis) => h('option', { value: axis, selected: view.axes[side] === axis }, `${axisName(axis)}: ${size}`))));
  const slider = (axis, ends) => {
    const places = cut[axis], now = Math.max(0, places.findIndex(([a, b]) => view.at[axis] >= a && view.at[axis] < b));
    const out = h('output', {}, `${span(places[now])} (${now + 1} of ${places.length})`);
    return h('label', {}, axisName(axis), h('input', { type: 'range', min: 0, max: places.length - 1, value: now, 'aria-valuetext': span(places[now]), signal: ends, oninput: event => {
      const k = Number(event.target.value);
      view.at[axis] = places[k][0];
      out.textContent = `${span(places[k])} (${k + 1} of ${places.length})`;
      event.target.setAttribute('aria-valuetext', span(places[k]));
      redraw();
    } }), out);
  };
  const buildControls = () => {
    const ends = nextControls();
    controls.textContent = '';
    if (doc.shape.length > 2) {
      controls.append(...['rows', 'columns'].map((word, side) => chooser(word, side, ends)));
      doc.shape.forEach((_, axis) => {
        if (!view.axes.includes(axis) && cut[axis].length > 1) controls.append(slider(axis, ends)); // else there is one place
      });
    }
    controls.append(hostToggle);
  };
  const below = h('div', { class: 'jxc-bar' }, legend(doc, devices), ...checking);
  root.append(controls, box, below, info, report, deviceTable(doc, devices));
  buildControls();
  redraw();
}

/** What a check has found in a tile, in words. */
function whatIsWrong(tile, check, leaf) {
  if (!check || !tile.index) return '';
  const here = place(tile.index), found = all => all.filter(([path, index]) => (!leaf || path === leaf) && place(index) === here);
  const words = found(check.odd).map(([, , copies]) => `the copies differ: ${nameRanks(copies.map(c => c[0]))}`);
  const bad = found(check.bad);
  if (bad.length) words.push(`NaN or Inf on ${nameRanks(bad.map(b => b[2]))}`);
  return words.length ? `✖ ${words.join('; ')}` : '';
}

function legend(doc, devices) {
  const ranks = unique(doc.parts.flatMap(([, copies]) => copies.map(([id]) => devices.get(id)?.rank ?? 0))).sort((a, b) => a - b);
  if (ranks.length > MAX_LEGEND) return h('p', { class: 'jxc-small' }, `${count(ranks.length, 'rank')}: colours repeat, so the number under the pointer counts.`);
  return h('ul', { class: 'jxc-legend', 'aria-label': 'ranks' }, ...ranks.map(rank => h('li', {}, swatch(rank, glyph(rank)), ` rank ${rank}`)));
}

/** Who holds how much; by host where there are too many devices to read. */
function deviceTable(doc, devices) {
  const held = new Map();
  for (const [index, copies] of doc.parts) {
    for (const [id, replica, nbytes] of copies) {
      const entry = held.get(id) ?? { device: devices.get(id) ?? unknownDevice(id), nbytes: 0, places: [] };
      entry.nbytes += nbytes;
      entry.places.push(place(index) + (replica ? ` copy ${replica}` : ''));
      held.set(id, entry);
    }
  }
  const all = [...held.values()].sort((a, b) => a.device.rank - b.device.rank || a.device.id - b.device.id);
  const first = x => [swatch(x.device.rank), x.device.label + coords(x.device)];
  let inner, title = count(all.length, 'device');
  if (all.length > MAX_TABLE) {
    const hosts = byHost(all);
    title += `, folded into ${count(hosts.length, 'host')}${hosts.length > MAX_TABLE ? `, ${MAX_TABLE} of them shown` : ''}`;
    inner = table([['host', 'plain'], ['ranks'], ['devices', 'number'], ['bytes', 'number'], ['fullest device', 'number']], hosts.slice(0, MAX_TABLE));
  } else {
    inner = table([['rank', 'plain'], ['device', 'plain'], ['host'], ['holds'], ['bytes', 'number']], all.map(x => [...first(x), x.device.host,
      x.places.slice(0, 4).join('; ') + (x.places.length > 4 ? ` and ${x.places.length - 4} more` : ''), bytes(x.nbytes)]));
  }
  return h('details', {}, h('summary', {}, title), scrolling('devices', inner));
}

/** Rows of hosts: their ranks, devices, bytes and the bytes of the fullest device. */
function byHost(all) {
  const hosts = new Map();
  for (const { device, nbytes } of all) {
    const entry = hosts.get(device.host) ?? { ranks: [], devices: 0, nbytes: 0, most: 0 };
    entry.ranks.push(device.rank);
    entry.devices += 1;
    entry.nbytes += nbytes;
    entry.most = Math.max(entry.most, nbytes);
    hosts.set(device.host, entry);
  }
  return [...hosts].map(([host, e]) => [host, ranksText(e.ranks), String(e.devices), bytes(e.nbytes), bytes(e.most)]);
}

const coords = device => (device.coords ? ` at (${device.coords.join(', ')})` : '');
