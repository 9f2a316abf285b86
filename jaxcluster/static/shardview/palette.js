// The colours and glyphs that stand for ranks.

// The same as in views/palette.py, which says where they come from.
export const COLORS = [
  '#0072B2', '#E69F00', '#009E73', '#CC79A7', '#56B4E9', '#D55E00', '#F0E442', '#999999',
];
export const GLYPHS = '●■▲◆○□△◇';

export const color = rank => COLORS[rank % COLORS.length];
export const glyph = rank => GLYPHS[(rank + Math.floor(rank / COLORS.length)) % GLYPHS.length];

/** Black or white, whichever reads better on a colour. */
export function ink(hex) {
  const [r, g, b] = [1, 3, 5].map(i => {
    const c = parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) ** 2 > 0.0525 ? '#000000' : '#ffffff';
}
