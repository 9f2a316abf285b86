// The colours and glyphs that stand for ranks.

// The same as in views/blocks.py, which says where they come from.
export const COLORS = [
  '#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#F0E442', '#999999',
];
export const GLYPHS = '●■▲◆○□△◇';

export const color = rank => COLORS[rank % COLORS.length];
export const glyph = rank => GLYPHS[(rank + Math.floor(rank / COLORS.length)) % GLYPHS.length];

export const PALE = 0.4;

/** A rank's colour as a ground for text: the page's own ink is read on it, on light and dark pages. */
export const ground = rank => `color-mix(in srgb, ${color(rank)} ${100 * PALE}%, var(--paper))`;
