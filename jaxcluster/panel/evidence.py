"""What a report shows beside its words: where the ranks were, and what they had launched. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxcluster import wire
from jaxcluster.panel import protocol

LAUNCHES = 12  # that a timeline shows
AFTER = 3  # of these, that come after the first that differs
MOST_LANES = 16

Line = tuple[int, int]  # a cell's number, and one of its lines


def places(
    reports: Mapping[int, wire.RankReport],
    kind: str,
    culprits: Collection[int],
    at: tuple[str, int] | None = None,
    errors: Mapping[int, Line] | None = None,
    last_seen: Mapping[int, Line] | None = None,
) -> list[protocol.Place]:
    """The lines of cells at which ranks were, those of the same kind together.

    Args:
      reports: what the ranks said when it was found.
      kind: the finding's.
      culprits: the ranks that differ from the others, or that have died.
      at: the set of processes and the place in its sequence at which ranks parted.
      errors: where culprits raised an error.
      last_seen: where ranks that can't be asked any more were before.
    """
    found: dict[tuple[int, int, str], list[int]] = {}
    for rank in sorted({*reports, *(errors or {}), *(last_seen or {})}):
        if (place := _place(rank, reports, kind, rank in culprits, at, errors or {})) is not None:
            found.setdefault(place, []).append(rank)
        elif rank in culprits and last_seen is not None and rank in last_seen:
            found.setdefault((*last_seen[rank], "died"), []).append(rank)
    return [
        protocol.Place(cell, line, ranks, what)
        for (cell, line, what), ranks in sorted(found.items())
    ]


def _place(
    rank: int,
    reports: Mapping[int, wire.RankReport],
    kind: str,
    is_culprit: bool,
    at: tuple[str, int] | None,
    errors: Mapping[int, Line],
) -> tuple[int, int, str] | None:
    if rank in errors and is_culprit:
        return (*errors[rank], "differs")
    report = reports.get(rank)
    if report is None:
        return None
    entry = _made_at(report, at) if at is not None else None
    if kind == "mismatch" and entry is not None and entry.cell is not None and entry.line:
        return entry.cell, entry.line, "differs" if is_culprit else "launched"
    state = report.state
    if state.state == "running" and state.cell is not None and state.line:
        if kind in ("missing", "circle"):
            return state.cell, state.line, "differs" if is_culprit else "waited"
        return state.cell, state.line, "differs" if kind == "mismatch" else "was"
    if entry is not None and entry.cell is not None and entry.line and not is_culprit:
        return entry.cell, entry.line, "launched"  # it went past it, and has ended the cell
    return None


def _made_at(report: wire.RankReport, at: tuple[str, int]) -> wire.Launch | None:
    processes, seq = at
    made = (e for e in report.launches if e.processes == processes and e.seq == seq)
    return next(made, None)


def timelines(
    reports: Mapping[int, wire.RankReport], of: str = "", seq: int | None = None
) -> list[protocol.Timeline]:
    """The last launches of each set of processes, ranks that made the same ones on one lane.

    Args:
      of: the set of processes that a finding is about, or two that cross; "" for all.
      seq: the first launch that is not to be trusted: it is shown, and some after it.
    """
    sets = {entry.processes for report in reports.values() for entry in report.launches}
    about = set(of.split(wire.CROSSING)) if of else sets
    shown = sorted(one for one in about & sets if wire.CROSSING not in one)
    return [line for one in shown if (line := _timeline(one, reports, seq)) is not None]


def _timeline(
    processes: str, reports: Mapping[int, wire.RankReport], seq: int | None
) -> protocol.Timeline | None:
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
    first = max(last - LAUNCHES + 1, min(start, last))
    numbers: dict[tuple[int, str], int] = {}
    lanes: dict[tuple[tuple[int, int | None, int | None] | None, ...], list[int]] = {}
    drawn: dict[int, list[protocol.Launch | None]] = {}
    for rank, made in known.items():
        drawn[rank] = list(_launches(made, range(first, last + 1), numbers))
        key = tuple(
            None if one is None else (one.program, one.cell, one.line) for one in drawn[rank]
        )
        lanes.setdefault(key, []).append(rank)
    if not numbers:
        return None
    grouped = sorted(lanes.values())
    return protocol.Timeline(
        ranks,
        first + 1,
        [protocol.Lane(members, drawn[members[0]]) for members in grouped[:MOST_LANES]],
        sorted(rank for members in grouped[MOST_LANES:] for rank in members),
    )


def _launches(
    made: Mapping[int, wire.Launch], window: Sequence[int], numbers: dict[tuple[int, str], int]
) -> Iterator[protocol.Launch | None]:
    """A rank's launches within a window; a program's number stands for its fingerprint."""
    for seq in window:
        if (entry := made.get(seq)) is None:
            yield None
        else:
            program = numbers.setdefault((entry.fingerprint, entry.name), len(numbers))
            yield protocol.Launch(entry.name, program, entry.cell, entry.line)
