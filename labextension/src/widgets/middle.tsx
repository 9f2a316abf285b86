/** A name of which the middle is left out where there is no room: its ends tell it from others. */

import * as React from 'react';

/** That always stand at a name's end. */
const TAIL = 8;

export function Middle(props: { text: string; className?: string }): JSX.Element {
  const { text } = props;
  const cut = text.length > 2 * TAIL ? text.length - TAIL : text.length;
  return (
    <span className={`jxl-middle ${props.className ?? ''}`} title={text}>
      <span className="jxl-head">{text.slice(0, cut)}</span>
      {cut < text.length && <span className="jxl-tail">{text.slice(cut)}</span>}
    </span>
  );
}
