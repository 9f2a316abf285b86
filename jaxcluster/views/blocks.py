"""A view as lines and tables. Text, HTML and the page's JSON are made from these.

The HTML stays what it is in notebooks that are saved, not trusted, or shown by GitHub: it has no
style, class or script.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from jaxcluster.text import format_table
from jaxcluster.views import palette


@dataclass(frozen=True)
class Rank:
    """A cell of a table: beside the rank's glyph, and in HTML beside its colour."""

    rank: int
    text: str

    def __str__(self) -> str:
        return f"{palette.glyph(self.rank)} {self.text}"


@dataclass(frozen=True)
class Table:
    """Rows below a head; ``more`` says what is left out."""

    head: Sequence[str]
    rows: Sequence[Row]
    more: str = ""


Row = Sequence[str | Rank]
Block = str | Table


def table(head: Sequence[str], rows: Sequence[Row], most: int, what: str) -> Table:
    """The first ``most`` rows; below them how many others there are, and of what."""
    left = len(rows) - most
    return Table(head, rows[:most], f"... and {left:,} more {what}" if left > 0 else "")


def bundle(blocks: Sequence[Block]) -> dict[str, Any]:
    """The forms that any frontend may ask for, and that stay in a saved notebook."""
    return {"text/html": html(blocks), "text/plain": text(blocks)}


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
    at = [
        any(isinstance(cell, Rank) for cell in column) for column in zip(*table.rows, strict=True)
    ]
    rows = ["<tr>" + "".join(map(_cell, row, at)) + "</tr>" for row in table.rows]
    heads = [
        f"{'<th></th>' * is_ranks}<th>{escape(head)}</th>"
        for head, is_ranks in zip(table.head, at or [False] * len(table.head), strict=True)
    ]
    head = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>"
    more = f"\n<p>{escape(table.more)}</p>" if table.more else ""
    return "\n".join([head, *rows, "</tbody></table>"]) + more


def _cell(cell: str | Rank, is_ranks: bool) -> str:
    if isinstance(cell, Rank):
        return f'<td bgcolor="{palette.color(cell.rank)}">&nbsp;</td><td>{escape(str(cell))}</td>'
    return f"{'<td></td>' * is_ranks}<td>{escape(cell)}</td>"
