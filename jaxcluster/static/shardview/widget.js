// The views as a widget (views/widget.py): anywidget's `_esm`.

import { draw } from './index.js';
import { atEnd } from './lifetime.js';

/** Questions to a widget's kernel side, and the promises of their answers. */
export function asker(model, signal) {
  const waiting = new Map();
  let next = 0;
  follow(model, 'msg:custom', message => {
    const call = waiting.get(message?.id);
    if (!call) return;
    waiting.delete(message.id);
    if ('error' in message) call.reject(new Error(message.error));
    else call.resolve(message.result);
  }, signal);
  return question => new Promise((resolve, reject) => {
    const id = ++next;
    waiting.set(id, { resolve, reject });
    model.send({ ...question, id });
  });
}

/** Hear a model's event until the signal is aborted; models know no signals. */
function follow(model, type, listener, signal) {
  model.on(type, listener);
  atEnd(signal, () => model.off(type, listener));
}

export default {
  render({ model, el }) {
    const life = new AbortController(), { signal } = life;
    const ask = asker(model, signal);
    const show = () => draw(el, model.get('document'), { ask: model.get('live') ? ask : null, signal });
    show();
    follow(model, 'change:document', show, signal);
    return () => life.abort();
  },
};
