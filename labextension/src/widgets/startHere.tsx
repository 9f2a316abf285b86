/** A number and one click: all that it takes to have a cluster. */

import * as React from 'react';
import type { Trans } from './labels';

interface IStartHere {
  /** How many ranks are proposed. */
  number: number;
  trans: Trans;
  /** Of the button. */
  label: string;
  title: string;
  onStart: (number: number) => void;
}

/** No machine has as many processes; a slip of the finger should not try. */
const MOST = 4096;

export function StartHere(props: IStartHere): JSX.Element {
  const { trans } = props;
  const [typed, setTyped] = React.useState<string | null>(null);
  const text = typed ?? String(props.number);
  const number = Number(text);
  const isRight = /^\d+$/.test(text) && number >= 1 && number <= MOST;
  return (
    <form
      className="jxl-startHere"
      onSubmit={event => {
        event.preventDefault();
        if (isRight) {
          props.onStart(number);
        }
      }}
    >
      <input
        type="number"
        min={1}
        max={MOST}
        value={text}
        aria-label={trans.__('Number of ranks')}
        aria-invalid={isRight ? undefined : true}
        title={trans.__('How many JAX processes the cluster has')}
        onChange={event => setTyped(event.target.value)}
        // The notebook would take keys for itself.
        onKeyDown={event => event.stopPropagation()}
      />
      <button
        type="submit"
        className="jxl-button jxl-mod-primary"
        title={props.title}
        disabled={!isRight}
      >
        {props.label}
      </button>
    </form>
  );
}
