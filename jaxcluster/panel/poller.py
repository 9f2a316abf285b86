"""What the ranks' control channels say of one cluster, asked now and then and never waited for."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping

from jaxcluster import wire
from jaxcluster.model import lockstep
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.lockstep import State

SILENT_S = 3.0  # without an answer
RSS_STEP = 16 << 20  # smaller changes of a process's memory are not told


class RankPoller:
    """The last state of each rank.

    Args:
      link: to the cluster's ranks; None where there is no cluster.

    Attributes:
      states: by rank; a rank that has never answered is missing.
      waiting: the ranks that wait in a collective.
      silent: the living ranks that have not answered for a while.
      ended: the seq of the last cell that each rank is known to have ended.
      hit: the seq of the cell in which each rank was interrupted by hand.
    """

    def __init__(self, link: Link | None = None) -> None:
        self.link = link
        self.states: dict[int, wire.RankState] = {}
        self.waiting: set[int] = set()
        self.silent: set[int] = set()
        self.ended: dict[int, int] = {}
        self.hit: dict[int, int] = {}
        self._before: dict[int, wire.RankState] = {}
        self._asked: list[str] = []
        self._owing: dict[int, float] = {}  # since when a rank owes an answer
        self._sink = Sink()
        self._since: dict[int, tuple[int, int]] = {}
        self._rss: dict[int, int] = {}

    def look(self, timeout_s: float) -> None:
        """Ask all ranks, and take in what they answer meanwhile, now or at the next look."""
        if (link := self.link) is None:
            return
        self._take(0.0)
        link.forget(self._asked)
        self._before = dict(self.states)
        now = time.monotonic()
        for rank in link.ranks:
            self._owing.setdefault(rank, now)
        each = dict.fromkeys(link.ranks, State())
        self._asked = link.request_each(each, sink=self._sink)
        self._take(timeout_s)
        late = time.monotonic() - SILENT_S
        self.silent = {rank for rank, since in self._owing.items() if since < late}
        self.waiting = waiting(self._before, self.states)

    def _take(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._owing:
            try:
                event = self._sink.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            self._owing.pop(event.rank, None)
            if event.op == "reply":
                self.states[event.rank] = event.body

    def since(self, rank: int, now: int) -> int:
        """When a rank has entered the cell that it runs: the same answer as long as it runs it."""
        state = self.states[rank]
        known = self._since.get(rank)
        if known is None or known[0] != state.seq:
            known = self._since[rank] = (state.seq, now - int(state.seconds * 1000))
        return known[1]

    def rss(self, rank: int) -> int:
        """A process's memory, without its small changes."""
        state = self.states.get(rank)
        if state is None:
            return 0
        if abs(state.rss_nbytes - self._rss.get(rank, 0)) >= RSS_STEP:
            self._rss[rank] = state.rss_nbytes
        return self._rss.get(rank, 0)


def waiting(before: Mapping[int, wire.RankState], now: Mapping[int, wire.RankState]) -> set[int]:
    """The ranks that have launched what another of the set has not, and have not moved since.

    The last look was half a second before, so a rank that is merely ahead of others has moved.
    """
    found = set()
    least: dict[str, int] = {}
    for processes in {p for state in now.values() for p in state.launches}:
        known = [now[rank] for rank in lockstep.members(processes) if rank in now]
        least[processes] = min((s.launches.get(processes, [0])[0] for s in known), default=0)
    for rank, state in now.items():
        old = before.get(rank)
        if state.state != "running" or old is None or old is state:
            continue
        still = (old.seq, old.line, old.frame, old.launches) == (
            state.seq,
            state.line,
            state.frame,
            state.launches,
        )
        if still and any(count[0] > least[p] for p, count in state.launches.items()):
            found.add(rank)
    return found
