"""How a cell went wrong, or which ranks are dead: one document, as text, as HTML and for the page.

The HTML is saved with the notebook. It has no colours, since it is shown on any ground.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from jaxcluster.records.lastreport import LastReport
from jaxcluster.views import text as texts
from jaxcluster.views.displays import Bundle

LAUNCHES = "The last launches that all of their ranks agreed on"
CELL = "The cell"

ReportKind = Literal["diverged", "failed", "hung", "dead"]
"""What went wrong; ``dead``: processes ended."""

KINDS: dict[str, ReportKind] = {"Divergence": "diverged", "RankDied": "dead", "RankHung": "hung"}


@dataclass(frozen=True)
class Report:
    """How a cell went wrong, or that ranks have died.

    Attributes:
      cell_id: the Jupyter cell's; ``cell`` is its number, 0 if none ran.
      at: when, in milliseconds since 1970.
      title: what happened, in a line.
      lines: more of it, and what was done about it.
      culprits: the ranks that differed, failed or died.
      open: whether ranks are dead, and it is the user's to restart.
      source: the cell's; ``marked`` are its lines at which ranks raised an error.
      launches: the last ones that all of their ranks agreed on; "" if none is known.
    """

    kind: ReportKind
    cluster: str
    cell_id: str
    cell: int
    at: int
    title: str
    lines: list[str]
    culprits: list[int]
    open: bool = False
    source: str = ""
    marked: list[int] = field(default_factory=list)
    launches: str = ""


def document(found: LastReport, cluster: str) -> Report:
    """The report of a cell on this cluster."""
    title, *lines = found.told
    return Report(
        kind=KINDS.get(found.kind, "failed"),
        cluster=cluster,
        cell_id=found.cell_id,
        cell=found.cell,
        at=found.at_ns // 1_000_000,
        title=title,
        lines=lines,
        culprits=found.culprits,
        source=found.source,
        marked=found.lines,
        launches=texts.launches(found.launches, found.now) if found.launches else "",
    )


def bundle(shown: Report) -> Bundle:
    """A report in the forms that a frontend may ask for."""
    told = text(shown)
    return {"text/html": f"<pre>{escape(told)}</pre>", "text/plain": told}


def text(shown: Report) -> str:
    """What happened first; then what was done, the cell, the launches."""
    parts = [
        "\n".join([_where(shown), shown.title, *shown.lines]),
        f"{CELL}:\n{_numbered(shown)}",
        f"{LAUNCHES}:\n{shown.launches}" if shown.launches else "",
    ]
    return "\n\n".join(filter(None, parts))


def none(cluster: str, cell: int | None, known: Sequence[LastReport]) -> str:
    """That there is no such report, and which there are."""
    if not known:
        return f"No cell has gone wrong on cluster {cluster!r}."
    cells = ", ".join(f"[{number}]" for number in dict.fromkeys(one.cell for one in known))
    return f"There is no report of cell [{cell}] on cluster {cluster!r}. Reports: {cells}."


def _where(shown: Report) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(shown.at / 1000))
    return f"Cell [{shown.cell}] on cluster {shown.cluster!r}, {at}"


def _numbered(shown: Report) -> str:
    """The cell's lines, those where ranks raised an error marked."""
    return "\n".join(
        f"{'->' if number in shown.marked else '  '} {number:3}  {line}".rstrip()
        for number, line in enumerate(shown.source.splitlines(), 1)
    )
