"""What every rank does and uses, in a table that goes on updating itself, also while a cell runs.

No widget: that would be gone from a saved notebook. It is a display that is shown again whenever
something has changed, so what a saved notebook has, and nbconvert shows, is how it was last. It is
HTML alone, so that it is the same with and without the Lab extension.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.cluster.resources import Sample
from jaxcluster.errors import JaxClusterError
from jaxcluster.views import blocks, displays, text
from jaxcluster.views.blocks import Block
from jaxcluster.views.displays import Bundle
from jaxcluster.views.throttle import start_in_cell

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

BUSY_S = 0.5  # between two looks while some rank runs a cell
IDLE_S = 2.0

WAIT_S = 0.3  # for what the ranks use; later answers are in the next table

Show = Callable[[Bundle, str], None]

_following: dict[str, threading.Event] = {}  # by the notebook's cell


def live(cluster: Cluster, show: Show, cell_id: str = "") -> threading.Event:
    """Show each rank's state, cell, line and time, and what it uses, until the cluster ends.

    A thread asks the ranks' control channels, which answer during a cell. What the ranks use is
    measured every 2 s, as for the sidebar.

    Args:
      show: shows a MIME bundle. The second argument says how: "first", "changed" in place of the
        one before, or "measured", where nothing has changed but what the ranks use: then a kernel
        whose ranks are idle must go on to look idle to whatever culls those.
      cell_id: the notebook's cell. What it has shown before is left as it is.

    Returns:
      what ends it, when it is set.
    """
    done = threading.Event()
    if cell_id:
        _following.pop(cell_id, done).set()
        done = _following[cell_id] = threading.Event()
    states = cluster.status()
    told = _changing(states, cluster)
    cluster.meter.keep_up(WAIT_S)
    used = cluster.meter.latest
    show(bundle(states, cluster.dead, used, _late(cluster)), "first")

    def follow() -> None:
        nonlocal told, states, used
        while not done.wait(BUSY_S if _is_busy(states) else IDLE_S):
            try:
                states = cluster.status()
                cluster.meter.keep_up(WAIT_S)
            except JaxClusterError as error:  # the cluster was stopped
                show(ended(str(error).partition("\n")[0]), "changed")
                return
            now, now_used = _changing(states, cluster), cluster.meter.latest  # of others' looks too
            if now != told or now_used is not used:
                how = "changed" if now != told else "measured"
                told, used = now, now_used
                show(bundle(states, cluster.dead, used, _late(cluster)), how)

    start_in_cell(follow, "jaxcluster-status")
    return done


def shown_by(shell: Any) -> Show:
    """A ``show`` for a notebook: one display of its own, by an id."""
    id = f"jaxcluster-status-{uuid.uuid4().hex}"

    def show(data: Bundle, how: str) -> None:
        if how == "measured":
            displays.update_display(shell.kernel, data, id)
        else:
            update = how == "changed"
            shell.display_pub.publish(data, transient={"display_id": id}, update=update)

    return show


def bundle(
    states: Sequence[wire.RankState],
    dead: Mapping[int, wire.Death],
    samples: Mapping[int, Sample],
    late: str = "",
) -> Bundle:
    """What the ranks do and use in all the forms that a frontend may ask for.

    Args:
      late: who keeps the others waiting, in a sentence.
    """
    at = f"as of {time.strftime('%H:%M:%S')}"
    shown: list[Block] = [
        text.status_table(states, dead, samples),
        *([late] if late else []),
        "",
        at,
    ]
    return {"text/html": blocks.html(shown), "text/plain": blocks.text(shown)}


def seen(cluster: Cluster | None) -> Bundle:
    """What the ranks do now; None: there is no cluster."""
    if cluster is None:
        none = "This notebook has no cluster."
        return {"text/html": f"<p>{none}</p>", "text/plain": none}
    states = cluster.status()
    return bundle(states, cluster.dead, cluster.meter.latest, _late(cluster))


def ended(why: str) -> Bundle:
    """What is shown of a cluster that has ended."""
    told = f"{why} (since {time.strftime('%H:%M:%S')})"
    return {"text/html": f"<pre>{escape(told)}</pre>", "text/plain": told}


def _late(cluster: Cluster) -> str:
    late = cluster.late()
    return late.told(cluster.world.hosts) if late is not None else ""


def _changing(states: Sequence[wire.RankState], cluster: Cluster) -> object:
    """What somebody does, other than to use memory and processors."""
    return (
        [(s.rank, s.pid, s.state, s.cell, s.line, s.queued, round(s.seconds, 1)) for s in states],
        _late(cluster),
        {rank: death.why for rank, death in cluster.dead.items()},
    )


def _is_busy(states: Sequence[wire.RankState]) -> bool:
    return any(state.state == "running" for state in states)
