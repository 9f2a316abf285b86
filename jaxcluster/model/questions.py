"""Whose turn it is, where several ranks ask: one is answered at a time. Pure.

A rank that was just answered may ask again at once, as a debugger does: it keeps its turn as long
as it does so. Else the lowest rank that asks is next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from jaxcluster import wire

GATHER_S = 0.2  # that ranks before it get to ask, too: they run the same cell
AGAIN_S = 0.4  # that a rank gets to ask again before it is another's turn


@dataclass
class Questions:
    """The questions of one cell that have no answer yet.

    Attributes:
      open: the one that is being asked.
    """

    open: wire.Question | None = None
    _asked: dict[int, list[wire.Question]] = field(default_factory=dict)
    _since: dict[int, float] = field(default_factory=dict)
    _speaker: int | None = None
    _answered_at: float = 0.0

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def ranks(self) -> list[int]:
        """Those that ask."""
        return sorted(self._asked)

    def add(self, question: wire.Question, now: float) -> None:
        self._asked.setdefault(question.rank, []).append(question)
        self._since.setdefault(question.rank, now)

    def next(self, now: float, running: Collection[int]) -> wire.Question | None:
        """The question to ask now, which is ``open`` from then on; None: none, or not yet.

        Args:
          running: the ranks that have not ended the cell.
        """
        if self.open is not None or not self._asked:
            return None
        speaker = self._speaker
        if speaker not in self._asked:
            if speaker in running and now < self._answered_at + AGAIN_S:
                return None
            speaker = min(self._asked)
            before = any(rank < speaker for rank in running)
            if before and now < self._since[speaker] + GATHER_S:
                return None
        self._speaker = speaker
        self.open = self._asked[speaker][0]
        return self.open

    def answered(self, now: float) -> None:
        """The open one has its answer."""
        assert self.open is not None
        rank, self._answered_at = self.open.rank, now
        self._asked[rank].remove(self.open)
        self.open = None
        self._since[rank] = now
        if not self._asked[rank]:
            del self._asked[rank], self._since[rank]

    def withdraw(self, rank: int) -> bool:
        """A rank asks no longer: it has ended the cell, or died. Whether it was its turn."""
        self._asked.pop(rank, None)
        self._since.pop(rank, None)
        if self.open is None or self.open.rank != rank:
            return False
        self.open = None
        return True

    def withdraw_all(self) -> None:
        """The cell is over, or is interrupted."""
        self.open = None
        self._asked.clear()
        self._since.clear()
