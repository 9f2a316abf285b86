"""Tells listeners that a cluster has changed, and how far a start has come.

The panel listens. Clusters and cells call it, and don't know the listeners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from jaxcluster.cluster.starting import Starting

Progress = Callable[[str], None]
# How far a rank has come; "" before it was heard of.
StartStep = Literal["", "up", "initialized", "ready"]

# Called on the thread that has changed something, with the cell (``running.RunningCell``) that was
# submitted, or with None. They are in the way of a cell: they take microseconds and never raise.
watchers: list[Callable[[Any], None]] = []

progress = ""  # the last line of the start or restart that goes on; "" while there is none
course: Starting | None = None  # the start that goes on; else the last one, if it has failed


def tell(cell: Any = None) -> None:
    """Something has changed; ``cell`` has been submitted."""
    for watcher in watchers:
        watcher(cell)


@contextlib.contextmanager
def going_on(also: Progress | None = None) -> Iterator[Progress]:
    """Yields a function that takes a line for each step of a start or restart."""

    def say(line: str) -> None:
        global progress
        progress = line
        tell()
        if also is not None:
            also(line)

    try:
        yield say
    finally:
        global progress
        progress = ""
        tell()
