"""The states of one cluster's ranks, asked for now and then; nobody waits for the answers."""

from __future__ import annotations

import queue
import time

from jaxcluster import wire
from jaxcluster.model import waiting
from jaxcluster.model.waiting import Late
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.agreement import Look, Looked, Waiting
from jaxcluster.wire.ops.status import State

SILENT_S = 3.0  # without an answer


class RankPoller:
    """The last state of each rank.

    Args:
      link: to the cluster's ranks; None where there is no cluster.

    Attributes:
      states: by rank; a rank that has never answered is missing.
      waits: what the referee says of the ranks that wait for others, by rank.
      late: who keeps the others waiting.
      silent: the living ranks that have not answered for a while.
      ended: the seq of the last cell that each rank is known to have ended.
    """

    def __init__(self, link: Link | None = None) -> None:
        self.link = link
        self.states: dict[int, wire.RankState] = {}
        self.waits: dict[int, Waiting] = {}
        self.late: Late | None = None
        self.silent: set[int] = set()
        self.ended: dict[int, int] = {}
        self._asked: list[str] = []
        self._owing: dict[int, float] = {}  # since when a rank owes an answer
        self._sink, self._looks = Sink(), Sink()
        self._since: dict[int, tuple[int, int]] = {}

    def look(self, timeout_s: float) -> None:
        """Ask all ranks, and take in what they answer meanwhile, now or at the next look."""
        if (link := self.link) is None:
            return
        self._take(0.0)
        link.forget(self._asked)
        now = time.monotonic()
        for rank in link.ranks:
            self._owing.setdefault(rank, now)
        each = dict.fromkeys(link.ranks, State())
        self._asked = link.request_each(each, sink=self._sink)
        heard = [rank for rank in self.states if self._owing.get(rank) == now]
        if heard:  # by way of one that answers
            look = {heard[0]: Look(waiting.LAUNCHES)}
            self._asked += link.request_each(look, sink=self._looks)
        self._take(timeout_s)
        late = time.monotonic() - SILENT_S
        self.silent = {rank for rank, since in self._owing.items() if since < late}

    def _take(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self._owing:
            try:
                event = self._sink.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            self._owing.pop(event.rank, None)
            if event.op == "reply":
                self.states[event.rank] = event.body
        while not self._looks.empty():
            looked = self._looks.get().body
            if isinstance(looked, Looked):
                self.waits = {wait.rank: wait for wait in looked.waits if not wait.lane}
                self.late = waiting.find_late(looked.agreed) if looked.agreed else None

    def since(self, rank: int, now: int) -> int:
        """When a rank has entered the cell that it runs: the same answer as long as it runs it."""
        state = self.states[rank]
        known = self._since.get(rank)
        if known is None or known[0] != state.seq:
            known = self._since[rank] = (state.seq, now - int(state.seconds * 1000))
        return known[1]
