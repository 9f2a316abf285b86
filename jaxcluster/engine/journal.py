"""What this rank has run: cells, and the multi-process computations that they launched."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class CellEntry:
    """A cell as it began; ``seconds`` is None while it runs."""

    seq: int
    execution_count: int
    at_ns: int
    seconds: float | None = None
    status: str = "running"


class Journal:
    """A flight recorder: bounded, so that it costs the same after a day as after a minute.

    ``launches`` and ``launch_hash`` count and fold multi-process launches; they are equal on all
    ranks that are in step. Nothing records launches yet, so both stay 0.
    """

    def __init__(self, size: int = 4096) -> None:
        self.cells: deque[CellEntry] = deque(maxlen=size)
        self.launches = 0
        self.launch_hash = 0

    def enter(self, seq: int, execution_count: int) -> None:
        self.cells.append(CellEntry(seq, execution_count, time.time_ns()))

    def leave(self, status: str, seconds: float) -> None:
        entry = self.cells.pop()
        self.cells.append(
            CellEntry(entry.seq, entry.execution_count, entry.at_ns, seconds, status)
        )
