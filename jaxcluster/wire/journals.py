"""What many ranks say of their launches, which are mostly the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxcluster.wire.launches import Launch, all_but_seq, unpacked
from jaxcluster.wire.messages import PollReply, RankReport


def reports_of(polls: Mapping[int, PollReply]) -> dict[int, RankReport]:
    """The reports in the ranks' replies.

    Launches that are equal on several of them are one object: of 256 ranks, 256 launches each
    would else be 65,000, each with the names of all processes.
    """
    kinds: dict[Launch, tuple[Any, ...]] = {}
    known: dict[tuple[int, int], Launch] = {}
    found = {}
    for rank, reply in polls.items():
        own = [kinds.setdefault(kind, all_but_seq(kind)) for kind in reply.kinds]
        launches = []
        for seq, number in reply.made:
            key = seq, id(own[number])
            if (launch := known.get(key)) is None:
                launch = known[key] = Launch(seq, *own[number])
            launches.append(launch)
        found[rank] = dataclasses.replace(reply.report, launches=launches)
    return found


@dataclasses.dataclass(frozen=True)
class LastLaunches:
    """Those of a rank that has ended, oldest first, in the form of a ``PollReply``."""

    kinds: list[Launch] = dataclasses.field(default_factory=list)
    made: list[list[int]] = dataclasses.field(default_factory=list)

    def all(self) -> list[Launch]:
        """One by one."""
        return unpacked(self.kinds, self.made)
