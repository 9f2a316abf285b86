/** A number and one click: all that it takes to have a cluster. */

import * as React from 'react';
import type { Trans } from './labels';

interface IStartHere {
  /** How many ranks are proposed. */
  number: number;
  trans: Trans;
  onStart: (number: number) => void;
}

/** No machine has as many processes; a slip of the finger should not try. */
const MOST = 4096;

export function StartHere({ number, trans, onStart }: IStartHere): JSX.Element {
  const [typed, setTyped] = React.useState<string | null>(null);
  const text = typed ?? String(number);
  const isRight = /^\d+$/.test(text) && Number(text) >= 1 && Number(text) <= MOST;
  return (
    <form
      className="jxl-startHere"
      onSubmit={event => {
        event.preventDefault();
        if (isRight) {
          onStart(Number(text));
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
        title={trans.__('Number of JAX processes')}
        onChange={event => setTyped(event.target.value)}
        // The notebook would take keys for itself.
        onKeyDown={event => event.stopPropagation()}
      />
      <button
        type="submit"
        className="jxl-button jxl-mod-primary"
        title={trans.__('Start a JAX cluster with this many ranks')}
        disabled={!isRight}
      >
        {trans.__('Start')}
      </button>
    </form>
  );
}
