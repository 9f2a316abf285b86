"""An array cut into its parts, laid out in two dimensions, and drawn as SVG.

An array of more dimensions becomes several panels, one for each place along the
axes that are not laid out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from jaxcluster.model.layout import ArrayLayout, Part, find_gaps
from jaxcluster.ranks import name_ranks
from jaxcluster.views import formatting, palette

MAX_PANELS = 3
MAX_TILES = 600  # of one panel
WIDTH = 560
LEFT, TOP = 54, 20  # where the axes' marks are


@dataclass(frozen=True)
class Tile:
    """A part's place in a panel: (start, stop) of rows and columns, in elements.

    What no process holds is a part without shards.
    """

    part: Part
    rows: tuple[int, int]
    columns: tuple[int, int]


@dataclass(frozen=True)
class Panel:
    """One place along the axes that are not laid out: ``fixed`` is (axis, start, stop) of each."""

    fixed: tuple[tuple[int, int, int], ...]
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Picture:
    """The panels of an array; ``folded`` more are left out.

    ``row_axis`` and ``column_axis`` are None where the array has not so many.
    """

    row_axis: int | None
    column_axis: int | None
    rows: int
    columns: int
    panels: tuple[Panel, ...]
    folded: int = 0


def cuts(parts: Sequence[Part], ndim: int) -> list[list[tuple[int, int]]]:
    """For each axis the different (start, stop) that parts have along it."""
    return [sorted({part.index[axis] for part in parts}) for axis in range(ndim)]


def choose_axes(cut: Sequence[Sequence[object]]) -> tuple[int | None, int | None]:
    """The two axes that are cut most, the later one as columns; the last ones where none is."""
    if not cut:
        return None, None
    order = sorted(range(len(cut)), key=lambda axis: (-len(cut[axis]), -axis))[:2]
    if len(order) == 1:
        return None, order[0]
    return min(order), max(order)


def lay_out(layout: ArrayLayout, limit: int = MAX_PANELS) -> Picture:
    """The picture of an array, of at most ``limit`` panels."""
    parts = [*layout.parts]
    if layout.missing:
        held = [part.index for part in parts]
        parts += [Part(gap, ()) for gap in find_gaps(layout.shape, held, join=False)]
    cut = cuts(parts, len(layout.shape))
    row_axis, column_axis = choose_axes(cut)
    others = [a for a in range(len(cut)) if a not in (row_axis, column_axis)]
    places = list(itertools.islice(itertools.product(*(cut[a] for a in others)), limit))
    total = math.prod(len(cut[axis]) for axis in others)
    tiles: dict[tuple[tuple[int, int], ...], list[Tile]] = {place: [] for place in places}
    for part in parts:
        place = tuple(part.index[axis] for axis in others)
        if place in tiles:
            rows = part.index[row_axis] if row_axis is not None else (0, 1)
            columns = part.index[column_axis] if column_axis is not None else (0, 1)
            tiles[place].append(Tile(part, rows, columns))
    return Picture(
        row_axis=row_axis,
        column_axis=column_axis,
        rows=layout.shape[row_axis] if row_axis is not None else 1,
        columns=layout.shape[column_axis] if column_axis is not None else 1,
        panels=tuple(
            Panel(tuple((a, *span) for a, span in zip(others, place, strict=True)), tuple(found))
            for place, found in tiles.items()
            if found or not others
        ),
        folded=total - len(places),
    )


# --------------------------------------------------------------------------- SVG


def svg(layout: ArrayLayout, drawn: Picture, panel: Panel, odd: frozenset[object]) -> str:
    """One panel on its own white ground, so that it reads on every theme.

    Args:
      odd: the parts to mark.
    """
    rows = len({tile.rows for one in drawn.panels for tile in one.tiles})
    natural = WIDTH * drawn.rows / max(1, drawn.columns)
    height = max(30.0 * min(rows, 12), min(natural, 0.7 * WIDTH), 40.0)
    size = f'width="{WIDTH + LEFT + 6}" height="{height + TOP + 6:g}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui,sans-serif">'
        f'<rect {size} fill="#ffffff"/>'
    ]
    for tile in panel.tiles[:MAX_TILES]:
        x0, x1 = (LEFT + WIDTH * at / max(1, drawn.columns) for at in tile.columns)
        y0, y1 = (TOP + height * at / max(1, drawn.rows) for at in tile.rows)
        out += _tile(layout, tile.part, (x0, y0, x1, y1), tile.part.index in odd)
    for at in _marks(panel, "columns", 12) if drawn.column_axis is not None else ():
        out.append(_text(LEFT + WIDTH * at / max(1, drawn.columns) - 6, TOP - 4, str(at)))
    for at in _marks(panel, "rows", int(height / 14)) if drawn.row_axis is not None else ():
        out.append(_text(2, TOP + height * at / max(1, drawn.rows) + 3, str(at)))
    return "".join([*out, "</svg>"])


def _marks(panel: Panel, side: str, most: int) -> list[int]:
    """Where the cuts are, as many as there is room for."""
    marks = sorted({at for tile in panel.tiles for at in getattr(tile, side)})
    return marks[:: -(-len(marks) // most)]


def _tile(
    layout: ArrayLayout, part: Part, box: tuple[float, float, float, float], odd: bool
) -> list[str]:
    """A part: a stripe for each rank that holds it, and who they are."""
    x0, y0, x1, y1 = box
    if not part.ranks:
        dashes = ' stroke="#555555" stroke-dasharray="4 3"'
        return [_rect(box, "none", dashes), _text(x0 + 6, y0 + 14, "no one")]
    shown = part.ranks[:8]
    stripe = (x1 - x0) / len(shown)
    title = f"{formatting.index(part.index)}: {name_ranks(part.ranks)}"
    out = [f"<g><title>{escape(title)}</title>"]
    for number, rank in enumerate(shown):
        x = x0 + number * stripe
        out.append(_rect((x, y0, x + stripe, y1), palette.color(rank)))
        if stripe > 24 and y1 - y0 > 14:
            paper = palette.ink(palette.color(rank))
            out.append(_text(x + 4, y0 + 13, f"{palette.glyph(rank)} {rank}", paper))
            ids = sorted(shard.device for shard in part.shards if shard.rank == rank)
            held = formatting.devices(ids, layout.devices)
            if stripe > 6.2 * len(held) and y1 - y0 > 28:
                out.append(_text(x + 4, y0 + 26, held, paper))
    frame = f' stroke="{palette.ALARM if odd else "#ffffff"}" stroke-width="{4 if odd else 1.5}"'
    return [*out, _rect(box, "none", frame), "</g>"]


def _rect(box: tuple[float, float, float, float], fill: str, more: str = "") -> str:
    x0, y0, x1, y1 = box
    size = f'width="{x1 - x0:.1f}" height="{y1 - y0:.1f}"'
    return f'<rect x="{x0:.1f}" y="{y0:.1f}" {size} fill="{fill}"{more}/>'


def _text(x: float, y: float, text: str, fill: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="{fill}">{escape(text)}</text>'
