"""The last launches of ranks side by side: what a report and the journal draw. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire

LAUNCHES = 12  # that a report's timeline shows
AFTER = 3  # of these, that come after the first that differs
MOST_LANES = 16


@dataclass(frozen=True)
class Launch:
    """One launch of a lane.

    ``program`` is equal on all lanes for the same program. ``within`` is the line of a script or a
    module that launched it, where it was not the cell's own.
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
    """Ranks that have made the same launches; None where they have made none.

    ``under_way``: they are in a cell still, so that what they have not launched may come.
    """

    ranks: list[int]
    launches: list[Launch | None]
    under_way: bool = False


@dataclass(frozen=True)
class Timeline:
    """The last launches that a set of processes should have made together.

    ``first`` is the number of the first that is shown, from 1 on; ``hidden`` are ranks that are
    left out, where there are too many lanes.
    """

    processes: list[int]
    first: int
    lanes: list[Lane]
    hidden: list[int] = field(default_factory=list)

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


def letter(program: int) -> str:
    """What stands for a program in a drawing: A, B, ..., Z, AA, ..."""
    rest, last = divmod(program, 26)
    return (letter(rest - 1) if rest else "") + chr(ord("A") + last)


def usual(found: Timeline, at: int) -> int | None:
    """What most ranks have launched at a place; None where that is nothing."""
    counts: dict[int | None, int] = {}
    for lane in found.lanes:
        program = program_at(lane, at)
        counts[program] = counts.get(program, 0) + len(lane.ranks)
    counts.pop(WAITED_FOR, None)
    return max(counts, key=lambda program: counts[program], default=None)


WAITED_FOR = -1  # stands for a program that a lane may still launch


def program_at(lane: Lane, at: int) -> int | None:
    """The program at a place of a lane; None: it has none there; WAITED_FOR: none so far."""
    launch = lane.launches[at]
    if launch is None:
        return WAITED_FOR if lane.under_way else None
    return launch.program


def timelines(
    reports: Mapping[int, wire.RankReport], of: str = "", seq: int | None = None
) -> list[Timeline]:
    """What a finding is about: its launches, ranks that made the same ones on one lane.

    Args:
      of: the set of processes that a finding is about, or two that cross; "" for all.
      seq: the first launch that is not to be trusted: it is shown, and some after it.
    """
    about = set(of.split(wire.CROSSING)) if of else None
    shown = [one for one in _sets(reports) if about is None or one in about]
    found = (_timeline(one, reports, seq, LAUNCHES, MOST_LANES, False) for one in shown)
    return [line for line in found if line is not None]


def journal(
    reports: Mapping[int, wire.RankReport], count: int, is_past: bool = False
) -> list[Timeline]:
    """The last ``count`` launches of each set of processes.

    Ranks that are in a cell may launch what they have not yet: their lanes say so, unless the
    reports are of the past.
    """
    live = not is_past
    found = (_timeline(one, reports, None, count, len(reports), live) for one in _sets(reports))
    return [line for line in found if line is not None]


def _sets(reports: Mapping[int, wire.RankReport]) -> list[str]:
    sets = {entry.processes for report in reports.values() for entry in report.launches}
    return sorted(one for one in sets if wire.CROSSING not in one)


def _timeline(
    processes: str,
    reports: Mapping[int, wire.RankReport],
    seq: int | None,
    count: int,
    most_lanes: int,
    is_live: bool,
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
    lanes: dict[object, list[int]] = {}
    drawn: dict[int, list[Launch | None]] = {}
    busy = {rank for rank in known if is_live and reports[rank].state.state != "idle"}
    for rank, made in known.items():
        drawn[rank] = list(_launches(made, range(first, last + 1), numbers))
        lanes.setdefault((tuple(drawn[rank]), rank in busy), []).append(rank)
    if not numbers:
        return None
    grouped = sorted(lanes.values())
    return Timeline(
        ranks,
        first + 1,
        [Lane(of, drawn[of[0]], of[0] in busy) for of in grouped[:most_lanes]],
        sorted(rank for of in grouped[most_lanes:] for rank in of),
    )


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
