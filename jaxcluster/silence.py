"""Ranks that say nothing: why, and their end where they will never say anything again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable

from jaxcluster import wire
from jaxcluster.engine import procfs
from jaxcluster.engine.facts import host_key
from jaxcluster.engine.procfs import Silence
from jaxcluster.link import Link

PATIENCE_S = 5.0  # before a rank that says nothing counts as one that never will
ANSWER_S = 0.3  # that a beacon gets to answer what takes it microseconds


class Silences:
    """Looks at the processes of silent ranks, and says of each what its kernel says of it.

    Args:
      facts: what each rank's process said of itself when it came up.
    """

    def __init__(self, facts: Iterable[wire.EngineFacts]) -> None:
        self._facts = tuple(facts)
        self._first: dict[int, procfs.ProcessLook | None] = {}
        self._last: dict[int, procfs.ProcessLook | None] = {}

    @functools.cached_property
    def _pids(self) -> dict[int, int]:
        """The processes on this host. Looked for at the first silence: most cells know none."""
        here = host_key()
        return {f.rank: f.pid for f in self._facts if f.host_key == here}

    def look(self, ranks: Iterable[int]) -> None:
        """Begin to watch these; what was seen of others is forgotten, since they have answered."""
        ranks = [r for r in ranks if r in self._pids]
        self._first = {r: self._first.get(r) or procfs.look_at(self._pids[r]) for r in ranks}

    def why(self, rank: int) -> Silence:
        """Why this rank is silent, from the first look since it is so until now."""
        if rank not in self._pids:
            return Silence("unknown", "gives no sign of life, and runs on another host")
        return procfs.explain(self._first.get(rank), procfs.look_at(self._pids[rank]))


def silent_ranks(link: Link, ranks: Iterable[int]) -> set[int]:
    """Which of these ranks' beacons do not answer. Takes ``ANSWER_S`` where one does not."""
    ranks = list(ranks)
    return set(ranks) - set(link.gather(ranks, "state", timeout_s=ANSWER_S))


def hung_ranks(
    link: Link,
    facts: Iterable[wire.EngineFacts],
    ranks: Iterable[int],
    check: Callable[[], None] = lambda: None,
) -> dict[int, Silence]:
    """Which of these ranks will never answer, and why: it is waited for ``PATIENCE_S`` for them.

    Args:
      check: called now and then; it may raise.
    """
    silences = Silences(facts)
    silent = set(ranks)
    silences.look(silent)
    deadline = time.monotonic() + PATIENCE_S
    while silent := silent_ranks(link, silent):
        check()
        whys = {rank: silences.why(rank) for rank in sorted(silent)}
        stopped = all(why.kind in ("stopped", "traced") for why in whys.values())
        if stopped or time.monotonic() > deadline:
            return {rank: why for rank, why in whys.items() if why.is_hung}
    return {}


def tell(rank: int, why: Silence) -> str:
    """One sentence and what to type."""
    if why.kind == "starved" or why.may_pass:
        return f"Rank {rank} {why.words}."
    return f"Rank {rank} {why.words}; %jaxcluster restart replaces it."
