// What each rank does now.

import { h, scrolling, swatch, table } from './dom.js';
import { bytes, count, unique } from './wording.js';

const STATES = { idle: '○', running: '▶', starting: '…', dead: '✖', silent: '?' };

export function drawStatus(root, doc) {
  const ranks = doc.ranks, running = ranks.filter(r => r.state === 'running');
  const skew = running.length ? Math.max(...running.map(r => r.seconds)) - (running.length < ranks.length ? 0 : Math.min(...running.map(r => r.seconds))) : 0;
  const states = unique(ranks.map(r => r.state)).map(state => `${ranks.filter(r => r.state === state).length} ${state}`).join(', ');
  root.append(h('p', { 'aria-live': 'polite' }, h('span', { class: 'jxc-title' }, `${count(ranks.length, 'rank')}`), `: ${states}` + (running.length ? ` · skew ${skew.toFixed(1)} s` : '')));
  root.append(scrolling('ranks', table([['rank', 'plain'], ['state', 'plain'], ['cell'], ['line'], ['for', 'number'], ['memory', 'number'], ['host'], ['pid', 'number']], ranks.map(r => [
    swatch(r.rank),
    h('span', { class: r.state === 'dead' || r.state === 'silent' ? 'jxc-alarm-text' : null }, `${STATES[r.state] ?? ''} ${r.state}${r.why ? `: ${r.why}` : ''}${r.queued && r.state === 'running' ? `, ${r.queued} waiting` : ''}`),
    r.cell == null ? '' : `[${r.cell}]`, r.line ? `${r.line}${r.function && r.function !== '<module>' ? ` ${r.function}` : ''}` : '',
    r.cell == null ? '' : `${r.seconds.toFixed(1)} s`, r.rss ? bytes(r.rss) : '', r.host, String(r.pid)]))));
}
