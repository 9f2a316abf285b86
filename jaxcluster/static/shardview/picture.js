// An array's picture: its parts as tiles, as wide as there is room. Text in it keeps its size.

import { canvasPicture } from './canvas.js';
import { h } from './dom.js';
import { onWidth, renewing } from './lifetime.js';
import { svgPicture } from './svg.js';
import { unique } from './wording.js';

export const MAX_SVG_TILES = 600; // past it parts are joined by host, or drawn on a canvas
const DIGIT_PX = 6.5; // of the axes' numbers
const LINE_PX = 16;
const NO_ROOM_YET = 560; // where it is drawn before it stands on the page

/**
 * Draws tiles into `box`, again whenever its width changes, and tells `onTile(tile, pressed)` which one the user
 * looks at. Returns what shows other tiles: `size` is [rows, columns] in elements, `names` the axes' labels,
 * `alarm(tile)` what is wrong with one, `label` the whole.
 */
export function picture(box, onTile, signal) {
  const next = renewing(signal);
  let shown = null, state = null;
  const paint = () => {
    const { tiles, size, names, alarm, label } = shown;
    const focused = box.querySelector(':focus') != null, ends = next();
    box.textContent = '';
    if (!tiles.length) return box.append(h('p', {}, 'No device holds a part here.'));
    const axes = names.filter(name => name != null).map((name, i, all) => `${name} ${all.length > 1 && !i ? '↓' : '→'}`);
    if (axes.length) box.append(h('p', { class: 'jxc-axes' }, axes.join('   ')));
    const draw = tiles.length > MAX_SVG_TILES ? canvasPicture : svgPicture;
    const focus = draw(box, tiles, { ...frame(tiles, size, names, box.clientWidth || NO_ROOM_YET), alarm, label, onTile }, state, ends);
    if (focused) focus();
  };
  onWidth(box, () => shown && paint(), signal);
  return (tiles, look) => {
    shown = { tiles, ...look };
    state = { active: 0, kept: null };
    paint();
  };
}

/** Where everything lies in a picture of that width, in pixels, and the axes' marks. */
function frame(tiles, size, names, room) {
  const digits = key => String(Math.max(...tiles.map(t => t[key][1]))).length;
  const left = names[0] == null ? 4 : Math.ceil(8 + DIGIT_PX * digits('rows'));
  const right = names[1] == null ? 2 : Math.ceil(2 + (DIGIT_PX * digits('columns')) / 2);
  const top = names[1] == null ? (names[0] == null ? 2 : 7) : LINE_PX + 2, bottom = names[0] == null ? 2 : 7;
  const width = Math.max(60, Math.min(760, room - left - right));
  const lanes = unique(tiles.map(t => t.rows.join())).length;
  const height = Math.max(Math.min(20 * lanes, 110), Math.min(17 * lanes, 480), Math.min((width * size[0]) / Math.max(1, size[1]), 80), 22);
  return {
    left, top,
    width: width + left + right,
    height: height + top + bottom,
    x: at => left + (width * at) / Math.max(1, size[1]),
    y: at => top + (height * at) / Math.max(1, size[0]),
    columns: names[1] == null ? [] : marks(tiles, 'columns', Math.min(12, Math.max(2, Math.floor(width / (DIGIT_PX * digits('columns') + 8))))),
    rows: names[0] == null ? [] : marks(tiles, 'rows', Math.max(2, Math.floor(height / LINE_PX))),
  };
}

/** Where parts begin and end along an axis; not more than there is room for. */
function marks(tiles, key, limit) {
  const all = unique(tiles.flatMap(t => t[key])).sort((a, b) => a - b);
  const step = Math.ceil(all.length / limit), last = all.length - 1;
  return all.filter((_, i) => i === last || (i % step === 0 && last - i >= step / 2));
}
