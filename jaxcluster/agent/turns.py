"""Whose turn it is to hand out a cell to a cluster's ranks. The first host's agent knows it.

Several notebooks on one cluster must hand out their cells in one order for all ranks. On one
machine a lock in the cluster's folder sees to it (``turns.LocalTurns``); hosts share no locks. So
the first host's agent has a line for each generation of ranks: whoever wants the turn asks for it,
gets it when it is free, with the number of the next cell, and gives it back.

A holder that has gone, or has not been reached for ``AWAY_S``, has lost its turn. Its cell's number
was given out, so if that cell still comes, each rank waits a while with the next one for it.

Pure: no sockets, and time is passed in (seconds, monotonic).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

AWAY_S = 10.0  # longer than a link is cut now and then, shorter than the owner's lease


@dataclass(frozen=True)
class Granted:
    """The turn of a cell: its number, and each rank's last one before; 0 if it had none."""

    last: dict[int, int] = field(default_factory=dict)
    seq: int = 0


@dataclass(frozen=True)
class LineLook:
    """Who has the turn ("": nobody), for how long, how long he is away, the ranks' last seqs."""

    holder: str
    held_s: float
    away_s: float
    last: dict[int, int]


@dataclass
class Asked:
    """One who wants the turn, or has it.

    Attributes:
      client: whose connection; ``id`` is of the request, and the turn's own from then on.
      who: a name for those who wait.
      ranks: for whom there will be a cell; None where none is to be handed out meanwhile.
      since: when it has asked, and from its grant on when it was granted.
    """

    client: bytes
    id: int
    who: str
    ranks: tuple[int, ...] | None
    since: float


@dataclass
class Line:
    """Those who want the turn for one generation of ranks, and what was handed out to each rank."""

    seq: int = 0
    last: dict[int, int] = field(default_factory=dict)
    holder: Asked | None = None
    waiting: deque[Asked] = field(default_factory=deque)

    @property
    def is_idle(self) -> bool:
        return self.holder is None and not self.waiting

    def grant(self, now: float) -> list[tuple[Asked, Granted]]:
        """Give the turn to the next, if it is free: (who has it now, what it is told)."""
        if self.holder is not None or not self.waiting:
            return []
        self.holder = asked = self.waiting.popleft()
        asked.since = now
        last = dict(self.last)
        if asked.ranks is None:
            return [(asked, Granted(last))]
        self.seq += 1
        self.last |= dict.fromkeys(asked.ranks, self.seq)
        return [(asked, Granted(last, self.seq))]

    def without(self, client: bytes, id: int | None) -> None:
        """Forget a request, or all of a client's; the turn is free where it had it."""
        if self.holder is not None and _is(self.holder, client, id):
            self.holder = None
        self.waiting = deque(asked for asked in self.waiting if not _is(asked, client, id))


def _is(asked: Asked, client: bytes, id: int | None) -> bool:
    return asked.client == client and id in (None, asked.id)


class Turns:
    """The lines of an agent. All but ``line`` return who has a turn from now on, and what with."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    def ask(
        self, world: str, client: bytes, id: int, who: str, ranks: Iterable[int] | None, now: float
    ) -> list[tuple[Asked, Granted]]:
        """Want the turn for the generation ``world`` of ranks."""
        if world not in self._lines:  # a new one: of the older ones nobody may want anything
            self._lines = {w: line for w, line in self._lines.items() if not line.is_idle}
        line = self._lines.setdefault(world, Line())
        line.waiting.append(Asked(client, id, who, None if ranks is None else tuple(ranks), now))
        return line.grant(now)

    def done(self, client: bytes, id: int | None, now: float) -> list[tuple[Asked, Granted]]:
        """Give a turn back, or want it no longer. What is not there is no error.

        Args:
          id: None: the client has ended, or can't be reached, and wants no turn at all.
        """
        granted = []
        for line in self._lines.values():
            line.without(client, id)
            granted += line.grant(now)
        return granted

    def line(self, world: str) -> Line:
        """That of a generation, to look at."""
        return self._lines.get(world, Line())
