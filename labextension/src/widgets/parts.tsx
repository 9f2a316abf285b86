/** Small parts that several widgets are made of. */

import * as React from 'react';
import { glyphOf, statusMeaning, statusLabel, toneOf, type Status, type Trans } from './labels';

export function StatusMark(props: { status: Status; trans: Trans }): JSX.Element {
  const { status, trans } = props;
  return (
    <span className="jxl-status" data-tone={toneOf(status)} title={statusMeaning(status, trans)}>
      <span className="jxl-glyph" aria-hidden="true">
        {glyphOf(status)}
      </span>
      {statusLabel(status, trans)}
    </span>
  );
}

/** "2 running", "1 dead": how many are in each status. */
export function Counts(props: { counts: [Status, number][]; trans: Trans }): JSX.Element {
  return (
    <>
      {props.counts.map(([status, n]) => (
        <span key={status} className="jxl-status" data-tone={toneOf(status)}>
          <span className="jxl-glyph" aria-hidden="true">
            {glyphOf(status)}
          </span>
          {`${n} ${statusLabel(status, props.trans)}`}
        </span>
      ))}
    </>
  );
}

interface IButton {
  label: string;
  /** What it does, in a sentence. */
  title?: string;
  /** Its name for those who don't see what stands around it. */
  name?: string;
  danger?: boolean;
  /** The one thing to do now. */
  primary?: boolean;
  disabled?: boolean;
  onClick: () => void;
}

export function Button(props: IButton): JSX.Element {
  return (
    <button
      type="button"
      className={
        props.primary
          ? 'jxl-button jxl-mod-primary'
          : props.danger
            ? 'jxl-button jxl-mod-danger'
            : 'jxl-button'
      }
      title={props.title}
      aria-label={props.name}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      {props.label}
    </button>
  );
}

/** Something that goes on, in words; said aloud when it changes. */
export function Busy(props: { text: string }): JSX.Element {
  return (
    <p className="jxl-busy" role="status">
      <span className="jxl-spinner" aria-hidden="true" />
      {props.text}
    </p>
  );
}

export function Failure(props: { text: string }): JSX.Element {
  return (
    <pre className="jxl-failure" role="alert">
      {props.text}
    </pre>
  );
}

/** Of these, Tab stops at the wanted one alone. */
export function stopAt(stops: readonly HTMLElement[], wanted: HTMLElement): void {
  for (const stop of stops) {
    const index = stop === wanted ? 0 : -1;
    if (stop.tabIndex !== index) {
      stop.tabIndex = index;
    }
  }
}

/**
 * A list with one stop for Tab, among whose elements that match `stops` the arrow keys, Home and End go.
 * The tabindex is kept in the page alone, so that a step redraws nothing.
 */
export function Roving(
  props: { stops: string; children: React.ReactNode } & React.HTMLAttributes<HTMLDivElement>
): JSX.Element {
  const { stops, children, ...rest } = props;
  const box = React.useRef<HTMLDivElement>(null);
  const all = () => [...(box.current?.querySelectorAll<HTMLElement>(stops) ?? [])];
  // Whatever comes and goes in it, one of them can be reached.
  React.useEffect(() => {
    const check = () => {
      const found = all();
      if (found.length && found.filter(stop => stop.tabIndex === 0).length !== 1) {
        stopAt(found, found[0]);
      }
    };
    check();
    const observer = new MutationObserver(check);
    observer.observe(box.current!, { childList: true, subtree: true });
    return () => observer.disconnect();
  }, [stops]);
  const onKeyDown = (event: React.KeyboardEvent) => {
    const found = all();
    const at = found.indexOf(event.target as HTMLElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: found.length - 1 }[event.key];
    if (at < 0 || to === undefined) {
      return;
    }
    const next = found[Math.max(0, Math.min(found.length - 1, to))];
    stopAt(found, next);
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  const onFocus = (event: React.FocusEvent) => {
    if ((event.target as HTMLElement).matches(stops)) {
      stopAt(all(), event.target as HTMLElement);
    }
  };
  return (
    <div {...rest} ref={box} onKeyDown={onKeyDown} onFocus={onFocus}>
      {children}
    </div>
  );
}
