"""The ranks' reports of an array, joined into one model: who holds which part of it.

Pure: nothing here talks to a rank, and nothing needs a collective, so a view can't hang.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.ranks import name_ranks
from jaxcluster.wire import Bounds, Shard

SEED = (
    "np.random and random draw different numbers on each rank, as in scripts. For the same "
    "numbers on all ranks, first run `import jaxcluster; jaxcluster.seed(0)` in a cell."
)

H = TypeVar("H", int, tuple[int, int])
P = TypeVar("P")
Groups = tuple[tuple[H, ...], ...]


@dataclass(frozen=True)
class Device:
    """A device, and the rank and host that it belongs to."""

    id: int
    rank: int
    kind: str
    platform: str
    host: str
    coords: Sequence[int] | None = None


@dataclass(frozen=True)
class Part:
    """A part of an array and its copies, by replica id."""

    index: Bounds
    shards: tuple[Shard, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({shard.rank for shard in self.shards}))


class ArrayLayout(wire.ArrayInfo):
    """The place of every part of an array: an ``ArrayInfo`` with the shards of all ranks.

    Attributes:
      devices: all devices of the cluster, by id.
      notes: a note on some ranks, such as that they are dead, or have another shape.
      odd: if ranks have different copies of a part, those with equal ones together.
    """

    name: str = ""
    devices: Mapping[int, Device] = field(default_factory=dict, repr=False)
    notes: Mapping[int, str] = field(default_factory=dict)
    odd: Groups[int] = ()

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts in the order of their indices, each with all its copies."""
        by_index: dict[Bounds, list[Shard]] = {}
        for shard in self.shards:
            by_index.setdefault(shard.index, []).append(shard)
        return tuple(
            Part(index, tuple(sorted(copies, key=lambda s: (s.replica_id, s.rank, s.device))))
            for index, copies in sorted(by_index.items())
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that hold a part."""
        return tuple(sorted({shard.rank for shard in self.shards}))

    @functools.cached_property
    def bytes_per_device(self) -> dict[int, int]:
        """Bytes on each device that holds a part."""
        held: Counter[int] = Counter()
        for shard in self.shards:
            held[shard.device] += shard.nbytes
        return dict(sorted(held.items()))

    @property
    def replication(self) -> float:
        """How many copies of an element there are on average: 1 when nothing is replicated."""
        held = sum(volume(part.index) for part in self.parts)
        return sum(volume(s.index) for s in self.shards) / held if held else 0.0

    @property
    def imbalance(self) -> float:
        """The fullest device's bytes by the mean of those that hold a part: 1 is even."""
        held = self.bytes_per_device.values()
        return max(held) * len(held) / sum(held) if any(held) else 1.0

    @property
    def missing(self) -> int:
        """How many elements no process holds that answered; parts of one array don't overlap."""
        if not self.spans and not self.shards:
            return 0
        return max(0, math.prod(self.shape) - sum(map(volume, {s.index for s in self.shards})))

    @property
    def gaps(self) -> tuple[Bounds, ...]:
        """The parts that no process holds that answered: those of the grid that lack."""
        held = {shard.index for shard in self.shards}
        edges = [
            sorted({0, size, *(at for index in held for at in index[axis])})
            for axis, size in enumerate(self.shape)
        ]
        cells = itertools.product(*map(itertools.pairwise, edges)) if self.missing else ()
        return tuple(cell for cell in cells if cell not in held)


@dataclass(frozen=True)
class TreeLayout:
    """The places of the arrays of a pytree. Leaves that are laid out alike share a layout.

    Attributes:
      rows: of each leaf its path, and which of ``layouts`` it looks like.
    """

    name: str
    type: str
    rows: tuple[tuple[tuple[str, ...], int], ...]
    layouts: tuple[ArrayLayout, ...]
    devices: Mapping[int, Device] = field(repr=False)
    notes: Mapping[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once however often it is replicated."""
        return sum(self.layouts[use].nbytes for _, use in self.rows)

    @property
    def bytes_per_device(self) -> dict[int, int]:
        """Bytes on each device that holds a part."""
        held: Counter[int] = Counter()
        for use, count in Counter(use for _, use in self.rows).items():
            for device, nbytes in self.layouts[use].bytes_per_device.items():
                held[device] += nbytes * count
        return dict(sorted(held.items()))


# --------------------------------------------------------------------------- joining


def array_layout(
    name: str,
    infos: Mapping[int, wire.ArrayInfo],
    devices: Mapping[int, Device],
    notes: Mapping[int, str] | None = None,
) -> ArrayLayout:
    """One array as all its ranks see it.

    Args:
      infos: each rank's report of it.
      devices: those of the cluster.
      notes: what is to be said of ranks that have no report. Ranks whose array is gone, or differs
        from the first rank's in shape, dtype or sharding, are added.
    """
    said = {**(notes or {}), **{rank: info.note for rank, info in infos.items() if info.note}}
    # A rank that has all devices of an array (a stage of a pipeline) takes it for its own.
    shared = {(one.on, one.dtype, *one.shape) for one in infos.values() if one.spans}
    alive = {
        rank: replace(info, spans=(info.on, info.dtype, *info.shape) in shared)
        for rank, info in sorted(infos.items())
        if not info.note
    }
    first = next(iter(alive.values()), None) or next(iter(infos.values()))
    like = (first.shape, first.dtype, first.spans)
    shards: list[Shard] = []
    for rank, info in alive.items():
        if (info.shape, info.dtype, info.spans) != like:
            span = "" if info.spans == first.spans else ", across processes" * info.spans
            said[rank] = f"another array: {info.dtype}{list(info.shape)}{span}"
            continue
        if info.sharding != first.sharding and first.spans:
            said[rank] = f"another sharding: {info.sharding}"
        shards += info.shards
    facts = {**vars(first), "note": "", "ready": all(info.ready for info in alive.values())}
    facts["shards"] = tuple(shards)
    return ArrayLayout(**facts, name=name, devices=devices, notes=dict(sorted(said.items())))


def tree_layout(
    name: str,
    reports: Mapping[int, wire.ValueReport],
    devices: Mapping[int, Device],
    notes: Mapping[int, str] | None = None,
) -> TreeLayout:
    """A pytree as all its ranks see it, with the leaves of the first.

    A rank whose tree has other leaves is left out, with a note in ``notes``.
    """
    first = reports[min(reports)]
    same = {rank: r for rank, r in sorted(reports.items()) if r.leaves == first.leaves}
    others = {r: different_tree(first, reports[r]) for r in reports.keys() - same.keys()}
    known: dict[tuple[int, ...], int] = {}
    uses = zip(*(report.use for report in same.values()), strict=True)
    rows = tuple(
        (path, known.setdefault(use, len(known)))
        for path, use in zip(first.leaves, uses, strict=True)
    )
    layouts = tuple(
        array_layout(name, {r: same[r].infos[u] for r, u in zip(same, use, strict=True)}, devices)
        for use in known
    )
    said = dict(sorted({**(notes or {}), **others}.items()))
    return TreeLayout(name, first.type, rows, layouts, devices, said)


def different_tree(one: wire.ValueReport, other: wire.ValueReport) -> str:
    """The difference between two ranks' trees, in words."""
    here, there = set(one.leaves), set(other.leaves)
    words = [f"lacks {''.join(min(here - there))}"] if here - there else []
    words += [f"has {''.join(min(there - here))} more"] if there - here else []
    return "another tree: " + (" and ".join(words) or "its leaves are in another order")


def volume(index: Bounds) -> int:
    """How many elements a part has."""
    return math.prod(stop - start for start, stop in index)


# --------------------------------------------------------------------------- copies


def grouped(copies: Iterable[tuple[P, H, Any]]) -> dict[P, Groups[H]]:
    """For each part who holds it: those with equal values together, the largest group first."""
    found: dict[P, dict[Any, list[H]]] = {}
    for part, holder, value in copies:
        found.setdefault(part, {}).setdefault(value, []).append(holder)
    return {
        part: tuple(sorted((tuple(sorted(g)) for g in groups.values()), key=lambda g: (-len(g), g)))
        for part, groups in found.items()
    }


def odd_copies(reports: Mapping[int, Sequence[Sequence[Any]]]) -> dict[int, Groups[int]]:
    """The leaves of which ranks have different copies: for each the ranks whose copies are equal.

    Args:
      reports: each rank's (leaf, part, hash).
    """
    odd: dict[int, Groups[int]] = {}
    told = (((leaf, str(part)), r, it) for r, found in reports.items() for leaf, part, it in found)
    for (leaf, _), groups in grouped(told).items():
        if len(groups) > 1:
            odd.setdefault(leaf, groups)
    return odd


def tell_groups(groups: Sequence[Sequence[int]]) -> str:
    """Who has the same, and who has not."""
    if len(groups) > 2 and all(len(group) == 1 for group in groups):
        return "each has its own"
    return ", ".join(
        f"{name_ranks(group)} {'has' if len(group) == 1 else 'have'} {what}"
        for group, what in zip(groups, ["one", *["another"] * len(groups)], strict=False)
    )


@dataclass(frozen=True)
class Difference:
    """Copies of one part that are not bitwise equal: (rank, device) with equal bytes together.

    The largest group comes first; the others are what to look at.
    """

    leaf: tuple[str, ...]
    index: Bounds
    groups: Groups[tuple[int, int]]


@dataclass(frozen=True)
class CheckResult:
    """The result of comparing all copies of all parts.

    Attributes:
      bad: the shards with NaN or infinite values.
      unchecked: why ranks gave no answer.
    """

    name: str
    shards: int
    compared: int
    differences: tuple[Difference, ...]
    bad: tuple[wire.ShardCheck, ...]
    unchecked: Mapping[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not (self.differences or self.bad or self.unchecked)


def compare(
    name: str,
    checks: Mapping[int, Sequence[wire.ShardCheck]],
    unchecked: Mapping[int, str] | None = None,
) -> CheckResult:
    """Which copies of a part differ, and which shards hold NaN or infinity.

    Args:
      checks: what each rank found in its shards, with digests.
    """
    shards = [check for _, found in sorted(checks.items()) for check in found]
    parts = grouped(((one.leaf, one.index), (one.rank, one.device), one.digest) for one in shards)
    return CheckResult(
        name,
        len(shards),
        sum(sum(map(len, groups)) > 1 for groups in parts.values()),
        tuple(Difference(*part, groups) for part, groups in parts.items() if len(groups) > 1),
        tuple(one for one in shards if one.nan or one.inf),
        dict(unchecked or {}),
    )
