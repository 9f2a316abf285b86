/** How the outcome of a command is told. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';
import type { Trans } from './widgets/labels';

/** What Lab shows of a notification; it truncates the rest. */
const MAX_CHARACTERS = 140;

export function say(text: string): void {
  Notification.success(short(text), { autoClose: 5000 });
}

/** An error in its own words: the first line, and the others at a click. */
export function complain(error: unknown, trans: Trans): void {
  const text = error instanceof Error ? error.message : String(error);
  const [title] = text.trim().split('\n');
  const actions =
    title === text.trim() && title.length <= MAX_CHARACTERS
      ? []
      : [
          {
            label: trans.__('Details'),
            callback: () => void showText(title, text, trans)
          }
        ];
  Notification.error(short(title), { autoClose: false, actions });
}

function showText(title: string, text: string, trans: Trans): Promise<unknown> {
  const body = new Widget({ node: document.createElement('pre') });
  body.addClass('jxl-text');
  body.node.textContent = text;
  return showDialog({
    title: short(title),
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}

function short(text: string): string {
  return text.length <= MAX_CHARACTERS ? text : `${text.slice(0, MAX_CHARACTERS - 1)}…`;
}
