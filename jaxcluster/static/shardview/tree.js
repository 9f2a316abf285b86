// A pytree: its leaves as rows that fold, searched and sorted, and the picture of the one that is opened.

import { drawArray } from './array.js';
import { alarming, checkButton, h, lines, middle, newId } from './dom.js';
import { buildTree, flatten } from './leaves.js';
import { on, onWidth, renewing } from './lifetime.js';
import { deviceMap } from './parts.js';
import { bytes, count } from './wording.js';

const ROW_PX = 24, NARROW_LEAF_PX = 60; // one line; three, as in style.css
const HEIGHT_PX = 380, MARGIN_PX = 120; // of the list; drawn above and below what is seen of it

export function drawTree(root, doc, context) {
  const { signal } = context;
  root.append(h('p', {}, h('span', { class: 'jxc-title' }, doc.name), `: ${doc.type} of ${count(doc.leaves, 'leaf', 'leaves')} · ${bytes(doc.nbytes)} · ${bytes(doc.per_device)} on the fullest device`));
  root.append(...lines(doc.notes));

  const devices = deviceMap(doc.devices), nextLeaf = renewing(signal);
  const state = { query: '', sort: 'order', check: doc.check ?? null };
  const report = h('div', { 'aria-live': 'polite' }, ...lines(state.check?.lines ?? []));
  const counted = h('span', { 'aria-live': 'polite', class: 'jxc-small' });
  const detail = h('div', { class: 'jxc-leaf' });
  const openLeaf = async node => {
    detail.replaceChildren();
    const name = doc.name + node.path, ends = nextLeaf();
    const inner = { ...context, signal: ends, devices, check: state.check, leaf: node.path };
    if (node.layout.parts) return drawArray(detail, { ...node.layout, name }, inner);
    if (!context.ask) return detail.append(h('p', {}, `%shards ${name} shows it.`));
    try {
      const found = await context.ask({ op: 'look', name });
      if (!ends.aborted) drawArray(detail, found, { ...inner, devices: undefined });
    } catch (error) {
      if (!ends.aborted) detail.append(alarming(error.message));
    }
  };
  const bad = node => state.check && node.row && [...state.check.odd, ...state.check.bad].some(([path]) => path === node.path);
  const list = treeList(doc, bad, openLeaf, signal);
  const refresh = () => {
    const found = list.show(state);
    counted.textContent = state.query ? count(found, 'row') : '';
  };
  const search = h('input', { type: 'search', placeholder: 'path', signal, oninput: event => { state.query = event.target.value; list.toStart(); refresh(); } });
  const sort = h('select', { signal, onchange: event => { state.sort = event.target.value; refresh(); } },
    h('option', { value: 'order' }, 'as in the tree'), h('option', { value: 'bytes' }, 'largest first'));
  const bar = h('div', { class: 'jxc-bar' }, h('label', {}, 'find', search), h('label', {}, 'order', sort), counted);
  if (context.ask) bar.append(checkButton(context, undefined, report, check => { state.check = check; refresh(); }));
  root.append(bar, list.node, report, detail);
  refresh();
}

/** The rows, of which only those that are seen are on the page. `show` returns how many leaves they are. */
function treeList(doc, bad, openLeaf, signal) {
  const top = buildTree(doc), prefix = newId();
  let visible = [], tops = [0], active = 0, look = null; // of each row, and where the last one ends
  const head = h('div', { class: 'jxc-row jxc-title', 'aria-hidden': 'true' }, ...['leaf', 'type', 'sharding', 'bytes', 'per device'].map((text, i) => h('span', { class: CELLS[i] }, text)));
  const rows = h('div', { role: 'none', class: 'jxc-rows' });
  const tree = h('div', { class: 'jxc-scroll jxc-tree', role: 'tree', tabindex: 0, 'aria-label': `leaves of ${doc.name}` }, rows);
  const node = h('div', {}, head, tree);

  const paint = () => {
    const from = tree.scrollTop - MARGIN_PX, to = tree.scrollTop + (tree.clientHeight || HEIGHT_PX) + MARGIN_PX;
    const first = Math.max(0, tops.findIndex(y => y > from) - 1), last = Math.min(visible.length, (tops.findIndex(y => y > to) + 1 || tops.length) - 1);
    const shown = visible.slice(first, last).map((_, i) => first + i);
    if (active < visible.length && (active < first || active >= last)) shown.push(active);
    rows.replaceChildren(...shown.map(i => treeRow(visible[i], { id: `${prefix}-${i}`, top: tops[i], selected: i === active, bad: bad(visible[i].node), searched: !!look.query })));
    tree.setAttribute('aria-activedescendant', visible.length ? `${prefix}-${active}` : '');
  };
  const show = wanted => {
    look = wanted;
    visible = flatten(top, look);
    active = Math.min(active, Math.max(0, visible.length - 1));
    const leaf = node.closest('.jxc-narrow') ? NARROW_LEAF_PX : ROW_PX;
    tops = [0];
    for (const row of visible) tops.push(tops.at(-1) + (row.node.row ? leaf : ROW_PX));
    rows.style.height = `${tops.at(-1)}px`;
    tree.style.height = `${Math.min(HEIGHT_PX, tops.at(-1) + 4)}px`;
    paint();
    return visible.filter(v => v.node.row).length;
  };
  const act = i => {
    active = i;
    const entry = visible[i].node;
    if (entry.children.length) {
      entry.open = !entry.open;
      show(look);
    } else {
      paint();
      openLeaf(entry);
    }
  };
  const go = i => {
    active = Math.max(0, Math.min(visible.length - 1, i));
    const y = tops[active], end = tops[active + 1];
    if (y < tree.scrollTop) tree.scrollTop = y;
    else if (end > tree.scrollTop + tree.clientHeight) tree.scrollTop = end - tree.clientHeight;
    paint();
  };
  on(tree, 'scroll', paint, signal);
  on(tree, 'click', event => {
    const row = event.target.closest('.jxc-row');
    if (row) act(Number(row.id.slice(prefix.length + 1)));
  }, signal);
  on(tree, 'keydown', event => {
    const entry = visible[active];
    if (!entry) return;
    const { node: at, parent } = entry, page = Math.max(1, tops.findIndex(y => y > tops[active] + tree.clientHeight) - active - 1);
    const fold = open => { at.open = open; show(look); };
    switch (event.key) {
      case 'ArrowDown': go(active + 1); break;
      case 'ArrowUp': go(active - 1); break;
      case 'PageDown': go(active + page); break;
      case 'PageUp': go(active - page); break;
      case 'Home': go(0); break;
      case 'End': go(visible.length - 1); break;
      case 'ArrowRight': if (at.children.length && !at.open) fold(true); else go(active + 1); break;
      case 'ArrowLeft': if (at.children.length && at.open) fold(false); else go(visible.findIndex(v => v.node === parent)); break;
      case 'Enter': case ' ': act(active); break;
      default: return;
    }
    event.preventDefault();
    event.stopPropagation();
  }, signal);
  onWidth(node, () => look && show(look), signal);
  return { node, show, toStart: () => { active = 0; } };
}

const CELLS = ['jxc-path', 'jxc-type', 'jxc-spec', 'jxc-number', 'jxc-number jxc-each'];

function treeRow({ node, level, position, size }, { id, top, selected, bad, searched }) {
  const open = node.children.length ? String(node.open || searched) : null;
  const type = node.row ? node.layout.type : count(node.count, 'leaf', 'leaves'), spec = node.row ? node.layout.spec : '';
  const each = node.perDevice ? bytes(node.perDevice) : '';
  const cells = [
    [open ? (open === 'true' ? '▾ ' : '▸ ') : '  ', bad ? h('b', { class: 'jxc-alarm-text' }, '✖ ') : null, middle(node.label)],
    [middle(type)], [spec && middle(spec)], [bytes(node.nbytes)], [each],
  ];
  return h('div', { class: node.row ? 'jxc-row' : 'jxc-row jxc-inner', role: 'treeitem', id, style: `top:${top}px`, 'aria-level': level + 1, 'aria-posinset': position + 1,
    'aria-setsize': size, 'aria-expanded': open, 'aria-selected': String(selected), title: [node.path, type, spec, each && `${each} on the fullest device`].filter(Boolean).join(' · ') },
  ...cells.map((cell, i) => h('span', { class: CELLS[i], style: i ? null : `padding-left:${level * 14 + 6}px` }, ...cell.filter(Boolean))));
}
