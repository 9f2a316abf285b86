"""A view as lines and tables. Text, HTML and the page's JSON are made from these.

The HTML has no style, class or script, so saved and untrusted notebooks and GitHub show it
unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from jaxcluster.text import format_table

# Okabe and Ito's colours (https://jfly.uni-koeln.de/color/) differ with every kind of colour
# blindness. A rank has a colour and a glyph: the pairs differ for 64 ranks.
COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#F0E442", "#999999"),
)
GLYPHS = "●■▲◆○□△◇"


@dataclass(frozen=True)
class Rank:
    """A cell of a table: beside the rank's glyph, and in HTML beside its colour."""

    rank: int
    text: str

    def __str__(self) -> str:
        return f"{GLYPHS[(self.rank + self.rank // len(COLORS)) % len(GLYPHS)]} {self.text}"

    @property
    def color(self) -> str:
        return COLORS[self.rank % len(COLORS)]


@dataclass(frozen=True)
class Table:
    """Rows below a head; ``more`` says what is left out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Rank]]
    more: str = ""


Row = Mapping[str, str | Rank | None]  # by the column's head
Block = str | Table


def table(rows: Sequence[Row], most: int = 1 << 30, what: str = "") -> Table:
    """The first ``most`` rows; below them how many others there are, and of what.

    A column is left out where all rows have None for it.
    """
    shown, left = rows[:most], len(rows) - most
    head = [name for name in shown[0] if any(row[name] is not None for row in shown)]
    cells = [[row[name] or "" for name in head] for row in shown]
    return Table(head, cells, f"... and {left:,} more {what}" if left > 0 else "")


def bundle(blocks: Sequence[Block]) -> dict[str, Any]:
    """The forms that any frontend may ask for, and that stay in a saved notebook."""
    return {"text/html": html(blocks), "text/plain": text(blocks)}


def page(blocks: Iterable[Block]) -> list[str | dict[str, Any]]:
    """The JSON that ``static/shardview`` draws. A cell that is a pair says of which rank it is."""
    shown: list[str | dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, str):
            shown.append(block)
            continue
        rows = [[(c.rank, c.text) if isinstance(c, Rank) else c for c in r] for r in block.rows]
        shown.append({"head": list(block.head), "rows": rows, "more": block.more})
    return shown


def text(blocks: Iterable[Block]) -> str:
    """Line by line; "" is an empty one."""
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Table):
            lines += format_table([block.head, *([str(cell) for cell in r] for r in block.rows)])
            lines += [block.more] if block.more else []
        else:
            lines.append(block)
    return "\n".join(lines)


def html(blocks: Iterable[Block]) -> str:
    """Lines that follow each other are a paragraph."""
    out: list[str] = []
    for is_line, run in itertools.groupby(blocks, lambda block: isinstance(block, str)):
        if is_line:
            lines = "<br>\n".join(escape(str(line)) for line in run if line)
            out += [f"<p>{lines}</p>"] if lines else []
        else:
            out += [_table(block) for block in run if isinstance(block, Table)]
    return "\n".join(out)


def _table(table: Table) -> str:
    """A column with ranks has a column of colours before it."""
    columns = zip(table.head, *table.rows, strict=True)
    at = [any(isinstance(cell, Rank) for cell in column) for column in columns]
    heads = [
        f"{'<th></th>' * is_ranks}<th>{escape(head)}</th>"
        for head, is_ranks in zip(table.head, at, strict=True)
    ]
    head = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>"
    rows = ["<tr>" + "".join(map(_cell, row, at)) + "</tr>" for row in table.rows]
    more = f"\n<p>{escape(table.more)}</p>" if table.more else ""
    return "\n".join([head, *rows, "</tbody></table>"]) + more


def _cell(cell: str | Rank, is_ranks: bool) -> str:
    if isinstance(cell, Rank):
        return f'<td bgcolor="{cell.color}">&nbsp;</td><td>{escape(str(cell))}</td>'
    return f"{'<td></td>' * is_ranks}<td>{escape(cell)}</td>"
