"""The cells of a cluster, also other notebooks': a table, and one cell followed to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jaxcluster.cluster.history import Following, History
from jaxcluster.cluster.running import start_in_cell
from jaxcluster.errors import JaxClusterError
from jaxcluster.model.outputs import PastCell, traceback_lines
from jaxcluster.ranks import format_ranks
from jaxcluster.text import plural
from jaxcluster.views import blocks
from jaxcluster.views.blocks import Row
from jaxcluster.views.displays import Bundle
from jaxcluster.views.live import CellDisplay

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

LINE_CHARS = 60  # of a source's first line
NEVER = "No cell has run on this cluster yet. %%spmd runs one."


def table(found: History, now_ns: int, me: str, most: int) -> Bundle:
    """The last ``most`` cells as text and as HTML, oldest first.

    Args:
      me: how cells of this notebook say who has sent them.
    """
    if not found.cells:
        return blocks.bundle([NEVER])
    shown = found.cells[-most:]
    note = []
    if more := len(found.cells) - len(shown):
        note = [f"{plural(more, 'cell')} before: %jaxcluster outputs --history {len(found.cells)}"]
    if found.dropped:
        note.append(f"{plural(found.dropped, 'older cell')} no longer kept.")
    return blocks.bundle([blocks.table([_row(one, now_ns, me) for one in shown]), *note])


def _row(one: PastCell, now_ns: int, me: str) -> Row:
    took = (now_ns - one.sent_ns) / 1e9 if one.state == "running" else one.seconds
    line = one.first_line
    return {
        "cell": str(one.number),
        "in": f"[{one.execution_count}]",
        "state": one.state,
        "time": "" if one.state in ("died", "unknown") else f"{took:.1f} s",
        "began": clock(one.sent_ns, now_ns),
        "who": "this notebook" if one.who == me else one.who,
        "ranks": format_ranks(one.ranks),
        "source": line if len(line) <= LINE_CHARS else f"{line[: LINE_CHARS - 3]}...",
    }


def clock(at_ns: int, now_ns: int) -> str:
    """When something was, by this machine's clock; of another day, with its date."""
    (day, at), (today, _) = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns / 1e9)).split()
        for ns in (at_ns, now_ns)
    )
    return at if day == today else f"{day} {at}"


def headline(one: PastCell, now_ns: int, me: str = "") -> str:
    """``Cell 3, [7] of train.ipynb (...), has been running since 14:03:05``."""
    who = "this notebook" if one.who == me else one.who
    began = clock(one.sent_ns, now_ns)
    told = f"Cell {one.number}, [{one.execution_count}] of {who},"
    states = {
        "running": f"has been running since {began}",
        "died": f"began at {began}; a rank's process ended in it",
        "unknown": f"began at {began}; its end was not recorded",
        "ok": "has ended",
        "error": "has failed",
        "refused": "was refused a launch",
        "interrupted": "was stopped",
    }
    took = f" after {one.seconds:.1f} s (began at {began})"
    how = states.get(one.state, one.state)
    return f"{told} {how}{'' if began in how else took}"


def show_on(shell: Any, cluster: Cluster, found: History, one: PastCell) -> None:
    """In a notebook: a running cell's output from its beginning, and on until it has ended.

    The notebook's own cell does not wait for it: a thread goes on.
    """
    display = CellDisplay(shell, cluster, all_ranks=True)
    following = Following(found, one, one.shown, display.on_output)
    display.on_notice(f"{headline(one, time.time_ns())}. Its output:")
    following.look()
    display.now()

    def follow() -> None:
        try:
            following.follow(cluster.check_not_closed)
            told = "\n".join([f"{headline(one, time.time_ns())}.", *traceback_lines(one)])
        except (JaxClusterError, OSError):  # its folder is gone
            told = f"Cell {one.number} is no longer followed."
        display.close()
        display.on_notice(told)

    start_in_cell(follow, "jaxcluster-follow")
