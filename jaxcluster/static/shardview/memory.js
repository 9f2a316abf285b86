// What each device holds, and which variables it is.

import { MAX_TABLE } from './array.js';
import { h, lines, middle, scrolling, swatch, table } from './dom.js';
import { color } from './palette.js';
import { deviceMap, unknownDevice } from './parts.js';
import { bytes, count, ranksText } from './wording.js';

export function drawMemory(root, doc) {
  const devices = deviceMap(doc.devices);
  root.append(h('p', { class: 'jxc-title' }, 'Bytes held on each device'), ...lines(doc.notes), h('p', { class: 'jxc-small' }, 'Dark: variables; light: other.'));
  let bars = doc.bars.map(([rank, id, named, total, limit]) => ({ rank, label: (devices.get(id) ?? unknownDevice(id)).label, host: devices.get(id)?.host ?? '', named, total, limit }));
  if (bars.length > MAX_TABLE) {
    const hosts = ofHosts(bars);
    root.append(h('p', { class: 'jxc-small' }, `${count(bars.length, 'device')} folded into ${count(hosts.length, 'host')}.`));
    bars = hosts.sort((a, b) => b.total - a.total).slice(0, MAX_TABLE);
  }
  const full = Math.max(1, ...bars.map(b => b.limit || b.total));
  const free = bars.some(b => b.limit) ? [b => (b.limit ? bytes(b.limit - b.total) : '–')] : []; // CPU devices have no limit
  root.append(scrolling('devices', table([['rank', 'plain'], ['device', 'plain'], ['held', 'wide'], ['variables', 'number'], ['other', 'number'], ...free.map(() => ['free', 'number'])],
    bars.map(b => [swatch(b.rank), b.label, meter(b, full), bytes(b.named), bytes(b.total - b.named), ...free.map(of => of(b))]))));
  if (doc.names.length) {
    root.append(h('p', { class: 'jxc-title' }, 'Variables'), scrolling('variables', table([['variable', 'plain'], ['bytes on all devices', 'number'], ['ranks']],
      doc.names.slice(0, MAX_TABLE).map(([name, size, ranks]) => [h('code', {}, middle(name)), bytes(size), ranksText(ranks)]))));
  }
}

/** Bars of hosts: the sums of their devices. */
function ofHosts(bars) {
  const hosts = new Map();
  for (const b of bars) {
    const sum = hosts.get(b.host) ?? { rank: b.rank, label: b.host, named: 0, total: 0, limit: 0 };
    sum.named += b.named;
    sum.total += b.total;
    sum.limit += b.limit ?? 0;
    hosts.set(b.host, sum);
  }
  return [...hosts.values()];
}

function meter(b, full) {
  const scale = 100 / (b.limit || full), ground = color(b.rank);
  return h('div', { class: 'jxc-meter', role: 'img', 'aria-label': `${bytes(b.total)} of ${b.limit ? bytes(b.limit) : `${bytes(full)}, the fullest device`}` },
    h('i', { style: `width:${b.total * scale}%;background:${ground};opacity:.45` }), h('i', { style: `width:${b.named * scale}%;background:${ground}` }));
}
