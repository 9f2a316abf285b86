"""How a cell went wrong, as text, as HTML and as JSON: what was found, the cell, launches.

The HTML is saved with the notebook. Of colours it has none, since it is shown on any ground.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from jaxcluster.records.lastreport import LastReport
from jaxcluster.views import text as texts

LAUNCHES = "The last launches that all of their ranks agreed on"
CELL = "The cell"


def bundle(found: LastReport, cluster: str) -> dict[str, str]:
    """A report in the forms that a frontend may ask for.

    Args:
      cluster: its name.
    """
    return {"text/html": html(found, cluster), "text/plain": text(found, cluster)}


def text(found: LastReport, cluster: str) -> str:
    """What happened first; then what was done, the cell, the launches."""
    told = "\n".join(found.told)
    parts = [f"{_where(found, cluster)}\n{told}", f"{CELL}:\n{_numbered(found)}"]
    if found.launches:
        parts.append(f"{LAUNCHES}:\n{texts.launches(found.launches, found.now)}")
    return "\n\n".join(parts)


def html(found: LastReport, cluster: str) -> str:
    """The same, with the launches folded."""
    first, *more = found.told
    parts = [f"<p><b>{escape(first)}</b></p>", f"<p>{escape(_where(found, cluster))}</p>"]
    if more:
        parts.append(f"<p>{'<br>'.join(map(escape, more))}</p>")
    parts.append(f"<p>{CELL}:</p><pre>{escape(_numbered(found))}</pre>")
    if found.launches:
        launches = escape(texts.launches(found.launches, found.now))
        parts.append(f"<details><summary>{LAUNCHES}</summary><pre>{launches}</pre></details>")
    return "\n".join(parts)


def document(found: LastReport, cluster: str) -> dict[str, Any]:
    """The same as JSON's own types."""
    return {
        "cluster": cluster,
        "cell": found.cell,
        "at_ns": found.at_ns,
        "kind": found.kind,
        "message": found.message,
        "done": found.hint,
        "culprits": found.culprits,
        "source": found.source,
        "lines": found.lines,
        "launches": [dataclasses.asdict(one) for one in found.launches],
    }


def none(cluster: str, cell: int | None, known: Sequence[LastReport]) -> str:
    """That there is no such report, and which there are."""
    if not known:
        return f"No cell has gone wrong on cluster {cluster!r}."
    cells = ", ".join(f"[{number}]" for number in dict.fromkeys(one.cell for one in known))
    return f"There is no report of cell [{cell}] on cluster {cluster!r}. Reports: {cells}."


def _where(found: LastReport, cluster: str) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(found.at_ns / 1e9))
    return f"Cell [{found.cell}] on cluster {cluster!r}, {at}"


def _numbered(found: LastReport) -> str:
    """The cell's lines, those where ranks raised an error marked."""
    return "\n".join(
        f"{'->' if number in found.lines else '  '} {number:3}  {line}".rstrip()
        for number, line in enumerate(found.source.splitlines(), 1)
    )
