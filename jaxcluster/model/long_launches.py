"""Ranks that have been for long in one launch, which all have made: told, never called hung. Pure.

A loop inside a launched program may never end; nor may a collective in a branch or loop that the
ranks take differently. Nobody outside can tell that from what ends in an hour, so who waits is
told where the ranks are, and nothing is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from jaxcluster import wire
from jaxcluster.model.explain import program_line
from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.text import format_seconds

LEAST_S = 10.0  # in one launch, before it is told
TIMES = 20  # and as often as long as the program, or the cell's other launches, have taken
KEPT = 64  # of a program's last launches
PROGRAMS = 1024  # of which that is kept

Reports = Mapping[int, wire.RankReport]
# Who is in it, and the launch: restarts, seq, set, program.
Place = tuple[tuple[int, ...], tuple[int, int, str, int]]


class UsualTimes:
    """How long ranks have been in each program's last launches, in any cell of a cluster.

    It is as exact as the looks are frequent: a launch that none has seen counts as 0 s.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def add(self, program: int, seconds: float) -> None:
        """A launch of ``program`` has ended."""
        if program not in self._seconds and len(self._seconds) == PROGRAMS:
            del self._seconds[next(iter(self._seconds))]
        self._seconds.setdefault(program, deque(maxlen=KEPT)).append(seconds)

    def usual(self, program: int) -> float:
        """The median, in seconds; 0 for one that has not been seen."""
        return median(self._seconds.get(program) or [0.0])


class LongLaunches:
    """Since when ranks of a cell are in one launch, which the others have made, too.

    Args:
      ranks: those of the cell.
      started: when it was sent, by the clock of all the looks.
      stays: what is known of earlier launches; this cell's are added to it.

    Attributes:
      lasted_s: for how long they have been, at the last look; 0 where they were not.
    """

    def __init__(
        self, seq: int, ranks: Sequence[int], started: float, stays: UsualTimes | None = None
    ) -> None:
        self._seq, self._ranks, self._started = seq, tuple(ranks), started
        self._whole = ",".join(map(str, sorted(ranks)))  # the set of processes
        self._stays = UsualTimes() if stays is None else stays
        self._counted = -1  # the last launch that is in them
        self._stood: tuple[int, int, float] | None = None  # in which, of which program, how long
        self._place: Place | None = None
        self._since = self._last = started
        self.lasted_s = 0.0

    def look(self, reports: Reports, now: float) -> str:
        """What is true after this look at the ranks; "" if nothing is to be told."""
        place, gap = self._place_of(reports), now - self._last
        self._last = now
        self._count(reports)
        if place is None or place != self._place:
            self._place, self._since, self.lasted_s = place, now, 0.0
            if place is not None:
                self._stood = place[1][1], place[1][3], gap
            return ""
        self.lasted_s = lasted = now - self._since
        self._stood = self._stood and (*self._stood[:2], self._stood[2] + gap)
        inside = place[0]
        report = reports[inside[0]]
        others = sum(launch.cell_seq == self._seq for launch in report.launches[:-1])
        mean = (self._since - self._started) / others if others else 0.0
        usual = max(mean, self._stays.usual(report.launches[-1].fingerprint))
        if lasted < max(LEAST_S, TIMES * usual):
            return ""
        within = all(is_within_launch(reports[rank]) for rank in inside)
        if left := [rank for rank in self._ranks if rank not in inside]:
            return tell_uneven(inside, left, report.launches[-1], lasted, within)
        return tell(inside, report.launches[-1], lasted, within)

    def end(self) -> None:
        """The cell has ended well, and its last launch with it."""
        if self._stood is not None:
            self._stays.add(*self._stood[1:])
            self._stood = None

    def _count(self, reports: Reports) -> None:
        """Add the launches to ``stays`` that others have followed since the last look."""
        report = reports.get(self._ranks[0])
        if report is None or report.state.seq != self._seq:
            return
        stood, _, seconds = self._stood or (-1, 0, 0.0)
        for launch in report.launches[:-1]:
            is_own = launch.cell_seq == self._seq and launch.processes == self._whole
            if is_own and launch.seq > self._counted:
                self._counted = launch.seq
                self._stays.add(launch.fingerprint, seconds if launch.seq == stood else 0.0)
        if self._counted >= stood:
            self._stood = None

    def _place_of(self, reports: Reports) -> Place | None:
        """Who is in one launch that all have made; None where some are in another one."""
        if any(rank not in reports for rank in self._ranks):
            return None
        states = {rank: reports[rank].state for rank in self._ranks}
        inside = [
            rank
            for rank, state in states.items()
            if state.seq == self._seq and waits_for_launch(reports[rank])
        ]
        places = set()
        for rank in inside:
            last = reports[rank].launches[-1]
            places.add((states[rank].restarts, last.seq, last.processes, last.fingerprint))
        if len(places) != 1:
            return None
        place = places.pop()
        restarts, seq, processes, _ = place
        left = [state for rank, state in states.items() if rank not in inside]
        have_made = all(
            state.restarts == restarts
            and not state.paused
            and (state.launches.get(self._whole) or [0])[0] > seq
            for state in left
        )
        return (tuple(inside), place) if processes == self._whole and have_made else None


def waits_for_launch(report: wire.RankReport) -> bool:
    """Whether a rank can have nothing to do but to wait for its last launch, or what it computes.

    One that compiles, computes in Python, or waits for others before a launch, does not.
    """
    state = report.state
    if state.state != "running" or state.paused or report.announced is not None:
        return False
    if not report.launches or report.launches[-1].cell_seq == wire.OURS or not report.stack:
        return False
    inner = report.stack[-1]
    return (
        is_within_launch(report)
        or _is(inner, "jax/_src/array.py", "_value")
        or _is(inner, "jax/_src/api.py", "try_to_block")
        or ".block_until_ready(" in str(inner[3])
    )


def is_within_launch(report: wire.RankReport) -> bool:
    """Whether its main thread is in the launch itself, maybe in a callback of the program's."""
    ours = [row for row in report.stack if "/jaxcluster/engine/" in row[0]]
    while ours and ours[-1][0].endswith("engine/private/launches.py"):  # it wraps callbacks
        ours.pop()
    return bool(ours) and _is(ours[-1], "engine/journal.py", "launch")


def _is(row: Sequence[Any], file: str, function: str) -> bool:
    return str(row[0]).endswith(file) and str(row[2]).rpartition(".")[2] == function


def tell(ranks: Sequence[int], launch: wire.Launch, lasted_s: float, within: bool) -> str:
    """Where the ranks are, and that it need not be wrong.

    Args:
      within: they are in the launch; else what they wait for may be a program of each one's own.
    """
    what = f"launch {launch.seq + 1}, {program_line(launch)}"
    who, long = begin_ranks(ranks), format_seconds(lasted_s)
    told = f"{who} have been in the same launch for {long}, in lockstep: {what}."
    if not within:
        told = f"{who} have waited {long} for a result, in lockstep. All have launched the same "
        told += f"last: {what}."
    return f"{told} It may just take long, or be in a loop that never ends."


def tell_uneven(
    inside: Sequence[int], left: Sequence[int], launch: wire.Launch, lasted_s: float, within: bool
) -> str:
    """Where some ranks are, while the others have made the same launch and gone on."""
    what, long = f"launch {launch.seq + 1}, {program_line(launch)}", format_seconds(lasted_s)
    have = "has" if len(inside) == 1 else "have"
    did = f"been for {long} in" if within else f"waited {long} for a result, after"
    others = f"{name_ranks(left)} {'has' if len(left) == 1 else 'have'} made, too, and gone on"
    return (
        f"{begin_ranks(inside)} {have} {did} {what}, which {others}. It may just take long. If the "
        "program has collectives in a branch or loop that ranks take differently, it never ends."
    )
