"""An array cut into its parts, laid out in two dimensions: what text and SVG draw.

Pure geometry. An array of more dimensions becomes several panels, one for each place along the
axes that are not laid out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcluster.model.layout import ArrayLayout, Part, find_gaps

MAX_PANELS = 6


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
