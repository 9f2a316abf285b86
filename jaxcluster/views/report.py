"""How a cell went wrong, or which ranks are dead: one document, as text, as HTML and for the page.

The HTML is saved with the notebook. It has no colours, since it is shown on any ground.
"""

from __future__ import annotations

import time
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from jaxcluster.cluster import recovery
from jaxcluster.hosts.records.reports import Report
from jaxcluster.model import notices
from jaxcluster.ranks import begin_ranks
from jaxcluster.views.displays import Bundle
from jaxcluster.wire.forks import MEANT

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

LAUNCHES = "The last launches that all of their ranks agreed on"


def last(current: Cluster | None, now: int) -> Report | None:
    """The last failure on a cluster, in a cell of this kernel or by a death; None: there is none.

    Args:
      now: in milliseconds since 1970.
    """
    if current is None:
        return None
    found, dead = current.past_reports.last_own, sorted(current.dead)
    if current.closed or not (dead or current.world.coordinator_died):
        return found
    by_others = current.world.ended_by
    # An older report tells of processes before these.
    is_theirs = found is not None and found.at > current.record.created_ns // 1_000_000
    if found is not None and is_theirs and {*dead} == {*found.culprits} and not by_others:
        return replace(found, open=True)
    if dead:
        title = by_others.capitalize() or f"{begin_ranks(dead)} died"
        lines = notices.tell_deaths({rank: current.dead[rank].why for rank in dead})
    else:
        title = "JAX's coordinator died"
        lines = [f"{title}: {current.world.coordinator_died}."]
    if by_others:
        lines.append(recovery.advice(current) or "")
    elif dead:
        lines += current.world.log_excerpt(dead[0]).splitlines()
    culprits = [rank for rank in dead if current.dead[rank].why not in MEANT]
    return Report("dead", current.name, "", 0, now, title, lines, culprits, open=True)


def bundle(told: str) -> Bundle:
    """A report's text in the forms that a frontend may ask for."""
    return {"text/html": f"<pre>{escape(told)}</pre>", "text/plain": told}


def text(shown: Report) -> str:
    """The report: what happened, what was done, the cell, the launches."""
    at = time.strftime("%H:%M:%S", time.localtime(shown.at / 1000))
    where = f"Cell [{shown.cell}] on cluster {shown.cluster!r}, {at}"
    source = [
        f"{'->' if number in shown.marked else '  '} {number:3}  {line}".rstrip()
        for number, line in enumerate(shown.source.splitlines(), 1)
    ]
    parts = ["\n".join([where, shown.title, *shown.lines]), "\n".join(["The cell:", *source])]
    parts += [f"{LAUNCHES}:\n{shown.launches}"] if shown.launches else []
    return "\n\n".join(parts)


def of_cell(current: Cluster, cell: int | None) -> str:
    """The report of a cell (None: of the last that went wrong), or which reports there are."""
    found = current.past_reports.find(cell)
    if found is not None:
        return text(found)
    known = dict.fromkeys(f"[{one.cell}]" for one in current.past_reports.all())
    if not known:
        return f"No cell has gone wrong on cluster {current.name!r}."
    told = f"There is no report of cell [{cell}] on cluster {current.name!r}."
    return f"{told} Reports: {', '.join(known)}."
