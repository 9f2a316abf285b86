"""Ranks that say nothing: why, and their end where they will never say anything again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from jaxcluster.host import procfs
from jaxcluster.host.procfs import ProcessLook, Silence
from jaxcluster.ranks import say_each
from jaxcluster.wire.link import Link
from jaxcluster.wire.ops.status import State

PATIENCE_S = 5.0  # before a rank that says nothing counts as one that never will
ANSWER_S = 0.3  # that a control channel gets to answer what takes it microseconds


Look = Callable[[Iterable[int]], Mapping[int, ProcessLook | None]]


class Silences:
    """Says of silent ranks what the kernels of their hosts say of their processes.

    Args:
      look: looks at the processes of ranks; a rank whose process can't be seen is missing.
      unseen: why it can't be seen.
    """

    def __init__(self, look: Look, unseen: Callable[[int], Silence]) -> None:
        self._look, self._unseen = look, unseen
        self._first: dict[int, ProcessLook | None] = {}

    def look(self, ranks: Iterable[int]) -> None:
        """Begin to watch these; what was seen of others is forgotten, since they have answered."""
        ranks = set(ranks)
        self._first = {rank: look for rank, look in self._first.items() if rank in ranks}
        if new := ranks - set(self._first):
            self._first |= self._look(new)

    def why(self, ranks: Iterable[int]) -> dict[int, Silence]:
        """Why these ranks are silent, from the first look since they are so until now."""
        ranks = list(ranks)
        now = self._look(ranks) if ranks else {}
        return {
            rank: procfs.explain(self._first.get(rank), now[rank])
            if rank in now
            else self._unseen(rank)
            for rank in ranks
        }


def silent_ranks(link: Link, ranks: Iterable[int]) -> set[int]:
    """Which of these ranks give no answer. Takes ``ANSWER_S`` where one does not."""
    ranks = list(ranks)
    return set(ranks) - set(link.gather(ranks, State(), timeout_s=ANSWER_S))


def hung_ranks(
    link: Link,
    look: Look,
    unseen: Callable[[int], Silence],
    ranks: Iterable[int],
    check: Callable[[], None] = lambda: None,
) -> dict[int, Silence]:
    """Which of these ranks will never answer, and why: it is waited for ``PATIENCE_S`` for them.

    Args:
      check: called now and then; it may raise.
    """
    silences = Silences(look, unseen)
    silent = set(ranks)
    silences.look(silent)
    deadline = time.monotonic() + PATIENCE_S
    while silent := silent_ranks(link, silent):
        check()
        whys = silences.why(sorted(silent))
        unsure = any(why.may_pass for why in whys.values())
        if time.monotonic() > deadline and not unsure:
            return {rank: why for rank, why in whys.items() if why.is_hung}
    return {}


def tell(whys: Mapping[int, Silence]) -> list[str]:
    """Why ranks are silent, a sentence for each reason that is known, and what to type."""
    messages = {}
    for rank, why in whys.items():
        if why.kind in ("starved", "cut") or why.may_pass or why.may_go_on:
            messages[rank] = why.message
        elif why.kind != "unknown":
            messages[rank] = f"{why.message}; %jaxcluster restart replaces it"
    return say_each(messages, "do not answer either")
