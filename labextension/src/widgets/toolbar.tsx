/** What is in the notebook's toolbar: the SPMD switch, and the ranks' state in a few words. */

import * as React from 'react';
import type { Store } from '../store';
import { chipText, chipTone, countStatuses, glyphOf, type Trans } from './labels';
import { useKnown } from './parts';
import { StartHere } from './startHere';

interface IToolbarPart {
  store: Store;
  trans: Trans;
  onClick: () => void;
}

/** On: every following cell is an %%spmd cell. The kernel decides; a click asks it to. */
export function SpmdSwitch({ store, trans, onClick }: IToolbarPart): JSX.Element {
  const state = useKnown(store)?.state ?? null;
  const on = state?.spmd ?? false;
  const title = !state
    ? trans.__('Run %1 in this notebook first', '%load_ext jaxcluster')
    : on
      ? trans.__('Every cell runs on all ranks. Click to run cells in the notebook again')
      : trans.__('Run every cell on all ranks');
  return (
    <button
      type="button"
      role="switch"
      className="jxl-switch"
      aria-checked={on}
      // Not `disabled`: the reason would be out of reach for the keyboard.
      aria-disabled={!state}
      title={title}
      onClick={() => state && onClick()}
    >
      <span className="jxl-track" aria-hidden="true" />
      SPMD
    </button>
  );
}

interface IStateChip extends IToolbarPart {
  /** How many ranks to propose where there is no cluster; null where none can be started. */
  number: number | null;
  onStart: (number: number) => void;
}

/** "4/4 idle"; where there is no cluster a number and *Start*. */
export function StateChip({ store, trans, number, onStart, onClick }: IStateChip): JSX.Element | null {
  const state = useKnown(store)?.state ?? null;
  if ((!state || (state.current === null && !state.progress)) && number !== null) {
    return <StartHere number={number} trans={trans} onStart={onStart} />;
  }
  if (!state) {
    return null;
  }
  const worst = countStatuses(state.ranks)[0]?.[0];
  const text = chipText(state, trans);
  return (
    <button
      type="button"
      className="jxl-chip"
      data-tone={chipTone(state)}
      aria-label={trans.__('JAX cluster: %1', text)}
      title={trans.__('Show the cluster')}
      onClick={onClick}
    >
      {state.progress ? (
        <span className="jxl-spinner" aria-hidden="true" />
      ) : (
        <span className="jxl-glyph" aria-hidden="true">
          {worst ? glyphOf(worst) : '–'}
        </span>
      )}
      {text}
    </button>
  );
}
