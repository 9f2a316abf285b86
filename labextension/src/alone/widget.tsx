/** The sidebar as an anywidget (jaxcluster/notebook/panel/widget.py): for pages without JupyterLab's extensions. */

import * as React from 'react';
import { render } from 'preact';
import { english } from './english';
import { Kernel, type IWidgetModel } from './kernel';
import { Alone } from './panel';

export default {
  render({ model, el }: { model: IWidgetModel; el: HTMLElement }): () => void {
    const life = new AbortController();
    const kernel = new Kernel(model, life.signal);
    // The build gives React's place to preact, whose types are others.
    render((<Alone kernel={kernel} trans={english} />) as any, el);
    return () => {
      life.abort();
      render(null, el);
    };
  }
};
