"""The colours and glyphs that stand for ranks: the same ones in pictures and tables.

The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), told apart with every
kind of colour blindness. A rank has a colour and a glyph; the pairs differ for 64 ranks, and its
number stands beside them always.
"""

from __future__ import annotations

COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#999999",
)
GLYPHS = "●■▲◆○□△◇"
ALARM = "#B00020"


def color(rank: int) -> str:
    return COLORS[rank % len(COLORS)]


def glyph(rank: int) -> str:
    return GLYPHS[(rank + rank // len(COLORS)) % len(GLYPHS)]


def ink(background: str) -> str:
    """Black or white, whichever reads better on a colour (WCAG's contrast)."""
    channels = [int(background[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"
