/** Where every rank is: asked when it is shown, and when the user asks again. */

import * as React from 'react';
import type { Store } from '../store';
import type { Trans } from './labels';
import { Busy, Button, Failure } from './parts';

/**
 * The answer to what is asked at first, whenever one of `changes` is another, and by `again`. Until the next one
 * is there it is the one before.
 *
 * @param isWanted - Whether anybody looks: else nothing is asked.
 */
export function useAnswer<T>(
  ask: () => Promise<T>,
  changes: readonly unknown[],
  isWanted = true
): { found: T | null; failure: string; isAsked: boolean; again: () => void } {
  const [answer, set] = React.useState<{ found: T | null; failure: string }>({ found: null, failure: '' });
  const [isAsked, setAsked] = React.useState(false);
  const last = React.useRef(0);
  const again = React.useCallback(() => {
    const mine = ++last.current; // a late answer to another question is not this one's
    setAsked(true);
    const done = (found: T | null, failure: string) => {
      if (mine === last.current) {
        setAsked(false);
        set(before => (same(before.found, found) && !failure ? { ...before, failure } : { found, failure }));
      }
    };
    ask().then(
      found => done(found, ''),
      (error: Error) => done(null, error.message)
    );
  }, changes);
  React.useEffect(() => {
    if (isWanted) {
      again();
    }
    return () => void (last.current += 1);
  }, [again, isWanted]);
  return { ...answer, isAsked, again };
}

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

export function Stacks({ store, trans }: { store: Store; trans: Trans }): JSX.Element {
  const { found, failure, isAsked, again } = useAnswer(() => store.call('stacks', {}), [store]);
  return (
    <div className="jxl-stacks">
      <Button label={trans.__('Ask again')} disabled={isAsked} onClick={again} />
      {failure && <Failure text={failure} />}
      {found === null ? (
        !failure && <Busy text={trans.__('Asking the ranks …')} />
      ) : (
        <pre className="jxl-text" tabIndex={0} role="region" aria-label={trans.__('Stacks')}>
          {found}
        </pre>
      )}
    </div>
  );
}
