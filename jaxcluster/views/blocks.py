"""What a view says, once: lines, tables and pictures, of which text and HTML are made.

The HTML stays what it is in notebooks that are saved, not trusted, or shown by GitHub: it has no
style, class, script or inline SVG.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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


@dataclass(frozen=True)
class Picture:
    """SVG, in whose place text has a table."""

    svg: str
    alt: str
    table: Table | None


Row = Sequence[str | Rank]
Block = str | Table | Picture


def text(blocks: Iterable[Block]) -> str:
    """Line by line; "" is an empty one."""
    lines: list[str] = []
    for block in blocks:
        shown = block.table if isinstance(block, Picture) else block
        if isinstance(shown, Table):
            lines += format_table([shown.head, *([str(cell) for cell in r] for r in shown.rows)])
            lines += [shown.more] if shown.more else []
        elif shown is not None:
            lines.append(shown)
    return "\n".join(lines)


def html(blocks: Iterable[Block]) -> str:
    """Lines that follow each other are a paragraph."""
    out: list[str] = []
    for is_line, run in itertools.groupby(blocks, lambda block: isinstance(block, str)):
        if is_line:
            lines = "<br>\n".join(escape(str(line)) for line in run if line)
            out += [f"<p>{lines}</p>"] if lines else []
            continue
        for block in run:
            if isinstance(block, Table):
                out.append(_table(block))
            elif isinstance(block, Picture):
                data = base64.b64encode(block.svg.encode()).decode()
                source = f"data:image/svg+xml;base64,{data}"
                out.append(f'<img alt="{escape(block.alt)}" src="{source}">')
    return "\n".join(out)


def _table(table: Table) -> str:
    first = table.rows[0] if table.rows else table.head
    heads = [
        f"{'<th></th>' * isinstance(cell, Rank)}<th>{escape(head)}</th>"
        for head, cell in zip(table.head, first, strict=True)
    ]
    rows = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows]
    head = f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>"
    more = f"\n<p>{escape(table.more)}</p>" if table.more else ""
    return "\n".join([head, *rows, "</tbody></table>"]) + more


def _cell(cell: str | Rank) -> str:
    if isinstance(cell, Rank):
        return f'<td bgcolor="{palette.color(cell.rank)}">&nbsp;</td><td>{escape(str(cell))}</td>'
    return f"<td>{escape(cell)}</td>"
