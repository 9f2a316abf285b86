// A pytree's leaves as nested nodes, and which of them are to be shown; nothing that is drawn.

/** Nested nodes from a tree's rows, with sums; only the first levels are open. */
export function buildTree(doc) {
  const node = (label, path) => ({ label, path, children: [], names: new Map(), open: false, row: false, count: 0, nbytes: 0, perDevice: 0, layout: null });
  const top = node(doc.name, '');
  doc.rows.forEach(([path, use]) => {
    const layout = doc.layouts[use];
    let at = top;
    const add = n => { n.count += 1; n.nbytes += layout.nbytes; n.perDevice += layout.per_device; };
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
