/** Asks how to start a cluster. */

import { Dialog, ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';
import { StartFields } from './startFields';
import { NO_OPTIONS, startLine, type IStartOptions } from './startOptions';
import type { Trans } from './labels';

/** What follows `%jaxcluster start` for a cluster as the user wants it; null if the user wants none. */
export async function askStart(settings: Partial<IStartOptions>, trans: Trans): Promise<string | null> {
  const dialog = new FormDialog({
    title: trans.__('Start a JAX cluster'),
    body: new StartForm({ ...NO_OPTIONS, ...settings }, trans),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Start') })
    ],
    focusNodeSelector: 'input'
  });
  const { button, value } = await dialog.launch();
  return button.accept && value ? startLine(value) : null;
}

class StartForm extends ReactWidget implements Dialog.IBodyWidget<IStartOptions> {
  constructor(
    private options: IStartOptions,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-startForm');
  }

  getValue(): IStartOptions {
    return this.options;
  }

  protected override render(): JSX.Element {
    const onChange = (options: IStartOptions) => (this.options = options);
    return <StartFields initial={this.options} trans={this.trans} onChange={onChange} />;
  }
}

/** A dialog that stays open while its form is wrong. Clicks and Enter both come by way of `resolve`. */
class FormDialog extends Dialog<IStartOptions> {
  constructor(private readonly form: Partial<Dialog.IOptions<IStartOptions>>) {
    super(form);
    this.addClass('jxl-formDialog');
  }

  override resolve(index?: number): void {
    const accepts = index === undefined || this.form.buttons?.[index]?.accept;
    if (!accepts || this.node.querySelector('form')!.reportValidity()) {
      super.resolve(index);
    }
  }
}
