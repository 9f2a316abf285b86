// Elements, and the small parts that several views are made of.

import { on } from './lifetime.js';
import { glyph, ground } from './palette.js';

/** An element. Listeners (`onclick`) end with the `signal` that must stand beside them. */
export function h(tag, { signal, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (key.startsWith('on')) on(node, key.slice(2), value, signal);
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.filter(c => c != null));
  return node;
}

/** An element of SVG. */
export function s(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

let lastId = 0;
export const newId = () => `jxc-${++lastId}`;

/** A rank's number on its colour. */
export function swatch(rank, text = `${glyph(rank)} ${rank}`) {
  return h('span', { class: 'jxc-swatch', style: `background:${ground(rank)}` }, text);
}

const TAIL = 8; // characters that always stand at a name's end

/** A text of which the middle is left out where there is no room: its ends tell it from others. */
export function middle(text) {
  const at = text.length > 2 * TAIL ? text.length - TAIL : text.length;
  return h('span', { class: 'jxc-middle', title: text }, h('span', {}, text.slice(0, at)), at < text.length ? h('span', {}, text.slice(at)) : null);
}

/** Lines of text; those that begin with ✖ are alarming. */
export function lines(texts) {
  return texts.map(text => h('p', { class: /^✖/.test(text) ? 'jxc-small jxc-alarm-text' : 'jxc-small' }, text));
}

export const alarming = text => h('p', { class: 'jxc-alarm-text' }, text);

/**
 * A table. `head` has each column's name and how it is shown: number, wide, or plain: one that says what it is
 * without its name. In a narrow view each row is a few lines, in which the names stand before the cells; the
 * roles keep it a table for those who hear it.
 */
export function table(head, rows) {
  const shown = ([name, how = '']) => ({ class: { number: 'jxc-number', wide: 'jxc-wide' }[how], 'data-name': how === 'plain' || how === 'wide' ? null : name });
  const row = cells => h('tr', { role: 'row' }, ...cells);
  return h('table', { role: 'table', class: 'jxc-table' },
    h('thead', { role: 'rowgroup' }, row(head.map(([name, how]) => h('th', { scope: 'col', role: 'columnheader', class: how === 'number' ? 'jxc-number' : null }, name)))),
    h('tbody', { role: 'rowgroup' }, ...rows.map(cells => row(cells.map((cell, i) => h('td', { role: 'cell', ...shown(head[i]) }, cell))))));
}

/** What is long, in a box that scrolls and can be scrolled by keyboard. */
export const scrolling = (label, inner) => h('div', { class: 'jxc-scroll', tabindex: 0, role: 'region', 'aria-label': label }, inner);

/** A button that asks the ranks to compare all copies; `found(check)` gets their answer, `report` its words. */
export function checkButton({ ask, signal }, name, report, found) {
  const button = h('button', { type: 'button', signal, onclick: async () => {
    button.disabled = true;
    report.replaceChildren(h('p', {}, 'Every rank reads its shards …'));
    let check = null;
    try {
      check = await ask({ op: 'check', name });
      report.replaceChildren(...lines(check.lines));
    } catch (error) {
      report.replaceChildren(alarming(error.message));
    }
    button.disabled = false;
    if (check && !signal.aborted) found(check);
  } }, 'Check copies and NaN');
  return button;
}
