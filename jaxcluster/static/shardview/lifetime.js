// What ends when a view ends: every listener and observer is bound to an AbortSignal.

/** Hear an event until the signal is aborted. No listener is added in any other way. */
export function on(target, type, listener, signal) {
  if (!signal) throw new TypeError(`a listener of '${type}' without a signal that ends it`);
  target.addEventListener(type, listener, { signal });
}

/** Do something when the signal is aborted. (A listener that is bound to the signal itself is gone before that.) */
export function atEnd(signal, work) {
  signal.addEventListener('abort', work, { once: true });
}

/** A controller of its own, aborted when `parent` is at the latest. */
export function within(parent) {
  const own = new AbortController();
  if (parent.aborted) own.abort();
  else on(parent, 'abort', () => own.abort(), own.signal); // and is forgotten by its parent when it ends first
  return own;
}

/** For what is drawn again and again: each call ends what the last one's signal was given to. */
export function renewing(parent) {
  let last = null;
  return () => {
    last?.abort();
    last = within(parent);
    return last.signal;
  };
}

const SCROLLBAR_PX = 20;

/** Call `changed` after the node's inner width has changed. */
export function onWidth(node, changed, signal) {
  if (signal.aborted) return;
  let width = node.clientWidth, before = null, asked = 0;
  const look = () => {
    asked = 0;
    const now = node.clientWidth;
    if (signal.aborted || !now || now === width) return;
    // Drawn wider it gets a scrollbar, drawn narrower it loses it: the narrower one stays.
    if (now === before && now > width && now - width <= SCROLLBAR_PX) return;
    [before, width] = [width, now];
    changed();
  };
  // Not at once: what changes a size while sizes are told of is an error in the console.
  const observer = new ResizeObserver(() => { asked ||= requestAnimationFrame(look); });
  observer.observe(node);
  atEnd(signal, () => {
    observer.disconnect();
    cancelAnimationFrame(asked);
  });
}
