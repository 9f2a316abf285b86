"""What every rank is doing, in a table that goes on updating itself, also while a cell runs."""

from __future__ import annotations

import contextvars
import threading
from html import escape
from typing import TYPE_CHECKING, Any

from jaxcluster.errors import JaxClusterError
from jaxcluster.views import document, text

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster
    from jaxcluster.views.widget import ShardWidget

BUSY_S = 0.5  # between two looks while some rank runs a cell
IDLE_S = 2.0
RSS_STEP = 16 << 20  # smaller changes of a process's memory are not told


def live(cluster: Cluster) -> ShardWidget:
    """A widget that shows each rank's state, cell, line, time and memory until the cluster ends.

    A thread asks the ranks' control channels, which answer during a cell. It sends only what has
    changed, so that an idle notebook looks idle to whatever culls idle kernels.
    """
    from jaxcluster.views.widget import ShardWidget

    states = cluster.status()
    html = f"<pre>{escape(text.status(states, cluster.dead))}</pre>"
    widget = ShardWidget(document.status(states, cluster.dead), html)
    done = threading.Event()
    widget.observe(lambda change: done.set(), "comm")  # it was closed

    def follow() -> None:
        while not done.wait(BUSY_S if _is_busy(widget.document) else IDLE_S):
            try:
                found = document.status(cluster.status(), cluster.dead)
            except JaxClusterError:  # the cluster was stopped
                return
            if changing(found) != changing(widget.document):
                widget.document = found

    # A copy of the context keeps what is sent under the cell that shows the widget.
    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(follow,), name="jaxcluster-status", daemon=True).start()
    return widget


def changing(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """What of a status document is worth another drawing."""
    return [rank | {"rss": rank["rss"] // RSS_STEP} for rank in shown["ranks"]]


def _is_busy(shown: dict[str, Any]) -> bool:
    return any(rank["state"] == "running" for rank in shown["ranks"])
