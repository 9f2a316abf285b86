"""Tells whoever wants to know that a cluster has changed, and how far a start has come.

The panel listens. Clusters and cells tell, and know nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Progress = Callable[[str], None]

# Called on the thread that has changed something, with the cell (``running.RunningCell``) that was
# submitted, or with None. They are in the way of a cell: they take microseconds and never raise.
watchers: list[Callable[[Any], None]] = []

progress = ""  # the last line of the start or restart that goes on; "" while there is none
_going_on: list[list[str]] = []  # the last line of each; a start is a part of a restart


def tell(cell: Any = None) -> None:
    """Something has changed; ``cell`` has been submitted."""
    for watcher in watchers:
        watcher(cell)


@contextlib.contextmanager
def going_on(also: Progress | None = None) -> Iterator[Progress]:
    """Yields what is to be told, a line at a time, how far something has come."""

    last = [""]

    def say(line: str) -> None:
        last[0] = line
        _tell_progress()
        if also is not None:
            also(line)

    _going_on.append(last)
    try:
        yield say
    finally:
        # Those of several threads end in any order.
        _going_on[:] = [other for other in _going_on if other is not last]
        _tell_progress()


def _tell_progress() -> None:
    global progress
    said = [last[0] for last in _going_on if last[0]]
    progress = said[-1] if said else ""
    tell()
