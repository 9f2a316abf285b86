/** Texts of the kernel's side, with each place of a cell that they name as a way there. */

import * as React from 'react';
import type { Trans } from './labels';

/** Part of a text: as it stands, or a place that it names. */
export type Part = string | { text: string; cell: number; line: number };

// "cell [7] line 3", "[7] line 3", or "line 3" alone, which is of the cell that the text is about.
const PLACE = /(?:cell )?\[(\d+)\],? line (\d+)|\b[Ll]ine (\d+)\b/g;

/** The parts of `text`; `cell` is the one that it is about. */
export function partsOf(text: string, cell: number): Part[] {
  const parts: Part[] = [];
  let end = 0;
  for (const found of text.matchAll(PLACE)) {
    if (found.index > end) {
      parts.push(text.slice(end, found.index));
    }
    const line = Number(found[2] ?? found[3]);
    parts.push({ text: found[0], cell: Number(found[1] ?? cell), line });
    end = found.index + found[0].length;
  }
  if (end < text.length) {
    parts.push(text.slice(end));
  }
  return parts;
}

interface IPlaces {
  text: string;
  /** The number of the cell that the text is about. */
  cell: number;
  trans: Trans;
  /** Show a cell's line; false: it is not in this notebook any more. */
  onPlace: (cell: number, line: number) => void;
  /** Whether a cell can be shown. */
  has: (cell: number) => boolean;
}

export function Places({ text, cell, trans, onPlace, has }: IPlaces): JSX.Element {
  return (
    <>
      {partsOf(text, cell).map((part, i) =>
        typeof part === 'string' || !has(part.cell) ? (
          <React.Fragment key={i}>{typeof part === 'string' ? part : part.text}</React.Fragment>
        ) : (
          <button
            key={i}
            type="button"
            className="jxl-link"
            title={trans.__('Show line %1 of cell [%2]', part.line, part.cell)}
            onClick={() => onPlace(part.cell, part.line)}
          >
            {part.text}
          </button>
        )
      )}
    </>
  );
}
