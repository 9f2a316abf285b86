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


def color(rank: int) -> str:
    return COLORS[rank % len(COLORS)]


def glyph(rank: int) -> str:
    return GLYPHS[(rank + rank // len(COLORS)) % len(GLYPHS)]
