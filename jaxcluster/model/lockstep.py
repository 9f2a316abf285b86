"""Whether ranks have launched the same programs in the same order, by counts and hashes. Pure.

A set of processes counts the programs that its members launch together, and hashes them in their
order; two sets that overlap count together too (``wire.CROSSING``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from jaxcluster import wire

Counts = Mapping[str, Sequence[int]]


def in_lockstep(counts: Mapping[int, Counts]) -> bool:
    """Whether all ranks agree on every set of processes that they are members of."""
    return not any(uneven(counts, processes) for processes in sets_of(counts))


def sets_of(counts: Mapping[int, Counts]) -> list[str]:
    """The sets of processes that have launched programs together; last, the pairs that overlap."""
    found = {processes for per_rank in counts.values() for processes in per_rank}
    return sorted(found, key=lambda processes: (wire.CROSSING in processes, processes))


@functools.lru_cache(maxsize=256)  # each look at the ranks asks for those of the same sets
def members(processes: str) -> tuple[int, ...]:
    """The ranks of a set, or those that are in both sets of a pair."""
    first, *others = [part.split(",") for part in processes.split(wire.CROSSING)]
    return tuple(int(rank) for rank in first if all(rank in other for other in others))


def crossed(counts: Mapping[int, Counts], processes: str) -> bool:
    """Whether ranks launched the same programs of two sets that overlap, in another order."""
    if wire.CROSSING not in processes or not uneven(counts, processes):
        return False
    both = {r: counts[r] for r in members(processes) if r in counts}
    return not any(uneven(both, one) for one in processes.split(wire.CROSSING))


def made_by_all(counts: Mapping[int, Counts]) -> dict[str, int]:
    """Set of processes -> how many launches of it all its members have made."""
    return {
        processes: min(counts[r].get(processes, (0, 0))[0] for r in members(processes))
        for processes in sets_of(counts)
        if wire.CROSSING not in processes and counts.keys() >= {*members(processes)}
    }


def uneven(counts: Mapping[int, Counts], processes: str) -> bool:
    """Whether members of a set have launched another number of its programs, or others."""
    held = [tuple(counts[r].get(processes, (0, 0))) for r in members(processes) if r in counts]
    return len(set(held)) > 1


def comes_before(
    launch: wire.Launch, gate: Sequence[int], reports: Mapping[int, wire.RankReport]
) -> bool:
    """Whether a launch is of what has begun before the cell that waits at this gate of a rank may.

    A thread's launch is of no cell, and may be of one behind the gate that another rank has begun.
    """
    if launch.cell_seq:
        return launch.cell_seq <= gate[0]
    states = [report.state for report in reports.values()]
    return all(max(state.seq, state.ended) <= gate[0] for state in states)


def as_interrupted(reports: Mapping[int, wire.RankReport], seq: int) -> dict[int, wire.RankReport]:
    """The same, where ranks still announce what they did when they were interrupted in a cell."""
    told = dict(reports)
    for rank, report in reports.items():
        counts = report.state.launches
        left = (
            one
            for one in report.given_up
            if one.cell_seq == seq and one.seq == counts.get(one.processes, [0, 0])[0]
        )
        if report.announced is None and (entry := next(left, None)) is not None:
            told[rank] = dataclasses.replace(report, announced=entry)
    return told


def with_announced(
    reports: Mapping[int, wire.RankReport], *, compiled: bool = True
) -> dict[int, wire.RankReport]:
    """Count the launches that ranks wait to make, or were refused, as if they were made.

    Args:
      compiled: also those of which the program is still being compiled, and was by another rank.
    """
    told = {}
    for rank, report in reports.items():
        entry = report.announced
        if wire.is_compiling(entry):
            # Others of this rank's threads may have launched meanwhile: it comes behind these.
            seq, _ = report.state.launches.get(entry.processes, (0, 0))
            entry = dataclasses.replace(entry, seq=seq)
            if (made := _as_compiled(entry, reports)) is not None:
                entry = made if compiled else None
        told[rank] = _with_announced(report, entry)
    return told


def _with_announced(report: wire.RankReport, entry: wire.Launch | None) -> wire.RankReport:
    if entry is None:
        return report
    count, value = report.state.launches.get(entry.processes, [0, 0])
    if entry.seq != count:  # another one has been made in its place
        return report
    held = [count + 1, wire.next_hash(value, entry.fingerprint)]
    launches = {**report.state.launches, entry.processes: held}
    launches |= _crossings(report.state.launches, entry)
    state = dataclasses.replace(report.state, launches=launches)
    return dataclasses.replace(report, state=state, launches=[*report.launches, entry])


def _as_compiled(entry: wire.Launch, reports: Mapping[int, wire.RankReport]) -> wire.Launch | None:
    """What is being compiled, as a rank that has compiled the same has launched or announced it."""
    for report in reports.values():
        waits = [report.announced] if report.announced is not None else []
        for made in (*report.launches, *(one for one in waits if not wire.is_compiling(one))):
            if (made.processes, made.seq) == (entry.processes, entry.seq):
                if wire.is_of_source(made, entry):
                    return dataclasses.replace(entry, fingerprint=made.fingerprint)
                break
    return None


def _crossings(launches: Counts, entry: wire.Launch) -> dict[str, list[int]]:
    """What pairs of sets count once ``entry`` is made: see ``engine.crossings``."""
    own, told = set(entry.processes.split(",")), {}
    for other, (number, _) in launches.items():
        if wire.CROSSING in other or other == entry.processes:
            continue
        if len(own.intersection(other.split(","))) < 2:
            continue
        key = wire.crossing(entry.processes, other)
        count, value = launches.get(key) or wire.crossing_began(other, number)
        told[key] = [count + 1, wire.next_hash(value, entry.fingerprint)]
    return told


def refused(processes: str, seq: int | None, reports: Mapping[int, wire.RankReport]) -> list[int]:
    """The ranks that were to make this launch, and have not: in strict mode."""
    told = {r: report.announced for r, report in reports.items()}
    return [
        r
        for r, one in told.items()
        if one and (one.processes, one.seq) == (processes, seq) and not wire.is_compiling(one)
    ]


def compiling(processes: str, reports: Mapping[int, wire.RankReport]) -> list[int]:
    """The ranks that compile a program of this set: on GPU they wait there for the others."""
    told = {r: report.announced for r, report in reports.items()}
    return [r for r, one in told.items() if wire.is_compiling(one) and one.processes == processes]
