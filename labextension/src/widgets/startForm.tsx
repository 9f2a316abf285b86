/** Asks how to start a cluster, and remembers the answer for the next time. */

import { Dialog, ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';
import { StartFields } from './startFields';
import { NO_OPTIONS, checkOptions, startLine, type IStartOptions } from './startOptions';
import type { Trans } from './labels';

const REMEMBERED = 'jaxcluster:start';

export interface IStart {
  /** What follows `%jaxcluster start`. */
  line: string;
  /** Whether a cell of the notebook is to start it. */
  inCell: boolean;
}

/** A cluster as the user wants it; null if the user wants none. */
export async function askStart(settings: Partial<IStartOptions>, trans: Trans): Promise<IStart | null> {
  const body = new StartForm({ ...NO_OPTIONS, ...settings, ...recall() }, trans);
  const dialog = new FormDialog({
    title: trans.__('Start a JAX cluster'),
    body,
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Start') })
    ],
    focusNodeSelector: 'input'
  });
  const { button, value } = await dialog.launch();
  if (!button.accept || !value) {
    return null;
  }
  remember(value);
  return { line: startLine(value), inCell: value.inCell };
}

class StartForm extends ReactWidget implements Dialog.IBodyWidget<IStartOptions> {
  private options: IStartOptions;
  private isChecked = false;

  constructor(
    private readonly initial: IStartOptions,
    private readonly trans: Trans
  ) {
    super();
    this.addClass('jxl-startForm');
    this.options = initial;
  }

  getValue(): IStartOptions {
    return this.options;
  }

  /** Whether it can be used as it is; if not, the first wrong field gets the focus. */
  check(): boolean {
    const wrong = checkOptions(this.options, this.trans);
    if (!Object.keys(wrong).length) {
      return true;
    }
    this.isChecked = true;
    this.update();
    const fields = [...this.node.querySelectorAll<HTMLInputElement>('[name]')];
    fields.find(({ name }) => wrong[name])?.focus();
    return false;
  }

  protected override render(): JSX.Element {
    return (
      <StartFields
        initial={this.initial}
        trans={this.trans}
        isChecked={this.isChecked}
        onChange={options => (this.options = options)}
      />
    );
  }
}

/** A dialog that stays open while its form is wrong. Clicks and Enter both come by way of `resolve`. */
class FormDialog extends Dialog<IStartOptions> {
  constructor(private readonly form: Partial<Dialog.IOptions<IStartOptions>> & { body: StartForm }) {
    super(form);
    this.addClass('jxl-formDialog');
  }

  override resolve(index?: number): void {
    const accepts = index === undefined || this.form.buttons?.[index]?.accept;
    if (!accepts || this.form.body.check()) {
      super.resolve(index);
    }
  }
}

/** A name is not remembered: two clusters can't have the same. */
function remember({ name: _, ...others }: IStartOptions): void {
  try {
    localStorage.setItem(REMEMBERED, JSON.stringify(others));
  } catch {
    // Then it is asked again next time.
  }
}

function recall(): Partial<IStartOptions> {
  try {
    const found = JSON.parse(localStorage.getItem(REMEMBERED) ?? '{}');
    const known = Object.entries(NO_OPTIONS).filter(([key, value]) => typeof found?.[key] === typeof value);
    return Object.fromEntries(known.map(([key]) => [key, found[key]]));
  } catch {
    return {};
  }
}
