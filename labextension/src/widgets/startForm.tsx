/** Asks how to start a cluster, and remembers the answer for the next time. */

import { Dialog, ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';
import { StartFields } from './startFields';
import type { IProfile } from '../protocol';
import { NO_OPTIONS, checkOptions, optionsOf, startLine, type IStartOptions } from './startOptions';
import type { Trans } from './labels';

const REMEMBERED = 'jaxcluster:start';

export interface IStart {
  /** What follows `%jaxcluster start`. */
  line: string;
  /** Whether a cell of the notebook is to start it. */
  inCell: boolean;
}

/** A cluster as the user wants it; null if the user wants none. */
export async function askStart(
  settings: Partial<IStartOptions>,
  profiles: readonly IProfile[],
  trans: Trans
): Promise<IStart | null> {
  const defaults = { ...NO_OPTIONS, ...settings };
  const remembered = recall();
  const usable = profiles.filter(one => !one.problem);
  const named = usable.find(one => one.name === remembered.profile);
  const profile =
    remembered.profile === undefined ? usable.find(one => one.is_default) : named;
  const { inCell = defaults.inCell } = remembered;
  const initial = profile
    ? { ...optionsOf(profile), inCell }
    : { ...defaults, ...remembered, profile: '' };
  const body = new StartForm(initial, defaults, profiles, trans);
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
  remember(value, usable.some(one => one.is_default));
  return { line: startLine(value, profiles), inCell: value.inCell };
}

class StartForm extends ReactWidget implements Dialog.IBodyWidget<IStartOptions> {
  private options: IStartOptions;
  private isChecked = false;

  constructor(
    private readonly initial: IStartOptions,
    private readonly defaults: IStartOptions,
    private readonly profiles: readonly IProfile[],
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
    const wrong = checkOptions(this.options, this.trans, this.profiles);
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
        defaults={this.defaults}
        profiles={this.profiles}
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

/**
 * A name is not remembered: two clusters can't have the same. Of a profile only which it was, since its
 * file may change; that there was none, only where there was a default.
 */
function remember({ name: _, profile, inCell, ...others }: IStartOptions, hasDefault: boolean): void {
  const named = profile || hasDefault ? { profile } : {};
  const kept = profile ? { ...named, inCell } : { ...named, inCell, ...others };
  try {
    localStorage.setItem(REMEMBERED, JSON.stringify(kept));
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
