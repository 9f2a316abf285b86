"""Whether a person holds this rank: in a debugger, or by a question that it has asked.

A rank that is held may still launch whatever its cell launches, however long that takes: it is
neither hung nor diverged, and those that wait for it aren't either. Its notebook hears of it at
once (``paused``), all others at their next poll (``RankState.paused``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

INPUT = "input"  # it has asked a question
DEBUGGER = "debugger"


class Paused:
    """The holds on one rank. Thread-safe, and of use to a signal handler: it takes no lock.

    Args:
      on_change: told ``kind`` whenever that has changed, on the thread that changed it.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda kind: None) -> None:
        self.on_change = on_change
        self._holds: dict[int, str] = {}
        self._ids = itertools.count(1)
        self._told = ""

    @property
    def kind(self) -> str:
        """``debugger``, ``input``, or "" while nobody holds the rank."""
        holds = list(self._holds.values())
        return DEBUGGER if DEBUGGER in holds else holds[0] if holds else ""

    def begin(self, kind: str) -> int:
        """Somebody holds it from now on, until ``end`` is given what this returns."""
        hold = next(self._ids)
        self._holds[hold] = kind
        self._tell()
        return hold

    def end(self, hold: int) -> None:
        """One hold has ended; a second time does nothing."""
        if self._holds.pop(hold, None) is not None:
            self._tell()

    def end_all(self) -> None:
        """The cell is over, and so is whatever held it."""
        self._holds.clear()
        self._told = ""

    @contextlib.contextmanager
    def by(self, kind: str) -> Iterator[None]:
        """Hold it within the block."""
        hold = self.begin(kind)
        try:
            yield
        finally:
            self.end(hold)

    def _tell(self) -> None:
        kind = self.kind
        if kind != self._told:
            self._told = kind
            self.on_change(kind)
