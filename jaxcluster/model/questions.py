"""Whose turn it is when several ranks ask: one question is answered at a time. Pure.

Ranks that run the same cell ask the same: one answer serves all of them. Questions are the same if
each is its rank's nth in the cell, with the same prompt. A debugger's are its own rank's alone. A
rank that was just answered may ask again at once, as a debugger does: it keeps its turn as long
as it does so. Else the lowest rank that asks is next.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from jaxcluster import wire

GATHER_S = 0.2  # that other ranks get to ask, too: they run the same cell
AGAIN_S = 0.4  # that a rank gets to ask again before it is another's turn


Key = tuple[int, str, bool]  # which one of its rank's, its prompt, whether it is secret


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
    _keys: dict[tuple[int, int], Key] = field(default_factory=dict)  # by rank and id

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def ranks(self) -> list[int]:
        """Those that ask."""
        return sorted(self._asked)

    def key(self, question: wire.Question) -> Key | None:
        """What questions of several ranks have in common; None: it is its rank's alone."""
        if question.debugger:
            return None
        own = [rank for rank, _ in self._keys if rank == question.rank]
        made = len(own) + 1, question.prompt, question.secret
        return self._keys.setdefault((question.rank, question.id), made)

    @property
    def same(self) -> list[wire.Question]:
        """What other ranks ask that is the same as the open one."""
        if self.open is None or (key := self.key(self.open)) is None:
            return []
        firsts = [asked[0] for _, asked in sorted(self._asked.items())]
        return [one for one in firsts if one != self.open and self.key(one) == key]

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
        first = self._asked[speaker][0]
        is_new = speaker != self._speaker
        may_ask = [r for r in running if not first.debugger or (is_new and r < speaker)]
        is_early = now < self._since[speaker] + GATHER_S
        if is_early and any(rank not in self._asked for rank in may_ask):
            return None
        self._speaker, self.open = speaker, first
        return self.open

    def answered(self, now: float) -> list[wire.Question]:
        """The open one has its answer; returns all that have it."""
        assert self.open is not None
        done, self._answered_at = [self.open, *self.same], now
        self.open = None
        for one in done:
            self._asked[one.rank].remove(one)
            self._since[one.rank] = now
            if not self._asked[one.rank]:
                del self._asked[one.rank], self._since[one.rank]
        return done

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
