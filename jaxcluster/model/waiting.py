"""The line that says what a cell waits for while it runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcluster import wire
from jaxcluster.agreement.refusals import Place
from jaxcluster.ranks import begin_ranks, by_value, name_ranks
from jaxcluster.text import format_seconds
from jaxcluster.wire.ops.agreement import Looked

LONG_S = 5.0  # in one launch, or at work while the others have ended
MOST = 2  # things that are said


def line(
    seq: int,
    states: Mapping[int, wire.RankState],
    silent: Sequence[str],
    looked: Looked | None,
    hosts: Mapping[int, str],
    *,
    have_ended: bool = False,
) -> str:
    """Who waits for whom since when, and what those do; "" if nobody waits.

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
        have = "has" if len(ranks) == 1 else "have"
        told.append(
            f"{begin_ranks(ranks, hosts)} {have} waited {seconds} for "
            f"{name_ranks(missing, hosts)} ({where(first.place, first.name)})"
        )
    waiting = {wait.rank for wait in waits}
    at_work = {rank: _does(state) for rank, state in states.items() if rank not in waiting}
    if waits:
        for does, ranks in by_value({r: d for r, d in at_work.items() if d}).items():
            told.append(f"{begin_ranks(ranks, hosts)} {does if len(ranks) == 1 else _many(does)}")
    else:
        launching = {r: s.launching for r, s in states.items() if s.launching_s > LONG_S}
        for name, ranks in by_value(launching).items():
            seconds = format_seconds(max(states[rank].launching_s for rank in ranks))
            told.append(f"{begin_ranks(ranks, hosts)}: in {name} for {seconds}")
        late = {r: d for r, d in at_work.items() if d and states[r].seconds > LONG_S and have_ended}
        for does, ranks in by_value(late).items():
            seconds = format_seconds(max(states[rank].seconds for rank in ranks))
            are = does if len(ranks) == 1 else _many(does)
            others = "the other ranks have ended the cell"
            told.append(f"{begin_ranks(ranks, hosts)} {are} ({seconds}); {others}")
    told = [one.rstrip(".") for one in silent] + told
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


def _many(does: str) -> str:
    return does.replace("is ", "are ", 1).replace("waits ", "wait ", 1)
