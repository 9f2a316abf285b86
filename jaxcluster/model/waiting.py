"""The line that says what a cell waits for, and which rank keeps the others waiting. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.agreement.messages import Looked, Place
from jaxcluster.ranks import begin_ranks, by_value, name_ranks, say
from jaxcluster.text import format_seconds

LONG_S = 5.0  # a longer launch, or work after the others' end, is shown
MOST = 2  # sentences in the line
LAUNCHES = 256  # last launches to look at
LEAST = 16  # launches of a cell before anybody is named
LEAST_S = 0.005  # a smaller delay is not shown
SHARE = 0.6  # least share of launches; by chance one of two ranks is last in half of them
OF_TIME = 0.03  # least share of the cell's time that the others have waited


def line(
    seq: int,
    states: Mapping[int, wire.RankState],
    silent: Sequence[str],
    looked: Looked | None,
    hosts: Mapping[int, str],
    *,
    have_ended: bool = False,
) -> str:
    """Who waits for whom since when, and what the missing ranks do; "" if nobody waits.

    Args:
      seq: the cell's.
      states: what the ranks that have not ended it say of themselves.
      silent: sentences that say why others of these say nothing.
      looked: what the referee says.
      have_ended: whether other ranks have ended the cell.
    """
    waits = [wait for wait in looked.waits if wait.seq == seq] if looked is not None else []
    told = []
    for missing, ranks in by_value({w.rank: tuple(w.missing) for w in waits if not w.lane}).items():
        first = next(wait for wait in waits if wait.rank == ranks[0])
        since = min(wait.since for wait in waits if wait.rank in ranks)
        seconds = format_seconds((looked.now if looked is not None else since) - since)
        others = f"{name_ranks(missing, hosts)} ({where(first.place, first.name)})"
        told.append(say(ranks, f"has waited {seconds} for {others}", hosts))
    waiting = {wait.rank for wait in waits}
    at_work = {
        rank: does for rank, s in states.items() if rank not in waiting and (does := _does(s))
    }
    if waits:
        told += [say(ranks, does, hosts) for does, ranks in by_value(at_work).items()]
    else:
        launching = {r: s.launching for r, s in states.items() if s.launching_s > LONG_S}
        for name, ranks in by_value(launching).items():
            seconds = format_seconds(max(states[rank].launching_s for rank in ranks))
            told.append(f"{begin_ranks(ranks, hosts)}: in {name} for {seconds}")
        late = {r: d for r, d in at_work.items() if states[r].seconds > LONG_S and have_ended}
        for does, ranks in by_value(late).items():
            seconds = format_seconds(max(states[rank].seconds for rank in ranks))
            at = f"{say(ranks, does, hosts)} ({seconds})"
            told.append(f"{at}; the other ranks have ended the cell")
    told = [one.rstrip(".") for one in silent] + told
    told[1:] = [f"{one[0].lower()}{one[1:]}" for one in told[1:]]
    return "; ".join(told[:MOST]) + ("." if told else "")


def where(place: Place, name: str) -> str:
    """``line 3, jit(sum)``."""
    at = f"line {place.line}" if place.line else place.within.partition(":")[0]
    return ", ".join(filter(None, [at, name]))


def _does(state: wire.RankState) -> str:
    if state.paused:
        return "is held by a debugger" if state.paused == "debugger" else "waits for input"
    if state.state != "running":
        return ""
    return f"is at work in line {state.line}" if state.line else "is at work"


# --------------------------------------------------------------------------- who comes last


@dataclass(frozen=True)
class Late:
    """A rank that comes last into most launches of a cell.

    Attributes:
      share: the share of launches at which it is last.
      behind_s: its median delay after the others. place, name: the launch at which it is last
        most often.
    """

    rank: int
    share: float
    behind_s: float
    place: Place
    name: str

    def told(self, hosts: Mapping[int, str] | None = None) -> str:
        """In a sentence."""
        return (
            f"{begin_ranks([self.rank], hosts)} is last in {self.share:.0%} of launches, "
            f"{1000 * self.behind_s:.0f} ms late ({where(self.place, self.name)})."
        )


def find_late(looked: Looked | None) -> Late | None:
    """Who keeps the others waiting in the last cell; None if nobody does."""
    agreed = looked.agreed if looked is not None else []  # oldest first
    own = [one for one in agreed if one.seq == agreed[-1].seq]
    if len(own) < LEAST:
        return None
    lasts = Counter(one.last for one in own if one.late_s >= LEAST_S)
    rank, count = next(iter(lasts.most_common(1)), (0, 0))
    delays = [one for one in own if one.last == rank and one.late_s >= LEAST_S]
    lost_s = sum(one.late_s for one in delays)
    if count < SHARE * len(own) or lost_s < OF_TIME * (own[-1].at - own[0].at):
        return None
    (((place, name), _),) = Counter((one.place, one.name) for one in delays).most_common(1)
    behind_s = statistics.median(one.late_s for one in delays)
    return Late(rank, count / len(own), behind_s, place, name)
