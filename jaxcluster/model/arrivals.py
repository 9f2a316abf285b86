"""Which collective of one rank's profile is which on the others, and by which clock. Pure."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.model import cost
from jaxcluster.model.perfetto import Array
from jaxcluster.wire import hlo

LEAST_ENDS = 8  # by which the clocks of two hosts are compared
FAR = 16  # by how many turns ranks may begin apart that can't say in which run they are

Key = tuple[str, str]  # of an operation: its module, and its name there


@dataclass(frozen=True)
class RankProfile:
    """What one rank's file holds, by the clock of its host, in nanoseconds.

    Attributes:
      slices: columns: track, name, start, length.
      runs: columns: operation, run, device, turn, start, end.
    """

    told: wire.ProfileTracks
    slices: tuple[Array, ...]
    runs: tuple[Array, ...]

    def shifted(self, by_ns: int) -> RankProfile:
        """By another clock."""
        track, name, start, nanos = self.slices
        *which, begins, ends = self.runs
        runs = (*which, begins + by_ns, ends + by_ns)
        return replace(self, slices=(track, name, start + by_ns, nanos), runs=runs)


def unpacked(told: wire.ProfileTracks, buffers: Sequence[Any]) -> RankProfile:
    """What a rank has sent."""
    kinds = (*wire.SLICE_COLUMNS, *wire.COLLECTIVE_COLUMNS)
    columns = [
        np.frombuffer(data, kind).astype(np.int64)
        for data, kind in zip(buffers, kinds, strict=True)
    ]
    at = len(wire.SLICE_COLUMNS)
    return RankProfile(told, tuple(columns[:at]), tuple(columns[at:]))


# --------------------------------------------------------------------------- what belongs together


@dataclass(frozen=True)
class Known:
    """What the compiled program says of a collective.

    Attributes:
      place: the user's line.
      groups: the ranks that are in it together; None where that is not known.
    """

    place: str
    groups: tuple[frozenset[int], ...] | None


@dataclass(frozen=True)
class Arrivals:
    """One operation on the ranks that have it: a row for each time, a column for each rank."""

    module: str
    operation: str
    ranks: tuple[int, ...]
    runs: Array
    starts: Array  # when the last device of each rank came
    ends: Array

    @property
    def key(self) -> Key:
        """Of the operation."""
        return self.module, self.operation

    def shifted(self, shifts: Mapping[int, int]) -> Arrivals:
        """By other clocks."""
        by = np.array([shifts.get(rank, 0) for rank in self.ranks], np.int64)
        return replace(self, starts=self.starts + by, ends=self.ends + by)


def arrivals(found: Mapping[int, RankProfile], known: Mapping[Key, Known]) -> list[Arrivals]:
    """Which time on one rank is which on the others that are in it together."""
    numbers: dict[Key, int] = {}
    by_rank = {}
    for rank, one in found.items():
        own = [numbers.setdefault((m, op), len(numbers)) for m, op in one.told.operations]
        by_rank[rank] = _merged(np.array(own, np.int64), one.runs)
    together = []
    for key, number in numbers.items():
        rows = {rank: each[:, each[0] == number] for rank, each in by_rank.items()}
        ranks = frozenset(rank for rank, each in rows.items() if each.shape[1])
        groups = known[key].groups if key in known else None
        for group in [ranks] if groups is None else groups:
            if len(group & ranks) > 1:
                members = {rank: rows[rank] for rank in sorted(group & ranks)}
                together.append(_together(*key, members))
    return [one for one in together if len(one.runs)]


def _merged(numbers: Array, runs: Sequence[Array]) -> Array:
    """Rows (operation, run, turn, start, end), one for all devices of the rank."""
    operation, run, _, turn, start, end = runs
    if not len(start):
        return np.zeros((5, 0), np.int64)
    operation = numbers[operation]
    order = np.lexsort((turn, run, operation))
    operation, run, turn, start, end = (one[order] for one in (operation, run, turn, start, end))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(operation) != 0) | (np.diff(run) != 0) | (np.diff(turn) != 0)
    first = np.flatnonzero(is_new)
    latest = [np.maximum.reduceat(one, first) for one in (start, end)]
    return np.stack([operation[first], run[first], turn[first], *latest])


def _together(module: str, operation: str, own: Mapping[int, Array]) -> Arrivals:
    if all((rows[1] < 0).all() for rows in own.values()):
        own = _in_turn(own)
    keys = {rank: list(zip(*rows[1:3].tolist(), strict=True)) for rank, rows in own.items()}
    common = set.intersection(*map(set, keys.values()))
    columns = []
    for rank, rows in own.items():
        chosen = np.fromiter((key in common for key in keys[rank]), bool, len(keys[rank]))
        columns.append(rows[:, chosen])
    starts, ends = (np.stack([rows[at] for rows in columns], 1) for at in (3, 4))
    order = np.argsort(starts.min(1), kind="stable")
    return Arrivals(module, operation, tuple(own), columns[0][1][order], starts[order], ends[order])


def _in_turn(own: Mapping[int, Array]) -> dict[int, Array]:
    """The same with turns that fit: a collective ends at about the same time on all ranks."""
    first, *others = own.values()
    found = [first]
    for rows in others:
        shifts = range(-FAR, FAR + 1)
        apart = [_apart(first, rows, shift) for shift in shifts]
        best = shifts[int(np.argmin(apart))]
        moved = rows.copy()
        moved[2] += best
        found.append(moved)
    return dict(zip(own, found, strict=True))


def _apart(one: Array, other: Array, shift: int) -> float:
    _, mine, its = np.intersect1d(one[2], other[2] + shift, return_indices=True)
    if not len(mine):
        return float("inf")
    return float(np.median(np.abs(one[4][mine] - other[4][its]))) + abs(shift)


def known_of(found: Mapping[int, RankProfile]) -> dict[Key, Known]:
    """What the compiled texts say of the collectives."""
    known = {}
    for one in found.values():
        for module, text in one.told.texts.items():
            try:
                program = hlo.parse(zlib.decompress(base64.b64decode(text)).decode())
            except ValueError:  # it is not understood: the launch's line is shown
                continue
            processes = one.told.processes.get(module, [])
            for body in program.computations.values():
                for operation in filter(lambda each: each.collective, body):
                    place, within = cost.place_of(program.stack(operation), one.told.files)
                    whole = f"{place} ({within})" if within else place
                    groups = _groups(program, operation, processes)
                    known[module, operation.name] = Known(whole, groups)
    return known


def _groups(
    program: hlo.Program, operation: hlo.Operation, processes: Sequence[int]
) -> tuple[frozenset[int], ...] | None:
    """The processes that wait for each other in it."""
    if operation.collective == "collective-permute":
        places: hlo.Groups = hlo.pairs(operation)
    else:
        places = hlo.groups(operation, program.size)
    if any(at >= len(processes) for each in places for at in each):
        return None
    found = {frozenset(processes[at] for at in each) for each in places}
    return tuple(sorted(found, key=sorted))


# --------------------------------------------------------------------------- one clock


@dataclass(frozen=True)
class Clocks:
    """What is known of them beforehand.

    Attributes:
      hosts: of the ranks; all processes of one have one clock.
      offsets: of each host, in seconds: how far its clock is ahead, and how well that is known.
    """

    hosts: Mapping[int, str]
    offsets: Mapping[str, tuple[float, float]]


def align(found: Sequence[Arrivals], clocks: Clocks) -> tuple[dict[int, int], float]:
    """(what is added to each rank's times, in nanoseconds; how many s they may yet be wrong).

    All ranks of a host have one clock. How far hosts' clocks are apart is known from outside, and
    better by the ends of collectives, which come at about the same time everywhere.
    """
    hosts, offsets = clocks.hosts, clocks.offsets
    shifts = {rank: -round(1e9 * offsets[host][0]) for rank, host in hosts.items()}
    error_s = max((error for _, error in offsets.values()), default=0.0)
    reference = hosts[min(hosts)] if hosts else ""
    better = {}
    for host in sorted(set(hosts.values()) - {reference}):
        apart = _ends_apart([one.shifted(shifts) for one in found], hosts, reference, host)
        if len(apart) < LEAST_ENDS:
            continue
        most = round(1e9 * (offsets[host][1] + offsets[reference][1]))
        better[host] = int(np.clip(round(float(np.median(apart))), -most, most))
    return {rank: by + better.get(hosts[rank], 0) for rank, by in shifts.items()}, error_s


def _ends_apart(
    found: Sequence[Arrivals], hosts: Mapping[int, str], one: str, other: str
) -> list[int]:
    apart: list[int] = []
    for each in found:
        of = [hosts[rank] for rank in each.ranks]
        mine, its = ([at for at, host in enumerate(of) if host == which] for which in (one, other))
        if mine and its:
            ends = [np.median(each.ends[:, at], 1) for at in (mine, its)]
            apart += (ends[0] - ends[1]).astype(np.int64).tolist()
    return apart
