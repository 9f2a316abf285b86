"""What every rank is doing, in a table that goes on updating itself, also while a cell runs.

No widget: that would be gone from a saved notebook. It is a display that is shown again whenever
something has changed, so what a saved notebook has, and nbconvert shows, is how it was last.
"""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.errors import JaxClusterError
from jaxcluster.views import document, text

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

BUSY_S = 0.5  # between two looks while some rank runs a cell
IDLE_S = 2.0
RSS_STEP = 16 << 20  # smaller changes of a process's memory are not told

Show = Callable[[dict[str, Any], bool], None]

_following: dict[str, threading.Event] = {}  # by the notebook's cell


def live(cluster: Cluster, show: Show, cell_id: str = "") -> threading.Event:
    """Show each rank's state, cell, line, time and memory until the cluster ends.

    A thread asks the ranks' control channels, which answer during a cell. It shows only what has
    changed, so that an idle notebook looks idle to whatever culls idle kernels.

    Args:
      show: shows a MIME bundle; the second argument says whether in place of the one before.
      cell_id: the notebook's cell. What it has shown before is left as it is.

    Returns:
      what ends it, when it is set.
    """
    done = threading.Event()
    if cell_id:
        _following.pop(cell_id, done).set()
        done = _following[cell_id] = threading.Event()
    states = cluster.status()
    shown = document.status(states, cluster.dead)
    show(bundle(shown, states, cluster.dead), False)

    def follow() -> None:
        nonlocal shown
        while not done.wait(BUSY_S if _is_busy(shown) else IDLE_S):
            try:
                states = cluster.status()
            except JaxClusterError as error:  # the cluster was stopped
                show(ended(str(error).partition("\n")[0]), True)
                return
            found = document.status(states, cluster.dead)
            if changing(found) != changing(shown):
                shown = found
                show(bundle(found, states, cluster.dead), True)

    # A copy of the context keeps what is shown under the cell that began it.
    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(follow,), name="jaxcluster-status", daemon=True).start()
    return done


def shown_by(shell: Any) -> Show:
    """A ``show`` for a notebook: one display of its own, by an id."""
    transient = {"display_id": f"jaxcluster-status-{uuid.uuid4().hex}"}

    def show(data: dict[str, Any], update: bool) -> None:
        shell.display_pub.publish(data, transient=transient, update=update)

    return show


def bundle(
    shown: dict[str, Any], states: Sequence[wire.RankState], dead: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """A status document in all the forms that a frontend may ask for."""
    table = f"{text.status(states, dead)}\n\nas of {time.strftime('%H:%M:%S')}"
    return {document.MIME: shown, "text/html": f"<pre>{escape(table)}</pre>", "text/plain": table}


def ended(why: str) -> dict[str, Any]:
    """What is shown of a cluster that has ended."""
    told = f"{why} (since {time.strftime('%H:%M:%S')})"
    return {"text/html": f"<pre>{escape(told)}</pre>", "text/plain": told}


def changing(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """What of a status document is worth another drawing."""
    return [rank | {"rss": rank["rss"] // RSS_STEP} for rank in shown["ranks"]]


def _is_busy(shown: dict[str, Any]) -> bool:
    return any(rank["state"] == "running" for rank in shown["ranks"])
