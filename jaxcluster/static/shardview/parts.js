// Geometry: which parts of an array lie where, without anything that is drawn.

import { bytes, count, extent, nameRanks, place, unique } from './wording.js';

/** The devices of a document by id. */
export function deviceMap(rows) {
  return new Map(rows.map(([id, rank, label, kind, host, coords]) => [id, { id, rank, label, kind, host, coords }]));
}

export const unknownDevice = id => ({ id, rank: 0, label: `device ${id}`, kind: '', host: '', coords: null });

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

/** What a part is and who holds it, in words. */
export function describe(tile) {
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
