"""The last launches of ranks side by side: what a report and the journal show. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire

LAUNCHES = 12  # that a report's timeline shows
AFTER = 3  # of these, that come after the first that differs
MOST_LANES = 16


@dataclass(frozen=True)
class Launch:
    """One launch of a lane.

    Attributes:
      program: equal on all lanes for the same program.
      within: the line of a script or module that launched it, if it was not the cell's own:
        "train.py line 3: x.sum()".
    """

    name: str
    program: int
    cell: int | None
    line: int | None
    within: str = ""

    @property
    def place(self) -> str:
        """``[7] line 3, train.py line 12``: the cell's line, and what it ran."""
        place = f"[{self.cell}] line {self.line}" if self.cell is not None else ""
        return ", ".join(filter(None, [place, self.within.partition(": ")[0]]))


@dataclass(frozen=True)
class Lane:
    """Ranks that have made the same launches, from the timeline's first one on.

    Attributes:
      launches: None where they have made none.
      under_way: they are in a cell still: what they have not launched may come.
      died: their processes have ended: they could not launch more.
    """

    ranks: list[int]
    launches: list[Launch | None]
    under_way: bool = False
    died: bool = False


@dataclass(frozen=True)
class Timeline:
    """The last launches that a set of processes should have made together.

    Attributes:
      first: the number of the first launch that is shown, from 1 on.
      hidden: ranks that are left out, if there are too many lanes.
      odd: ranks that differ from the most at the first launch that differs. What comes after it is
        shifted, and means nothing.
    """

    processes: list[int]
    first: int
    lanes: list[Lane]
    hidden: list[int] = field(default_factory=list)
    odd: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many launches are shown."""
        return len(self.lanes[0].launches) if self.lanes else 0

    def difference(self) -> int | None:
        """The first place at which lanes differ; None where none does."""
        for at in range(self.length):
            if len({program_at(lane, at) for lane in self.lanes} - {WAITED_FOR}) > 1:
                return at
        return None


WAITED_FOR = -1  # stands for a program that a lane may still launch, or died before


def program_at(lane: Lane, at: int) -> int | None:
    """The program at a place of a lane; None: it has none there; WAITED_FOR: none so far."""
    launch = lane.launches[at]
    if launch is None:
        return WAITED_FOR if lane.under_way or lane.died else None
    return launch.program


def _odd(found: Timeline, culprits: set[int]) -> list[int]:
    """The ranks that differ from the most where lanes first differ.

    Where as many launched one as another, it is the culprits; where none is known, all differ.
    """
    if (at := found.difference()) is None:
        return []
    groups: dict[int | None, list[int]] = {}
    for lane in found.lanes:
        if (program := program_at(lane, at)) != WAITED_FOR:
            groups.setdefault(program, []).extend(lane.ranks)
    most = max(map(len, groups.values()))
    largest = [ranks for ranks in groups.values() if len(ranks) == most]
    if len(largest) > 1:
        largest = [ranks for ranks in largest if culprits and culprits.isdisjoint(ranks)][:1]
    usual = set(largest[0]) if largest else set()
    return sorted(rank for ranks in groups.values() for rank in ranks if rank not in usual)


def timelines(
    reports: Mapping[int, wire.RankReport],
    of: str = "",
    seq: int | None = None,
    culprits: Collection[int] = (),
    is_cut: bool = False,
) -> list[Timeline]:
    """What a finding is about: its launches, ranks that made the same ones on one lane.

    Args:
      of: the set of processes that a finding is about, or two that cross; "" for all.
      seq: the first launch that is not to be trusted: it is shown, and some after it.
      culprits: the ranks that differ: what they have not launched does not come any more.
      is_cut: nothing was found, and ranks were interrupted: what one has not launched, or not to
        its end, is not its fault.
    """
    about = set(of.split(wire.CROSSING)) if of else None
    shown = [one for one in _sets(reports) if about is None or one in about]
    ended = set(culprits)
    if is_cut:
        reports = _unbroken(reports)
    else:
        ended |= {r for r, report in reports.items() if report.state.state == "idle"}
    found = (
        _timeline(one, reports, seq, LAUNCHES, MOST_LANES, ended, set(culprits)) for one in shown
    )
    return [line for line in found if line is not None]


def journal(reports: Mapping[int, wire.RankReport], count: int) -> list[Timeline]:
    """The last ``count`` launches of each set of processes.

    Ranks that are in a cell may launch what they have not yet: their lanes say so.
    """
    ended = {r for r, report in reports.items() if report.state.state == "idle"}
    found = (
        _timeline(one, reports, None, count, len(reports), ended, set()) for one in _sets(reports)
    )
    return [line for line in found if line is not None]


def _unbroken(reports: Mapping[int, wire.RankReport]) -> dict[int, wire.RankReport]:
    """With launches that were broken off taken for what others have launched to its end."""
    whole = {
        (e.name, e.signature): e.fingerprint
        for report in reports.values()
        for e in report.launches
        if wire.BROKEN_OFF not in e.name
    }

    def completed(entry: wire.Launch) -> wire.Launch:
        name = entry.name.partition(wire.BROKEN_OFF)[0]
        key = whole.get((name, entry.signature), entry.fingerprint)
        return dataclasses.replace(entry, name=name, fingerprint=key)

    return {
        rank: dataclasses.replace(report, launches=list(map(completed, report.launches)))
        for rank, report in reports.items()
    }


def _sets(reports: Mapping[int, wire.RankReport]) -> list[str]:
    sets = {entry.processes for report in reports.values() for entry in report.launches}
    return sorted(one for one in sets if wire.CROSSING not in one)


def _timeline(
    processes: str,
    reports: Mapping[int, wire.RankReport],
    seq: int | None,
    count: int,
    most_lanes: int,
    ended: set[int],
    culprits: set[int],
) -> Timeline | None:
    ranks = [int(rank) for rank in processes.split(",")]
    known = {
        rank: {entry.seq: entry for entry in reports[rank].launches if entry.processes == processes}
        for rank in ranks
        if rank in reports
    }
    last = max((max(made, default=0) for made in known.values()), default=0)
    if seq is not None:
        last = min(last, seq + AFTER)
    # Journals are as long as they are: what all of them had forgotten is no difference.
    start = max((min(made) for made in known.values() if made), default=0)
    first = max(last - count + 1, min(start, last))
    numbers: dict[tuple[int, str], int] = {}
    lanes: dict[tuple[tuple[Launch | None, ...], bool, bool], list[int]] = {}
    drawn: dict[int, list[Launch | None]] = {}
    for rank, made in known.items():
        drawn[rank] = list(_launches(made, range(first, last + 1), numbers))
        died = reports[rank].state.state == "dead"
        key = (tuple(drawn[rank]), not (died or rank in ended), died)
        lanes.setdefault(key, []).append(rank)
    if not numbers:
        return None
    grouped = [
        Lane(ranks, drawn[ranks[0]], is_busy, died)
        for (_, is_busy, died), ranks in sorted(lanes.items(), key=lambda lane: lane[1])
    ]
    hidden = sorted(rank for lane in grouped[most_lanes:] for rank in lane.ranks)
    found = Timeline(ranks, first + 1, grouped[:most_lanes], hidden)
    return dataclasses.replace(found, odd=_odd(found, culprits))


def _launches(
    made: Mapping[int, wire.Launch], window: Sequence[int], numbers: dict[tuple[int, str], int]
) -> Iterator[Launch | None]:
    """A rank's launches within a window; a program's number stands for its fingerprint."""
    for seq in window:
        if (entry := made.get(seq)) is None:
            yield None
        else:
            program = numbers.setdefault((entry.fingerprint, entry.name), len(numbers))
            yield Launch(entry.name, program, entry.cell, entry.line, entry.within)
