// Draws jaxcluster's documents: arrays cut into shards, pytrees, meshes, memory and status.
//
// One plain ES module without dependencies or a build step. It is the `_esm` of the widget
// (views/widget.py), and JupyterLab's panel and MIME renderer import `draw` from it. The documents
// are those of views/document.py.

const VERSION = 1;

// The same as in views/palette.py, which says where they come from.
export const COLORS = [
  '#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#F0E442', '#999999',
];
export const GLYPHS = '●■▲◆○□△◇';
const MAX_SVG_TILES = 600; // past it parts are joined by host, or drawn on a canvas
const MAX_LEGEND = 64;
const MAX_TABLE = 256;
const MAX_STRIPES = 8;
const ROW_PX = 24;
const PAGE = 8; // rows and columns of one look at values

export const color = rank => COLORS[rank % COLORS.length];
export const glyph = rank => GLYPHS[(rank + Math.floor(rank / COLORS.length)) % GLYPHS.length];

/** Black or white, whichever reads better on a colour. */
export function ink(hex) {
  const [r, g, b] = [1, 3, 5].map(i => {
    const c = parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) ** 2 > 0.0525 ? '#000000' : '#ffffff';
}

export const CSS = `
.jxc { --ink: var(--jp-ui-font-color1, CanvasText); --paper: var(--jp-layout-color1, Canvas);
  --line: var(--jp-border-color1, GrayText); --shade: var(--jp-layout-color2, ButtonFace);
  --focus: var(--jp-brand-color1, Highlight); --alarm: color-mix(in srgb, var(--jp-error-color1, #b00020) 60%, var(--ink));
  font: 13px/1.4 var(--jp-ui-font-family, system-ui, sans-serif);
  color: var(--ink); background: var(--paper); padding: 6px; max-width: 100%; }
.jxc * { box-sizing: border-box; }
.jxc [hidden] { display: none !important; }
.jxc code, .jxc pre, .jxc .jxc-values td { font-family: var(--jp-code-font-family, monospace); font-size: 12px;
  color: inherit; background: none; padding: 0; }
.jxc p { margin: 2px 0; overflow-wrap: anywhere; }
.jxc .jxc-title { font-weight: 600; }
.jxc .jxc-small { font-size: 12px; }
.jxc .jxc-bar { display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center; margin: 6px 0; }
.jxc .jxc-bar label { display: inline-flex; gap: 6px; align-items: center; }
.jxc button, .jxc select, .jxc input { font: inherit; color: var(--ink); background: var(--paper);
  border: 1px solid var(--line); border-radius: 3px; padding: 2px 8px; }
.jxc button { cursor: pointer; background: var(--shade); }
.jxc :is(button, select, input, canvas, [tabindex], summary):focus-visible {
  outline: 2px solid var(--focus); outline-offset: 1px; }
.jxc input[type=range] { padding: 0; accent-color: var(--focus); }
.jxc svg { display: block; max-width: 100%; height: auto; overflow: visible; }
.jxc svg text { pointer-events: none; }
.jxc .jxc-tile { cursor: pointer; }
.jxc .jxc-tile .jxc-frame { fill: none; stroke: var(--paper); stroke-width: 2; }
.jxc .jxc-tile.jxc-alarm .jxc-frame { stroke: var(--alarm); stroke-width: 5; }
.jxc .jxc-tile .jxc-ring { fill: none; stroke: none; stroke-width: 3; }
.jxc .jxc-tile:focus { outline: none; }
.jxc .jxc-tile:is(:focus-visible, :hover, [aria-pressed=true]) .jxc-ring { stroke: #000000; }
.jxc .jxc-tile:is(:focus-visible, :hover, [aria-pressed=true]) .jxc-ring + .jxc-ring { stroke: #ffffff; stroke-width: 1.5; }
.jxc .jxc-tile[aria-pressed=true] .jxc-ring + .jxc-ring { stroke-dasharray: 6 3; }
.jxc .jxc-gap { fill: var(--paper); stroke: var(--ink); stroke-dasharray: 5 4; }
.jxc .jxc-axis { fill: var(--ink); font-size: 11px; }
.jxc .jxc-legend { display: flex; flex-wrap: wrap; gap: 2px 12px; margin: 6px 0; padding: 0; list-style: none; }
.jxc .jxc-legend li { margin: 0; }
.jxc .jxc-swatch { display: inline-block; min-width: 18px; padding: 0 4px; text-align: center; border-radius: 2px; }
.jxc .jxc-info { min-height: 3em; border-left: 3px solid var(--line); padding: 2px 8px; margin: 6px 0; }
.jxc :is(.jxc-alarm-text, .jxc-values td.jxc-alarm-text) { color: var(--alarm); font-weight: 600; }
.jxc table { color: inherit; border-collapse: collapse; margin: 4px 0; font-size: 12px; }
.jxc :is(th, td) { text-align: left; padding: 1px 8px; border-bottom: 1px solid var(--line); }
.jxc :is(th, td).jxc-number { text-align: right; font-variant-numeric: tabular-nums; }
.jxc .jxc-scroll { overflow: auto; max-height: 380px; max-width: 100%; }
.jxc .jxc-tree { position: relative; border: 1px solid var(--line); }
.jxc .jxc-row { position: absolute; left: 0; right: 0; height: ${ROW_PX}px; display: grid; gap: 10px;
  grid-template-columns: minmax(180px, 3fr) minmax(110px, 1.5fr) minmax(110px, 2fr) 80px 80px;
  align-items: center; padding-right: 8px; white-space: nowrap; cursor: default; }
.jxc .jxc-row > span { overflow: hidden; text-overflow: ellipsis; }
.jxc .jxc-row[aria-selected=true] { background: var(--shade); outline: 2px solid var(--focus); outline-offset: -2px; }
.jxc .jxc-meter { position: relative; width: 240px; height: 14px; background: var(--shade); border: 1px solid var(--line); }
.jxc .jxc-meter i { position: absolute; left: 0; top: 0; bottom: 0; }
.jxc .jxc-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
`;

// ------------------------------------------------------------------------------- small tools

function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.filter(c => c != null));
  return node;
}

function s(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

let lastId = 0;
const newId = () => `jxc-${++lastId}`;

export function bytes(size) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (size < 1024) return unit === 'B' ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

const span = ([start, stop]) => `${start}:${stop}`;
const place = index => `[${index.map(span).join(', ')}]`;
const extent = index => `(${index.map(([a, b]) => b - a).join(', ')}${index.length === 1 ? ',' : ''})`;
const count = (n, word, many) => `${n.toLocaleString('en')} ${n === 1 ? word : many || word + 's'}`;
const unique = list => [...new Set(list)];
const number = x => (x == null ? '–' : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(3) : String(+x.toPrecision(6)));

/** Ranks as people write them: 0, 2-5. */
export function ranksText(ranks) {
  const runs = [];
  for (const rank of unique(ranks).sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`)).join(', ');
}

const nameRanks = ranks => `rank${unique(ranks).length === 1 ? '' : 's'} ${ranksText(ranks)}`;

function swatch(rank, text = `${glyph(rank)} ${rank}`) {
  const ground = color(rank);
  return h('span', { class: 'jxc-swatch', style: `background:${ground};color:${ink(ground)}` }, text);
}

/** The devices of a document by id. */
function deviceMap(rows) {
  return new Map(rows.map(([id, rank, label, kind, host, coords]) => [id, { id, rank, label, kind, host, coords }]));
}

const unknownDevice = id => ({ id, rank: 0, label: `device ${id}`, kind: '', host: '', coords: null });

function table(head, rows, numbers = []) {
  const cls = i => (numbers.includes(i) ? 'jxc-number' : null);
  return h('table', {},
    h('thead', {}, h('tr', {}, ...head.map((text, i) => h('th', { scope: 'col', class: cls(i) }, text)))),
    h('tbody', {}, ...rows.map(row => h('tr', {}, ...row.map((cell, i) => h('td', { class: cls(i) }, cell))))));
}

/** A table in a box that scrolls, and can be scrolled by keyboard. */
const scrolling = (label, inner) => h('div', { class: 'jxc-scroll', tabindex: 0, role: 'region', 'aria-label': label }, inner);

function lines(texts) {
  return texts.map(text => h('p', { class: /^✖/.test(text) ? 'jxc-small jxc-alarm-text' : 'jxc-small' }, text));
}

// ------------------------------------------------------------------------------- geometry

/** For each axis the different [start, stop] that parts have along it, in order. */
export function cuts(doc) {
  return doc.shape.map((_, axis) => {
    const seen = new Map();
    for (const [index] of doc.parts) seen.set(index[axis].join(), index[axis]);
    return [...seen.values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  });
}

/** The two axes that are cut most, the later one as columns; the last ones where none is. */
export function chooseAxes(cut) {
  const order = cut.map((_, axis) => axis).sort((a, b) => cut[b].length - cut[a].length || b - a).slice(0, 2);
  if (order.length < 2) return [null, order.length ? order[0] : null];
  return [Math.min(...order), Math.max(...order)];
}

/** The parts at one place, as tiles: rows and columns in elements, and who holds them. */
export function tilesAt(doc, [rowAxis, columnAxis], at, devices) {
  const tiles = [];
  for (const [index, copies] of doc.parts) {
    const here = index.every(([a, b], axis) => axis === rowAxis || axis === columnAxis || (at[axis] >= a && at[axis] < b) || a === b);
    if (!here) continue;
    const holders = copies.map(([id, replica, nbytes]) => ({ device: devices.get(id) ?? unknownDevice(id), replica, nbytes }));
    tiles.push({
      index, holders,
      ranks: unique(holders.map(x => x.device.rank)).sort((a, b) => a - b),
      rows: rowAxis == null ? [0, 1] : index[rowAxis],
      columns: columnAxis == null ? [0, 1] : index[columnAxis],
    });
  }
  for (const index of doc.gaps ?? []) { // what no process holds that answered
    if (index.every(([a, b], axis) => axis === rowAxis || axis === columnAxis || (at[axis] >= a && at[axis] < b))) {
      tiles.push({ index, holders: [], ranks: [], label: `${place(index)} · held by no process that answered`,
        rows: rowAxis == null ? [0, 1] : index[rowAxis], columns: columnAxis == null ? [0, 1] : index[columnAxis] });
    }
  }
  return tiles;
}

/** Tiles joined into one for each host, where a host's tiles fill a box; else the tiles themselves. */
export function joinByHost(tiles) {
  const hosts = new Map();
  for (const tile of tiles) {
    const names = unique(tile.holders.map(x => x.device.host));
    if (names.length !== 1) return tiles;
    const found = hosts.get(names[0]) ?? { host: names[0], index: null, holders: [], parts: 0, area: 0, rows: [Infinity, -Infinity], columns: [Infinity, -Infinity] };
    for (const key of ['rows', 'columns']) found[key] = [Math.min(found[key][0], tile[key][0]), Math.max(found[key][1], tile[key][1])];
    found.area += (tile.rows[1] - tile.rows[0]) * (tile.columns[1] - tile.columns[0]);
    found.holders.push(...tile.holders);
    found.parts += 1;
    hosts.set(names[0], found);
  }
  const joined = [...hosts.values()];
  const full = joined.every(t => Math.abs((t.rows[1] - t.rows[0]) * (t.columns[1] - t.columns[0]) - t.area) < 0.5);
  if (!full) return tiles;
  return joined.map((t, i) => ({ ...t, stripes: [i], ranks: unique(t.holders.map(x => x.device.rank)).sort((a, b) => a - b) }));
}

function describe(tile) {
  if (tile.label) return tile.label;
  const held = tile.holders;
  const total = held.reduce((sum, x) => sum + x.nbytes, 0);
  if (tile.host != null) {
    return `host ${tile.host}: ${count(tile.parts, 'part')} on ${count(held.length, 'device')} of ${nameRanks(tile.ranks)}, ${bytes(total)}`;
  }
  const shown = held.slice(0, 8).map(x => `${x.device.label} (rank ${x.device.rank}${x.replica ? `, copy ${x.replica}` : ''})`).join(', ');
  const more = held.length > 8 ? ` and ${held.length - 8} more` : '';
  return `${place(tile.index)} · shape ${extent(tile.index)} · ${bytes(held[0]?.nbytes ?? 0)} on ${shown}${more}`;
}

/** The nearest tile in a direction, or the one it started from. */
export function neighbour(tiles, from, key) {
  const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
  const centre = t => [(t.columns[0] + t.columns[1]) / 2, (t.rows[0] + t.rows[1]) / 2];
  const [x, y] = centre(tiles[from]);
  let best = from, least = Infinity;
  tiles.forEach((tile, i) => {
    const [u, v] = centre(tile);
    const ahead = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    const far = ahead + 1e3 * aside;
    if (ahead > 1e-9 && far < least) { best = i; least = far; }
  });
  return best;
}

// ------------------------------------------------------------------------------- an array's picture

/**
 * Draws tiles into `box` and tells `onTile(tile, pressed)` which one the user looks at.
 * `size` is [rows, columns] in elements, `names` the axes' labels, `alarm(tile)` marks bad ones.
 */
function drawTiles(box, tiles, { size, names, alarm, onTile, label }) {
  box.textContent = '';
  if (!tiles.length) return box.append(h('p', {}, 'No device holds a part here.'));
  const width = Math.max(320, Math.min(760, box.clientWidth ? box.clientWidth - 70 : 560));
  const lanes = unique(tiles.map(t => t.rows.join())).length;
  const height = Math.max(Math.min(34 * lanes, 420), Math.min(17 * lanes, 1100), Math.min((width * size[0]) / Math.max(1, size[1]), 0.65 * width), 44);
  const left = size[0] > 1 || names[0] ? 56 : 6, top = names[1] != null ? 34 : 6;
  const x = at => left + (width * at) / Math.max(1, size[1]);
  const y = at => top + (height * at) / Math.max(1, size[0]);
  const draw = tiles.length > MAX_SVG_TILES ? drawCanvas : drawSvg;
  draw(box, tiles, { x, y, width: width + left + 8, height: height + top + 8, left, top, names, alarm, onTile, label });
}

function marks(tiles, key, limit) {
  const all = unique(tiles.flatMap(t => t[key])).sort((a, b) => a - b);
  const step = Math.ceil(all.length / limit);
  const last = all.length - 1;
  return all.filter((_, i) => i === last || (i % step === 0 && last - i >= step / 2));
}

function drawSvg(box, tiles, g) {
  const svg = s('svg', { viewBox: `0 0 ${g.width} ${g.height}`, width: g.width, role: 'group', 'aria-label': g.label });
  const axes = svg.appendChild(s('g', { 'aria-hidden': 'true' }));
  if (g.names[1] != null) {
    const words = `${g.names[0] != null ? `${g.names[0]} ↓   ` : ''}${g.names[1]} →`;
    axes.append(s('text', { x: 0, y: 12, class: 'jxc-axis' }, words));
    for (const at of marks(tiles, 'columns', 12)) axes.append(s('text', { x: g.x(at), y: 28, class: 'jxc-axis', 'text-anchor': 'middle' }, String(at)));
  }
  if (g.names[0] != null) {
    for (const at of marks(tiles, 'rows', Math.max(2, Math.floor((g.height - g.top) / 16)))) axes.append(s('text', { x: g.left - 6, y: g.y(at) + 4, class: 'jxc-axis', 'text-anchor': 'end' }, String(at)));
  }
  // Apart from the tiles, whose names say all of it already.
  const labels = s('g', { 'aria-hidden': 'true', 'pointer-events': 'none' });
  const nodes = tiles.map((tile, i) => {
    const [x0, x1] = tile.columns.map(g.x), [y0, y1] = tile.rows.map(g.y);
    const bad = g.alarm(tile), name = (bad ? `${bad}. ` : '') + describe(tile);
    const node = s('g', { class: bad ? 'jxc-tile jxc-alarm' : 'jxc-tile', role: 'button', tabindex: i ? -1 : 0, 'aria-pressed': 'false', 'aria-label': name }, s('title', {}, name));
    const stripes = tile.stripes ?? tile.ranks.slice(0, MAX_STRIPES), w = (x1 - x0) / stripes.length;
    stripes.forEach((rank, k) => {
      const ground = color(rank), paper = ink(ground), left = x0 + k * w;
      node.append(s('rect', { x: left, y: y0, width: w, height: y1 - y0, fill: ground }));
      if (w > 22 && y1 - y0 > 15) {
        labels.append(s('text', { x: left + 5, y: y0 + 14, 'font-size': 12, fill: paper }, `${glyph(rank)} ${tile.host ?? rank}`));
        const own = tile.holders.filter(t => t.device.rank === rank);
        const text = tile.host != null ? nameRanks(tile.ranks) : own.length > 2 ? `${own.length} devices` : own.map(t => t.device.label).join(', ');
        if (w > 6.5 * text.length && y1 - y0 > 32) labels.append(s('text', { x: left + 5, y: y0 + 28, 'font-size': 11, fill: paper }, text));
      }
    });
    if (!tile.stripes && tile.ranks.length > stripes.length && x1 - x0 > 90 && y1 - y0 > 48) {
      const ground = color(stripes.at(-1));
      labels.append(s('text', { x: x1 - 6, y: y1 - 6, 'font-size': 11, 'text-anchor': 'end', fill: ink(ground) }, `+${tile.ranks.length - stripes.length} ranks`));
    }
    if (!stripes.length) {
      node.append(s('rect', { class: 'jxc-gap', x: x0 + 2, y: y0 + 2, width: Math.max(1, x1 - x0 - 4), height: Math.max(1, y1 - y0 - 4) }));
      if (y1 - y0 > 15) labels.append(s('text', { x: x0 + 6, y: y0 + 15, class: 'jxc-axis' }, 'no one'));
    }
    node.append(s('rect', { class: 'jxc-frame', x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
    for (const inset of [2.5, 4.5]) { // black and white: one of them is seen on any colour
      node.append(s('rect', { class: 'jxc-ring', x: x0 + inset, y: y0 + inset, width: Math.max(1, x1 - x0 - 2 * inset), height: Math.max(1, y1 - y0 - 2 * inset) }));
    }
    if (bad) {
      labels.append(s('rect', { x: x1 - 22, y: y0 + 4, width: 18, height: 18, rx: 3, fill: '#ffffff' }));
      labels.append(s('text', { x: x1 - 13, y: y0 + 18, 'font-size': 14, 'text-anchor': 'middle', fill: '#b00020' }, '✖'));
    }
    svg.append(node);
    return node;
  });
  let pressed = null;
  const focus = i => {
    nodes.forEach((node, k) => node.setAttribute('tabindex', k === i ? 0 : -1));
    nodes[i].focus();
  };
  const press = i => {
    pressed = pressed === i ? null : i;
    nodes.forEach((node, k) => node.setAttribute('aria-pressed', String(k === pressed)));
    g.onTile(tiles[i], pressed !== null);
  };
  nodes.forEach((node, i) => {
    node.addEventListener('pointerenter', () => pressed === null && g.onTile(tiles[i], false));
    node.addEventListener('focus', () => pressed === null && g.onTile(tiles[i], false));
    node.addEventListener('click', () => { focus(i); press(i); });
    node.addEventListener('keydown', event => {
      if (event.key === 'Enter' || event.key === ' ') press(i);
      else if (event.key === 'Home') focus(0);
      else if (event.key === 'End') focus(nodes.length - 1);
      else if (event.key.startsWith('Arrow')) focus(neighbour(tiles, i, event.key));
      else return;
      event.preventDefault();
      event.stopPropagation(); // notebooks have their own use for these keys
    });
  });
  svg.append(labels);
  box.append(svg);
}

function drawCanvas(box, tiles, g) {
  const scale = window.devicePixelRatio || 1;
  const canvas = h('canvas', { width: g.width * scale, height: g.height * scale, tabindex: 0, role: 'application',
    'aria-roledescription': 'map of shards', 'aria-label': `${g.label}; arrow keys go from part to part`, style: `width:${g.width}px;height:${g.height}px;max-width:100%` });
  const words = h('p', { class: 'jxc-small' }, `${count(tiles.length, 'part')}, drawn without labels: point at one, or use the arrow keys.`);
  box.append(canvas, words);
  const ctx = canvas.getContext('2d');
  if (!ctx) return;
  let cursor = 0, pressed = false;
  const paint = () => {
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, g.width, g.height);
    for (const tile of tiles) {
      const [x0, x1] = tile.columns.map(g.x), [y0, y1] = tile.rows.map(g.y);
      const stripes = tile.ranks.slice(0, MAX_STRIPES), w = (x1 - x0) / stripes.length;
      stripes.forEach((rank, k) => { ctx.fillStyle = color(rank); ctx.fillRect(x0 + k * w, y0, w, y1 - y0); });
      if (x1 - x0 > 4 && y1 - y0 > 4) { ctx.strokeStyle = '#ffffff'; ctx.lineWidth = 0.5; ctx.strokeRect(x0, y0, x1 - x0, y1 - y0); }
      if (g.alarm(tile)) { ctx.strokeStyle = '#b00020'; ctx.lineWidth = 3; ctx.strokeRect(x0, y0, x1 - x0, y1 - y0); }
    }
    const at = tiles[cursor], [x0, x1] = at.columns.map(g.x), [y0, y1] = at.rows.map(g.y);
    ctx.lineWidth = 3; ctx.strokeStyle = '#000000'; ctx.strokeRect(x0, y0, x1 - x0, y1 - y0);
    ctx.lineWidth = 1; ctx.strokeStyle = '#ffffff'; ctx.strokeRect(x0, y0, x1 - x0, y1 - y0);
  };
  const go = i => { if (i >= 0 && i !== cursor) { cursor = i; paint(); } g.onTile(tiles[cursor], pressed); };
  const under = event => {
    const r = canvas.getBoundingClientRect();
    const px = ((event.clientX - r.left) * g.width) / r.width, py = ((event.clientY - r.top) * g.height) / r.height;
    return tiles.findIndex(t => px >= g.x(t.columns[0]) && px < g.x(t.columns[1]) && py >= g.y(t.rows[0]) && py < g.y(t.rows[1]));
  };
  canvas.addEventListener('pointermove', event => { if (!pressed) go(under(event)); });
  canvas.addEventListener('click', event => { const i = under(event); pressed = i >= 0 && !(pressed && i === cursor); go(i); });
  canvas.addEventListener('focus', () => go(cursor));
  canvas.addEventListener('keydown', event => {
    if (event.key.startsWith('Arrow')) go(neighbour(tiles, cursor, event.key));
    else if (event.key === 'Enter' || event.key === ' ') { pressed = !pressed; go(cursor); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  paint();
}

// ------------------------------------------------------------------------------- kinds

function drawArray(root, doc, context) {
  const devices = context.devices ?? deviceMap(doc.devices ?? []);
  root.append(h('p', {}, h('span', { class: 'jxc-title' }, doc.name), ': ', h('code', {}, doc.type), ` · ${doc.headline}`));
  root.append(...lines(doc.facts));
  const report = h('div', { class: 'jxc-check', 'aria-live': 'polite' });
  if (doc.values) root.append(h('details', {}, h('summary', {}, 'Values'), h('pre', { tabindex: 0 }, doc.values)));
  if (!doc.parts?.length) return root.append(report);
  const cut = cuts(doc);
  let axes = chooseAxes(cut), check = doc.check ?? context.check ?? null;
  const at = doc.shape.map(() => 0);
  const box = h('div', { class: 'jxc-picture' }), controls = h('div', { class: 'jxc-bar' });
  const info = h('div', { class: 'jxc-info' }), said = h('div', { 'aria-live': 'polite' }), more = h('div');
  info.append(said, more);
  said.append(h('p', {}, 'Point at a part, or go there with Tab and the arrow keys; Enter keeps it.'));
  let byHost = true;

  const leaf = context.leaf ?? '';
  const wrong = tile => {
    if (!check || !tile.index) return '';
    const here = place(tile.index);
    const odd = check.odd.filter(([path, index]) => (!leaf || path === leaf) && place(index) === here);
    const bad = check.bad.filter(([path, index]) => (!leaf || path === leaf) && place(index) === here);
    const words = odd.map(([, , copies]) => `the copies differ: ${nameRanks(copies.map(c => c[0]))}`);
    if (bad.length) words.push(`NaN or Inf on ${nameRanks(bad.map(b => b[2]))}`);
    return words.length ? `✖ ${words.join('; ')}` : '';
  };
  const axisName = axis => {
    if (axis == null) return null;
    const names = doc.axisNames?.[axis] ?? (doc.split?.[axis] ?? []).join(', ');
    return doc.axisNames ? names : `axis ${axis}${names ? ` (${names})` : ''}`;
  };
  const redraw = () => {
    let tiles = tilesAt(doc, axes, at, devices);
    const many = tiles.length > MAX_SVG_TILES;
    hostToggle.hidden = !many;
    if (many && byHost) tiles = joinByHost(tiles);
    drawTiles(box, tiles, {
      size: axes.map(axis => (axis == null ? 1 : doc.shape[axis])),
      names: axes.map(axisName), alarm: wrong, label: `${doc.name} cut into parts`,
      onTile: (tile, pressed) => {
        said.textContent = '';
        const bad = wrong(tile);
        if (bad) said.append(h('p', { class: 'jxc-alarm-text' }, bad));
        said.append(h('p', {}, describe(tile)));
        more.textContent = '';
        if (pressed) showHolders(more, tile, doc, context);
      },
    });
  };
  const hostToggle = h('label', { hidden: true }, h('input', { type: 'checkbox', checked: true, onchange: event => { byHost = event.target.checked; redraw(); } }), 'join the parts of a host');
  const buildControls = () => {
    controls.textContent = '';
    if (doc.shape.length > 2) {
      ['rows', 'columns'].forEach((word, side) => {
        const select = h('select', { onchange: event => {
          const chosen = Number(event.target.value);
          if (axes[1 - side] === chosen) axes[1 - side] = axes[side];
          axes[side] = chosen;
          buildControls(); redraw();
          controls.querySelectorAll('select')[side].focus();
        } }, ...doc.shape.map((size, axis) => h('option', { value: axis, selected: axes[side] === axis }, `${axisName(axis)}: ${size}`)));
        controls.append(h('label', {}, word, select));
      });
      doc.shape.forEach((_, axis) => {
        if (axes.includes(axis)) return;
        const places = cut[axis], now = Math.max(0, places.findIndex(([a, b]) => at[axis] >= a && at[axis] < b));
        const out = h('output', {}, `${span(places[now])} (${now + 1} of ${places.length})`);
        controls.append(h('label', {}, axisName(axis), h('input', { type: 'range', min: 0, max: places.length - 1, value: now, 'aria-valuetext': span(places[now]), disabled: places.length < 2, oninput: event => {
          const k = Number(event.target.value);
          at[axis] = places[k][0];
          out.textContent = `${span(places[k])} (${k + 1} of ${places.length})`;
          event.target.setAttribute('aria-valuetext', span(places[k]));
          redraw();
        } }), out));
      });
    }
    controls.append(hostToggle);
    if (context.ask && !doc.axisNames) {
      const button = h('button', { type: 'button', onclick: async () => {
        button.disabled = true;
        report.replaceChildren(h('p', {}, 'Every rank reads its shards …'));
        try {
          check = await context.ask({ op: 'check', name: doc.name });
          report.replaceChildren(...lines(check.lines));
        } catch (error) {
          report.replaceChildren(h('p', { class: 'jxc-alarm-text' }, error.message));
        }
        button.disabled = false;
        redraw();
      } }, 'Check copies and NaN');
      controls.append(button);
    }
  };
  buildControls();
  root.append(controls, box, legend(doc, devices), info, report);
  if (doc.check) report.append(...lines(doc.check.lines));
  root.append(deviceTable(doc, devices));
  redraw();
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
  let inner, title = count(all.length, 'device');
  if (all.length > MAX_TABLE) {
    const hosts = new Map();
    for (const x of all) {
      const entry = hosts.get(x.device.host) ?? { ranks: [], devices: 0, nbytes: 0, most: 0 };
      entry.ranks.push(x.device.rank);
      entry.devices += 1;
      entry.nbytes += x.nbytes;
      entry.most = Math.max(entry.most, x.nbytes);
      hosts.set(x.device.host, entry);
    }
    title += `, folded into ${count(hosts.size, 'host')}`;
    const rows = [...hosts].slice(0, MAX_TABLE).map(([host, e]) => [host, ranksText(e.ranks), String(e.devices), bytes(e.nbytes), bytes(e.most)]);
    inner = table(['host', 'ranks', 'devices', 'bytes', 'fullest device'], rows, [2, 3, 4]);
    if (hosts.size > MAX_TABLE) title += `, ${MAX_TABLE} of them shown`;
  } else if (doc.axisNames) {
    inner = table(['rank', 'device', 'kind', 'host', 'at'], all.map(x => [swatch(x.device.rank), x.device.label + coords(x.device), x.device.kind, x.device.host, x.places[0]]));
  } else {
    inner = table(['rank', 'device', 'host', 'holds', 'bytes'], all.map(x => [swatch(x.device.rank), x.device.label + coords(x.device), x.device.host,
      x.places.slice(0, 4).join('; ') + (x.places.length > 4 ? ` and ${x.places.length - 4} more` : ''), bytes(x.nbytes)]), [4]);
  }
  return h('details', {}, h('summary', {}, title), scrolling('devices', inner));
}

const coords = device => (device.coords ? ` at (${device.coords.join(', ')})` : '');

/** The copies of one part, with statistics and values on demand. */
function showHolders(box, tile, doc, context) {
  if (doc.axisNames || !tile.index) return;
  if (!context.ask) {
    box.append(h('p', { class: 'jxc-small' }, `Statistics and values: %shards ${doc.name} --widget`));
    return;
  }
  const out = h('div', { 'aria-live': 'polite' });
  const holders = tile.holders.slice(0, 16);
  const bar = h('div', { class: 'jxc-bar' });
  for (const { device } of holders) {
    const question = { name: doc.name, rank: device.rank, device: device.id };
    const run = (label, work) => h('button', { type: 'button', 'aria-label': `${label} on ${device.label}`, onclick: async () => {
      out.replaceChildren(h('p', {}, '…'));
      try { await work(); } catch (error) { out.replaceChildren(h('p', { class: 'jxc-alarm-text' }, error.message)); }
    } }, label);
    bar.append(h('span', {}, swatch(device.rank), ` ${device.label} `,
      run('statistics', async () => {
        const f = await context.ask({ op: 'stats', ...question });
        out.replaceChildren(h('p', { class: f.nan || f.inf ? 'jxc-alarm-text' : null },
          `${device.label}: min ${number(f.minimum)} · max ${number(f.maximum)} · mean ${number(f.mean)} · ${f.nan} NaN · ${f.inf} Inf · ${count(f.size, 'value')}`));
      }), ' ',
      run('values', () => showValues(out, tile, device, question, context))));
  }
  if (tile.holders.length > holders.length) bar.append(`and ${tile.holders.length - holders.length} more copies`);
  box.append(bar, out);
}

async function showValues(out, tile, device, question, context) {
  const shape = tile.index.map(([a, b]) => b - a), n = shape.length, corner = shape.map(() => 0);
  const grid = h('div'), bar = h('div', { class: 'jxc-bar' });
  const load = async () => {
    const stop = corner.map((at, axis) => Math.min(shape[axis], at + (axis >= n - 2 ? PAGE : 1)));
    const found = await context.ask({ op: 'peek', ...question, start: corner, stop });
    const across = n ? stop[n - 1] - corner[n - 1] : 1, global = axis => tile.index[axis][0] + corner[axis];
    const rows = [];
    for (let i = 0; i < found.values.length; i += across) rows.push(found.values.slice(i, i + across));
    const first = n > 1 ? global(n - 2) : 0;
    grid.replaceChildren(h('table', { class: 'jxc-values' },
      n ? h('thead', {}, h('tr', {}, n > 1 ? h('td') : null, ...Array.from({ length: across }, (_, k) => h('th', { scope: 'col', class: 'jxc-number' }, String(global(n - 1) + k))))) : null,
      h('tbody', {}, ...rows.map((row, k) => h('tr', {}, n > 1 ? h('th', { scope: 'row' }, String(first + k)) : null,
        ...row.map(v => h('td', { class: /nan|inf/.test(v) ? 'jxc-number jxc-alarm-text' : 'jxc-number' }, v)))))));
  };
  shape.forEach((size, axis) => {
    const step = axis >= n - 2 ? PAGE : 1;
    if (size <= step) return;
    const move = by => async () => {
      corner[axis] = Math.max(0, Math.min(size - 1, corner[axis] + by));
      await load();
    };
    bar.append(h('span', {}, `axis ${axis} `, h('button', { type: 'button', 'aria-label': `earlier along axis ${axis}`, onclick: move(-step) }, '◀'), ' ',
      h('button', { type: 'button', 'aria-label': `later along axis ${axis}`, onclick: move(step) }, '▶')));
  });
  await load();
  out.replaceChildren(h('p', {}, `Values on ${device.label}, at their place in the whole array:`), bar, grid);
}

function drawTree(root, doc, context) {
  const devices = deviceMap(doc.devices);
  root.append(h('p', {}, h('span', { class: 'jxc-title' }, doc.name), `: ${doc.type} of ${count(doc.leaves, 'leaf', 'leaves')} · ${bytes(doc.nbytes)} · ${bytes(doc.per_device)} on the fullest device`));
  root.append(...lines(doc.notes));
  if (doc.leaves > doc.rows.length) root.append(h('p', { class: 'jxc-small' }, `Alike leaves are folded into ${count(doc.rows.length, 'row')}; × says how many a row stands for.`));

  const top = buildTree(doc);
  const state = { query: '', sort: 'order', active: 0, opened: null };
  let check = doc.check ?? null, visible = [];
  const report = h('div', { 'aria-live': 'polite' }, ...(check ? lines(check.lines) : []));
  const counted = h('span', { 'aria-live': 'polite', class: 'jxc-small' });
  const search = h('input', { type: 'search', placeholder: 'path', oninput: event => { state.query = event.target.value; state.active = 0; refresh(); } });
  const sort = h('select', { onchange: event => { state.sort = event.target.value; refresh(); } },
    h('option', { value: 'order' }, 'as in the tree'), h('option', { value: 'bytes' }, 'largest first'));
  const bar = h('div', { class: 'jxc-bar' }, h('label', {}, 'find', search), h('label', {}, 'order', sort), counted);
  if (context.ask) {
    const button = h('button', { type: 'button', onclick: async () => {
      button.disabled = true;
      report.replaceChildren(h('p', {}, 'Every rank reads its shards …'));
      try {
        check = await context.ask({ op: 'check' });
        report.replaceChildren(...lines(check.lines));
      } catch (error) { report.replaceChildren(h('p', { class: 'jxc-alarm-text' }, error.message)); }
      button.disabled = false;
      refresh();
    } }, 'Check copies and NaN');
    bar.append(button);
  }
  const head = h('div', { class: 'jxc-row jxc-title', style: 'position:static', 'aria-hidden': 'true' }, ...['leaf', 'type', 'sharding', 'bytes', 'per device'].map(text => h('span', {}, text)));
  const rows = h('div', { role: 'none', style: 'position:relative' });
  const tree = h('div', { class: 'jxc-scroll jxc-tree', role: 'tree', tabindex: 0, 'aria-label': `leaves of ${doc.name}` }, rows);
  const detail = h('div', { class: 'jxc-leaf' });
  const prefix = newId();

  const bad = node => check && node.row && [...check.odd, ...check.bad].some(([path]) => path === node.path);
  const paint = () => {
    const first = Math.max(0, Math.floor(tree.scrollTop / ROW_PX) - 5);
    const last = Math.min(visible.length, first + Math.ceil((tree.clientHeight || 380) / ROW_PX) + 10);
    const nodes = [];
    for (let i = first; i < last; i++) nodes.push(treeRow(i));
    if (state.active < visible.length && (state.active < first || state.active >= last)) nodes.push(treeRow(state.active));
    rows.replaceChildren(...nodes);
    rows.style.height = `${visible.length * ROW_PX}px`;
    tree.setAttribute('aria-activedescendant', visible.length ? `${prefix}-${state.active}` : '');
  };
  const treeRow = i => {
    const { node, level, position, size } = visible[i];
    const isOpen = node.children.length ? String(node.open || !!state.query) : null;
    const times = node.row && node.count > 1 ? ` × ${node.count.toLocaleString('en')}` : '';
    return h('div', { class: 'jxc-row', role: 'treeitem', id: `${prefix}-${i}`, style: `top:${i * ROW_PX}px`, 'aria-level': level + 1, 'aria-posinset': position + 1,
      'aria-setsize': size, 'aria-expanded': isOpen, 'aria-selected': String(i === state.active), title: node.path, onclick: () => { state.active = i; act(i); } },
      h('span', { style: `padding-left:${level * 14 + 6}px` }, isOpen ? (isOpen === 'true' ? '▾ ' : '▸ ') : '  ', bad(node) ? h('b', { class: 'jxc-alarm-text' }, '✖ ') : null, node.label + times),
      h('span', {}, node.row ? node.layout.type : count(node.count, 'leaf', 'leaves')),
      h('span', {}, node.row ? node.layout.spec : ''),
      h('span', { class: 'jxc-number' }, bytes(node.nbytes)), h('span', { class: 'jxc-number' }, node.perDevice ? bytes(node.perDevice) : ''));
  };
  const refresh = () => {
    visible = flatten(top, state);
    const found = visible.filter(v => v.node.row).length;
    counted.textContent = state.query ? count(found, 'row') : '';
    state.active = Math.min(state.active, Math.max(0, visible.length - 1));
    tree.style.height = `${Math.min(380, visible.length * ROW_PX + 4)}px`;
    paint();
  };
  const act = i => {
    const { node } = visible[i];
    if (node.children.length) { node.open = !node.open; refresh(); return; }
    paint();
    openLeaf(node);
  };
  const openLeaf = async node => {
    detail.replaceChildren();
    const name = doc.name + node.path, inner = { ...context, devices, check, leaf: node.path };
    if (node.layout.parts) drawArray(detail, { ...node.layout, name }, inner);
    else if (context.ask) {
      try { drawArray(detail, await context.ask({ op: 'look', name }), { ...inner, devices: undefined }); }
      catch (error) { detail.append(h('p', { class: 'jxc-alarm-text' }, error.message)); }
    } else detail.append(h('p', {}, `%shards ${name} shows it.`));
  };
  const go = i => {
    state.active = Math.max(0, Math.min(visible.length - 1, i));
    const y = state.active * ROW_PX;
    if (y < tree.scrollTop) tree.scrollTop = y;
    else if (y + ROW_PX > tree.scrollTop + tree.clientHeight) tree.scrollTop = y + ROW_PX - tree.clientHeight;
    paint();
  };
  tree.addEventListener('scroll', paint);
  tree.addEventListener('keydown', event => {
    const entry = visible[state.active];
    if (!entry) return;
    const { node } = entry;
    switch (event.key) {
      case 'ArrowDown': go(state.active + 1); break;
      case 'ArrowUp': go(state.active - 1); break;
      case 'PageDown': go(state.active + 14); break;
      case 'PageUp': go(state.active - 14); break;
      case 'Home': go(0); break;
      case 'End': go(visible.length - 1); break;
      case 'ArrowRight': if (node.children.length && !node.open) { node.open = true; refresh(); } else go(state.active + 1); break;
      case 'ArrowLeft':
        if (node.children.length && node.open) { node.open = false; refresh(); }
        else go(visible.findIndex(v => v.node === entry.parent));
        break;
      case 'Enter': case ' ': act(state.active); break;
      default: return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
  root.append(bar, head, tree, report, detail);
  refresh();
}

/** Nested nodes from a tree's rows, with sums; only the first levels are open. */
export function buildTree(doc) {
  const node = (label, path) => ({ label, path, children: [], names: new Map(), open: false, row: false, count: 0, nbytes: 0, perDevice: 0, layout: null });
  const top = node(doc.name, '');
  doc.rows.forEach(([path, use, times]) => {
    const layout = doc.layouts[use], nbytes = layout.nbytes * times, perDevice = layout.per_device * times;
    let at = top;
    const add = n => { n.count += times; n.nbytes += nbytes; n.perDevice += perDevice; };
    add(at);
    path.forEach((step, i) => {
      let next = at.names.get(step);
      if (!next || i === path.length - 1) {
        next = node(step, at.path + step);
        at.names.set(step, next);
        at.children.push(next);
      }
      at = next;
      add(at);
    });
    at.row = true;
    at.layout = layout;
  });
  top.open = true;
  if (top.children.length === 1) top.children[0].open = true;
  if (doc.rows.length <= 40) (function openAll(n) { n.open = true; n.children.forEach(openAll); })(top);
  return top;
}

/** The rows to show, in order: what is open, or what the search finds. */
export function flatten(top, { query, sort }) {
  const out = [], wanted = query.trim().toLowerCase();
  const keep = new Map();
  const matches = node => {
    if (!keep.has(node)) keep.set(node, node.path.toLowerCase().includes(wanted) || node.children.some(matches));
    return keep.get(node);
  };
  const visit = (node, level, parent, position, size) => {
    out.push({ node, level, parent, position, size });
    if (!node.open && !wanted) return;
    let children = wanted ? node.children.filter(matches) : node.children;
    if (sort === 'bytes') children = [...children].sort((a, b) => b.nbytes - a.nbytes);
    children.forEach((child, i) => visit(child, level + 1, node, i, children.length));
  };
  if (!wanted || matches(top)) visit(top, 0, null, 0, 1);
  return out;
}

function drawMesh(root, doc, context) {
  const devices = deviceMap(doc.devices), box = h('div');
  const show = i => {
    const mesh = doc.meshes[i], strides = mesh.axis_sizes.map((_, axis) => mesh.axis_sizes.slice(axis + 1).reduce((a, b) => a * b, 1));
    const parts = mesh.devices.map((id, flat) => [mesh.axis_sizes.map((size, axis) => { const at = Math.floor(flat / strides[axis]) % size; return [at, at + 1]; }), [[id, 0, 0]]]);
    box.textContent = '';
    drawArray(box, { name: mesh.name, type: 'Mesh', headline: mesh.headline, facts: [], shape: mesh.axis_sizes, parts, axisNames: mesh.axis_names }, { ...context, ask: null, devices });
  };
  if (doc.meshes.length > 1) {
    const select = h('select', { onchange: event => show(Number(event.target.value)) }, ...doc.meshes.map((mesh, i) => h('option', { value: i }, mesh.headline)));
    root.append(h('div', { class: 'jxc-bar' }, h('label', {}, 'mesh', select)));
  }
  root.append(...lines(doc.notes), box);
  show(0);
}

function drawMemory(root, doc) {
  const devices = deviceMap(doc.devices);
  root.append(h('p', { class: 'jxc-title' }, 'Bytes held on each device'), ...lines(doc.notes));
  let bars = doc.bars.map(([rank, id, named, total, limit]) => ({ rank, label: (devices.get(id) ?? unknownDevice(id)).label, host: devices.get(id)?.host ?? '', named, total, limit }));
  if (bars.length > MAX_TABLE) {
    const hosts = new Map();
    for (const b of bars) {
      const sum = hosts.get(b.host) ?? { rank: b.rank, label: b.host, named: 0, total: 0, limit: 0 };
      sum.named += b.named; sum.total += b.total; sum.limit += b.limit ?? 0;
      hosts.set(b.host, sum);
    }
    root.append(h('p', { class: 'jxc-small' }, `${count(bars.length, 'device')} folded into ${count(hosts.size, 'host')}.`));
    bars = [...hosts.values()].sort((a, b) => b.total - a.total).slice(0, MAX_TABLE);
  }
  const full = Math.max(1, ...bars.map(b => b.limit || b.total));
  const meter = b => {
    const scale = 100 / (b.limit || full), ground = color(b.rank);
    return h('div', { class: 'jxc-meter', role: 'img', 'aria-label': `${bytes(b.total)} of ${b.limit ? bytes(b.limit) : `${bytes(full)}, the fullest device`}` },
      h('i', { style: `width:${b.total * scale}%;background:${ground};opacity:.45` }), h('i', { style: `width:${b.named * scale}%;background:${ground}` }));
  };
  root.append(scrolling('devices', table(['rank', 'device', 'dark: variables, light: other', 'variables', 'other', 'free'],
    bars.map(b => [swatch(b.rank), b.label, meter(b), bytes(b.named), bytes(b.total - b.named), b.limit ? bytes(b.limit - b.total) : '–']), [3, 4, 5])));
  if (doc.names.length) {
    root.append(h('p', { class: 'jxc-title' }, 'Variables'), scrolling('variables', table(['variable', 'bytes on all devices', 'ranks'],
      doc.names.slice(0, MAX_TABLE).map(([name, size, ranks]) => [h('code', {}, name), bytes(size), ranksText(ranks)]), [1])));
  }
}

const STATES = { idle: '○', running: '▶', starting: '…', dead: '✖', silent: '?' };

function drawStatus(root, doc) {
  const ranks = doc.ranks, running = ranks.filter(r => r.state === 'running');
  const skew = running.length ? Math.max(...running.map(r => r.seconds)) - (running.length < ranks.length ? 0 : Math.min(...running.map(r => r.seconds))) : 0;
  const states = unique(ranks.map(r => r.state)).map(state => `${ranks.filter(r => r.state === state).length} ${state}`).join(', ');
  root.append(h('p', { 'aria-live': 'polite' }, h('span', { class: 'jxc-title' }, `${count(ranks.length, 'rank')}`), `: ${states}` + (running.length ? ` · skew ${skew.toFixed(1)} s` : '')));
  root.append(scrolling('ranks', table(['rank', 'state', 'cell', 'line', 'for', 'memory', 'host', 'pid'], ranks.map(r => [
    swatch(r.rank),
    h('span', { class: r.state === 'dead' || r.state === 'silent' ? 'jxc-alarm-text' : null }, `${STATES[r.state] ?? ''} ${r.state}${r.why ? `: ${r.why}` : ''}${r.queued && r.state === 'running' ? `, ${r.queued} waiting` : ''}`),
    r.cell == null ? '' : `[${r.cell}]`, r.line ? `${r.line}${r.function && r.function !== '<module>' ? ` ${r.function}` : ''}` : '',
    r.cell == null ? '' : `${r.seconds.toFixed(1)} s`, r.rss ? bytes(r.rss) : '', r.host, String(r.pid)]), [4, 5, 7])));
}

const KINDS = { array: drawArray, tree: drawTree, mesh: drawMesh, memory: drawMemory, status: drawStatus };

/**
 * Draws a document into `el`, in place of what is there.
 *
 * `ask(question)` returns a promise of an answer of the ranks; without it the picture stands alone,
 * as in a saved notebook. Questions: {op: 'stats', name, rank, device}, {op: 'peek', name, rank,
 * device, start, stop}, {op: 'check', name}, {op: 'look', name}.
 */
export function draw(el, doc, { ask = null } = {}) {
  const focused = doc?.kind === 'status' && el.querySelector('.jxc-scroll:focus') != null;
  el.textContent = '';
  const root = h('div', { class: 'jxc' }, h('style', {}, CSS));
  el.append(root);
  const kind = KINDS[doc?.kind];
  if (!kind || doc.v > VERSION) root.append(h('p', {}, 'This view was made by another version of jaxcluster; the cell\'s text says the same.'));
  else kind(root, doc, { ask });
  if (focused) root.querySelector('.jxc-scroll')?.focus(); // a status is drawn again twice a second
  return root;
}

/** Questions to a widget's kernel side, and the promises of their answers. */
export function asker(model) {
  const waiting = new Map();
  let next = 0;
  const onMessage = message => {
    const call = waiting.get(message?.id);
    if (!call) return;
    waiting.delete(message.id);
    if ('error' in message) call.reject(new Error(message.error));
    else call.resolve(message.result);
  };
  model.on('msg:custom', onMessage);
  return {
    ask: question => new Promise((resolve, reject) => {
      const id = ++next;
      waiting.set(id, { resolve, reject });
      model.send({ ...question, id });
    }),
    close: () => model.off('msg:custom', onMessage),
  };
}

export default {
  render({ model, el }) {
    const questions = asker(model);
    const show = () => draw(el, model.get('document'), { ask: model.get('live') ? questions.ask : null });
    show();
    model.on('change:document', show);
    return () => {
      model.off('change:document', show);
      questions.close();
    };
  },
};
