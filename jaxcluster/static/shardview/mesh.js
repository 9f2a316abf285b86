// Device meshes: an array of devices each.

import { drawArray } from './array.js';
import { h, lines } from './dom.js';
import { renewing } from './lifetime.js';
import { deviceMap } from './parts.js';

export function drawMesh(root, doc, context) {
  const devices = deviceMap(doc.devices), box = h('div'), next = renewing(context.signal);
  const show = i => {
    const mesh = doc.meshes[i], strides = mesh.axis_sizes.map((_, axis) => mesh.axis_sizes.slice(axis + 1).reduce((a, b) => a * b, 1));
    const index = flat => mesh.axis_sizes.map((size, axis) => {
      const at = Math.floor(flat / strides[axis]) % size;
      return [at, at + 1];
    });
    const parts = mesh.devices.map((id, flat) => [index(flat), [[id, 0, 0]]]);
    box.textContent = '';
    drawArray(box, { name: mesh.name, type: 'Mesh', headline: mesh.headline, facts: [], shape: mesh.axis_sizes, parts, axisNames: mesh.axis_names }, { ask: null, devices, signal: next() });
  };
  root.append(...lines(doc.notes));
  if (doc.meshes.length > 1) {
    const select = h('select', { signal: context.signal, onchange: event => show(Number(event.target.value)) }, ...doc.meshes.map((mesh, i) => h('option', { value: i }, mesh.headline)));
    root.append(h('div', { class: 'jxc-bar' }, h('label', {}, 'mesh', select)));
  }
  root.append(box);
  show(0);
}
