"""Numbers for what this notebook sends to the ranks, by which the referee orders it."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from jaxcluster.agreement.cellqueue import CellSpec


class TurnMaker:
    """Numbers the cells of one notebook on one generation of ranks.

    Numbers are microseconds of the clock, so that those of other notebooks are others, and later
    cells have larger ones.
    """

    def __init__(self) -> None:
        self._owner = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._last = 0
        self._open: set[int] = set()
        self._seen = 0

    def make(
        self, ranks: Sequence[int], *, is_waited_for: bool = False, is_skippable: bool = True
    ) -> CellSpec:
        """The turn of something that is about to be sent.

        Args:
          is_waited_for: nothing else is sent before it has ended.
          is_skippable: it is not run if a cell that was queued before it has failed.
        """
        with self._lock:
            seq = self._last = max(self._last + 1, time.time_ns() // 1000)
            is_foreground = is_waited_for and not self._open
            self._open.add(seq)
            ranks = tuple(sorted(ranks))
            return CellSpec(seq, ranks, self._owner, self._seen, is_foreground, is_skippable)

    def ended(self, seq: int) -> None:
        """It is known how it has ended."""
        with self._lock:
            self._open.discard(seq)
            self._seen = max(self._seen, seq)


def who_we_are() -> str:
    """This process, for those who wait for it."""
    return _named(os.environ.get("JPY_SESSION_NAME", ""), os.getpid())


@functools.lru_cache(1)  # each cell says it
def _named(session: str, pid: int) -> str:
    notebook = Path(session).name
    process = f"process {pid} on {socket.gethostname()}"
    return f"{notebook} ({process})" if notebook else process
