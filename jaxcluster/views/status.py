"""What every rank does and uses, in a table that updates itself, also while a cell runs.

It is a display and no widget: a saved notebook keeps how it was last, and nbconvert shows that. It
is HTML alone, so that it is the same with and without the Lab extension.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxcluster.errors import JaxClusterError
from jaxcluster.views import blocks, text
from jaxcluster.views.blocks import Block
from jaxcluster.views.displays import Bundle, Display
from jaxcluster.views.throttle import start_in_cell

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

BUSY_S = 0.5  # between two looks while some rank runs a cell
IDLE_S = 2.0

WAIT_S = 0.3  # for what the ranks use; later answers are in the next table

_following: dict[str, threading.Event] = {}  # by the notebook's cell


def live(cluster: Cluster, show: Callable[[Bundle], None], cell_id: str = "") -> threading.Event:
    """Show each rank's state, cell, line and time, and what it uses, until the cluster ends.

    A thread asks the ranks' control channels, which answer during a cell. What the ranks use is
    measured every 2 s.

    Args:
      show: shows a MIME bundle in place of the one before.
      cell_id: the notebook's cell. The display that it has shown before is left as it is.

    Returns:
      what ends it, when it is set.
    """
    done = threading.Event()
    if cell_id:
        _following.pop(cell_id, done).set()
        done = _following[cell_id] = threading.Event()
    is_busy, shown = _look(cluster)
    show(bundle(shown))

    def follow() -> None:
        nonlocal is_busy
        while not done.wait(BUSY_S if is_busy else IDLE_S):
            try:
                is_busy, shown = _look(cluster)
            except JaxClusterError as error:  # the cluster was stopped
                show(ended(str(error).partition("\n")[0]))
                return
            show(bundle(shown))

    start_in_cell(follow, "jaxcluster-status")
    return done


def _look(cluster: Cluster) -> tuple[bool, list[Block]]:
    """Whether some rank runs a cell, and what is shown of all."""
    states = cluster.status()
    cluster.meter.keep_up(WAIT_S)
    late = cluster.late()
    shown: list[Block] = [text.status_table(states, cluster.dead, cluster.meter.latest)]
    shown += [late.told(cluster.world.hosts)] if late is not None else []
    return any(state.state == "running" for state in states), shown


def shown_by(shell: Any) -> Callable[[Bundle], None]:
    """A ``show`` for a notebook: one display, which does not count as use of the kernel."""
    display = Display(shell)
    return lambda data: display.refresh(data) if display.is_shown else display.show(data)


def bundle(shown: Sequence[Block]) -> Bundle:
    """The table in all the forms that a frontend may ask for."""
    return blocks.bundle([*shown, "", f"as of {time.strftime('%H:%M:%S')}"])


def seen(cluster: Cluster | None) -> Bundle:
    """What the ranks do now; None: there is no cluster."""
    if cluster is None:
        return blocks.bundle(["This notebook has no cluster."])
    return bundle(_look(cluster)[1])


def ended(why: str) -> Bundle:
    """What is shown of a cluster that has ended."""
    return blocks.bundle([f"{why} (since {time.strftime('%H:%M:%S')})"])
