"""Tells whoever wants to know that a cluster has changed, and how far a start has come.

The panel listens. Clusters and cells tell, and know nothing of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxcluster import wire
from jaxcluster.errors import JaxClusterError

Progress = Callable[[str], None]
StartStep = Literal["", "up", "initialized", "ready"]
"""How far a rank has come; "" before it was heard of."""

# Called on the thread that has changed something, with the cell (``running.RunningCell``) that was
# submitted, or with None. They are in the way of a cell: they take microseconds and never raise.
watchers: list[Callable[[Any], None]] = []

progress = ""  # the last line of the start or restart that goes on; "" while there is none


@dataclass
class Course:
    """A start of ranks that goes on, or the last one, which has failed.

    Attributes:
      spec: what is started.
      is_restart: they are new processes of a cluster that there was.
      began: when, in milliseconds since 1970.
      steps: how far each rank has come that has been heard of.
      failure: why it has failed; "" while it goes on.
      end: ends it at its next wait; it is None before there is anything to wait for.
    """

    spec: wire.ClusterSpec
    is_restart: bool = False
    began: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    steps: dict[int, StartStep] = field(default_factory=dict)
    failure: str = ""
    is_cancelled: bool = False
    end: Callable[[], None] | None = None

    def step(self, rank: int, what: StartStep) -> None:
        """A rank has come so far."""
        self.steps[rank] = what
        tell()

    def cancel(self) -> None:
        """End it. Any thread."""
        self.is_cancelled = True
        if self.end is not None:
            self.end()


course: Course | None = None  # the start that goes on; else the last one, if it has failed


@contextlib.contextmanager
def starting(spec: wire.ClusterSpec, is_restart: bool = False) -> Iterator[Course]:
    """While ranks are started; a start that fails is kept until the next one."""
    global course
    mine = course = Course(spec, is_restart)
    tell()
    try:
        yield mine
    except BaseException as error:
        kept = isinstance(error, JaxClusterError) and not (mine.is_cancelled or is_restart)
        mine.failure = str(error) if kept else ""
        raise
    finally:
        if not mine.failure and course is mine:
            course = None
        tell()


def tell(cell: Any = None) -> None:
    """Something has changed; ``cell`` has been submitted."""
    for watcher in watchers:
        watcher(cell)


@contextlib.contextmanager
def going_on(also: Progress | None = None) -> Iterator[Progress]:
    """Yields what is to be told, a line at a time, how far something has come."""

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
