/** Small parts that several widgets are made of. */

import * as React from 'react';
import type { IKnown, Store } from '../store';
import { glyphOf, lasting, statusLabel, toneOf, type Status, type Trans } from './labels';

/** What a store knows, as it changes; null without a store. */
export function useKnown(store: Store | null): IKnown | null {
  return React.useSyncExternalStore(
    React.useCallback(listener => store?.listen(listener) ?? (() => undefined), [store]),
    () => store?.known ?? null
  );
}

/** Whether a part of the page can be seen now. */
export function useVisible(box: React.RefObject<HTMLElement>): boolean {
  const [visible, set] = React.useState(false);
  React.useEffect(() => {
    let isSeen = false;
    const tell = () => set(isSeen && document.visibilityState === 'visible');
    const observer = new IntersectionObserver(entries => {
      isSeen = entries[entries.length - 1].isIntersecting;
      tell();
    });
    observer.observe(box.current!);
    document.addEventListener('visibilitychange', tell);
    return () => {
      observer.disconnect();
      document.removeEventListener('visibilitychange', tell);
    };
  }, [box]);
  return visible;
}

/** How long it is since `since`, a time of the store's kernel: counted here, and only where it can be seen. */
export function Elapsed(props: { since: number; store: Store; trans: Trans }): JSX.Element {
  const box = React.useRef<HTMLSpanElement>(null);
  const [, draw] = React.useReducer((n: number) => n + 1, 0);
  React.useEffect(() => {
    const timer = setInterval(() => {
      if (document.visibilityState === 'visible' && box.current?.offsetParent) {
        draw();
      }
    }, 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = (Date.now() + props.store.clockOffset - props.since) / 1000;
  return <span ref={box}>{lasting(seconds, props.trans)}</span>;
}

export function StatusMark(props: { status: Status; trans: Trans }): JSX.Element {
  return (
    <span className="jxl-status" data-tone={toneOf(props.status)}>
      <span className="jxl-glyph" aria-hidden="true">
        {glyphOf(props.status)}
      </span>
      {statusLabel(props.status, props.trans)}
    </span>
  );
}

/** Characters that always stand at a name's end. */
const TAIL = 8;

/** A name that loses its middle where there is no room: its ends tell it from others. */
export function Middle(props: { text: string; className?: string }): JSX.Element {
  const { text } = props;
  const cut = text.length > 2 * TAIL ? text.length - TAIL : text.length;
  return (
    <span className={`jxl-middle ${props.className ?? ''}`} title={text}>
      <span className="jxl-front">{text.slice(0, cut)}</span>
      {cut < text.length && <span className="jxl-tail">{text.slice(cut)}</span>}
    </span>
  );
}

interface IButton {
  label: string;
  /** What it does, in a sentence. */
  title?: string;
  /** Its name for those who don't see what stands around it. */
  name?: string;
  look?: 'danger' | 'primary' | 'quiet';
  disabled?: boolean;
  expanded?: boolean;
  onClick: () => void;
}

export function Button(props: IButton): JSX.Element {
  return (
    <button
      type="button"
      className={props.look ? `jxl-button jxl-mod-${props.look}` : 'jxl-button'}
      title={props.title}
      aria-label={props.name}
      aria-expanded={props.expanded}
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
  const stopAt = (wanted: HTMLElement) =>
    all().forEach(stop => (stop.tabIndex = stop === wanted ? 0 : -1));
  // Whatever comes and goes in it, one of them can be reached.
  React.useEffect(() => {
    const found = all();
    if (found.length && found.filter(stop => stop.tabIndex === 0).length !== 1) {
      stopAt(found[0]);
    }
  });
  const onKeyDown = (event: React.KeyboardEvent) => {
    const found = all();
    const at = found.indexOf(event.target as HTMLElement);
    const to = {
      ArrowDown: at + 1,
      ArrowRight: at + 1,
      ArrowUp: at - 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: found.length - 1
    }[event.key];
    if (at < 0 || to === undefined) {
      return;
    }
    const next = found[Math.max(0, Math.min(found.length - 1, to))];
    stopAt(next);
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  const onFocus = (event: React.FocusEvent) => {
    if ((event.target as HTMLElement).matches(stops)) {
      stopAt(event.target as HTMLElement);
    }
  };
  return (
    <div {...rest} ref={box} onKeyDown={onKeyDown} onFocus={onFocus}>
      {children}
    </div>
  );
}
