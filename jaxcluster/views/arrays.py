"""Layouts, meshes and memory as lines, tables and pictures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxcluster.cluster import array_queries
from jaxcluster.cluster.array_queries import Memory, Meshes
from jaxcluster.cluster.world import World
from jaxcluster.errors import NotAddressable, TransferError
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.ranks import begin_ranks, by_value, format_ranks, name_ranks, several_hosts
from jaxcluster.text import format_nbytes, plural
from jaxcluster.views import blocks
from jaxcluster.views.blocks import Block, Rank, Row, Table
from jaxcluster.views.messages import Variable
from jaxcluster.wire import ArrayInfo, Bounds, MeshInfo
from jaxcluster.wire.ops.arrays import Read

MAX_COLUMNS = 16  # of a mesh
MAX_TABLE = 32
MAX_LEAVES = 60
MAX_FOUND = 20  # lines of a check
BAR = 24  # characters
SMALL_ARRAY = 1000  # elements that numpy prints in full
EDGE = 3  # positions that it prints at each end of a longer axis


def array(layout: ArrayLayout, check: CheckResult | None = None) -> list[Block]:
    """The array's size and sharding, and who holds each part."""
    out: list[Block] = [f"{layout.name}: {leaf_type(layout)}, {headline(layout)}", *facts(layout)]
    if layout.parts:
        out.append(_parts(layout))
    return out + (checked(check) if check is not None else [])


def headline(layout: ArrayLayout) -> str:
    """How big the array is, and over what it is spread."""
    told = [format_nbytes(layout.nbytes)]
    if not layout.parts:
        told.append("held by no device")
    elif layout.spans:
        copies = layout.replication
        told += [
            f"{plural(len(layout.parts), 'part')} on "
            f"{plural(len(layout.bytes_per_device), 'device')} of "
            f"{plural(len(layout.ranks), 'process', 'processes')}",
            "nothing replicated" if copies == 1 else f"{copies:g} copies of each element",
        ]
        if layout.imbalance > 1.001:
            told.append(f"uneven: the fullest device has {layout.imbalance:.2f} times the mean")
    elif len(layout.ranks) > 1:
        told.append(f"{name_ranks(layout.ranks)}: each has its own")
    else:
        told.append(f"local to {name_ranks(layout.ranks)}")
    return " · ".join(told)


def facts(layout: ArrayLayout) -> list[str]:
    """The sharding as JAX prints it, and remarks on unusual arrays."""
    lines = [f"sharding: {layout.sharding}"] if layout.sharding else []
    if not layout.ready:
        lines.append("still being computed")
    if layout.missing:
        lines.append(f"{plural(layout.missing, 'element')} held by no process that answered")
    return lines + notes(layout)


def notes(layout: ArrayLayout | TreeLayout) -> list[str]:
    """Notes on single ranks; equal ones once."""
    told = {rank: note.removeprefix(f"rank {rank} ") for rank, note in layout.notes.items()}
    return [f"{begin_ranks(ranks)}: {note}" for note, ranks in by_value(told).items()]


def _parts(layout: ArrayLayout) -> Table:
    """Each part with who holds it; in HTML with the colour of the first rank."""
    hosts = several_hosts({d.rank: d.host for d in layout.devices.values()})
    held = {part.index: part for part in layout.parts}
    every = sorted([*held, *layout.gaps])
    rows: list[list[str | Rank]] = []
    for index in every[:MAX_TABLE]:
        who: str | Rank = "(no one)"
        nbytes = ""
        if (part := held.get(index)) is not None:
            ids = [shard.device for shard in part.shards]
            named = devices(ids, layout.devices)
            named = named if len(named) <= 40 else plural(len(ids), "device")
            who = Rank(part.ranks[0], f"{name_ranks(part.ranks, hosts)}: {named}")
            nbytes = format_nbytes(part.shards[0].nbytes)
        rows.append([_index(index), who, nbytes])
    left = len(every) - len(rows)
    more = f"... and {plural(left, 'more part')}" if left else ""
    return Table(["part", "held by", "bytes"], rows, more)


def corners(world: World, found: ArrayLayout | TreeLayout) -> tuple[np.ndarray[Any, Any], bool]:
    """Enough of what the last cell ended in to print it as numpy would.

    Returns:
      (the values, whether positions were left out). A large array's long axes keep only the first
      and last ``EDGE`` positions, and one between.

    Raises:
      NotAddressable: the ranks that were looked at do not hold all of it.
      TransferError: they have different arrays, or it is still being computed.
    """
    kinds = ("another array", "another tree")
    others = [r for r, note in found.notes.items() if note.startswith(kinds)]
    if isinstance(found, TreeLayout) or others:
        what = "value" if isinstance(found, TreeLayout) else "array"
        raise TransferError(f"The last line gave another {what} on {name_ranks(others)}.")
    if found.missing or not found.shards:  # deleted ones have none
        lack = f"lack {plural(found.missing, 'element')}" if found.ranks else "hold no part"
        reasons = [f"Rank {rank}: {why}." for rank, why in found.notes.items()]
        raise NotAddressable(
            f"The ranks that ran the cell {lack} of this array.",
            "\n".join(reasons) or "Run the cell on all ranks to see it whole.",
        )
    is_large = math.prod(found.shape) > SMALL_ARRAY
    kept = [
        [*range(EDGE), size // 2, *range(size - EDGE, size)]
        if is_large and size > 2 * EDGE + 1
        else list(range(size))
        for size in found.shape
    ]
    values: np.ndarray[Any, Any] | None = None
    holders = {part.shards[0].rank for part in found.parts}
    for where, piece in array_queries.read(world, sorted(holders), Read("", [], kept)):
        if values is None:  # keys have an axis more: that of their words
            values = np.zeros([*map(len, kept), *piece.shape[len(kept) :]], piece.dtype)
        values[np.ix_(*where)] = piece
    values = np.zeros([*map(len, kept)]) if values is None else values
    return values, any(len(at) < size for at, size in zip(kept, found.shape, strict=True))


def values(info: ArrayInfo, found: np.ndarray[Any, Any], cut: bool) -> str:
    """An array that spans processes: shape, dtype, sharding, and its values as numpy prints them.

    Args:
      found: the whole array, or its corners where ``cut`` (see ``corners``).
    """
    head = f"Array(shape={tuple(info.shape)}, dtype={info.dtype})\nsharding: {info.sharding}"
    # With a threshold of 0 numpy leaves out the middle of each axis longer than 2 x 3. Here that
    # is one position, which stands for all that were not fetched.
    body = np.array2string(found, threshold=0 if cut else found.size + 1, edgeitems=EDGE)
    return f"{head}\n{body}"


# --------------------------------------------------------------------------- words


def _index(bounds: Bounds) -> str:
    """``[0:2, 0:8]``, as it would be typed."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"


def devices(ids: Iterable[int], known: Mapping[int, Device]) -> str:
    """``CPU 0-1, 2048-2049``, as JAX's own picture calls them; platforms said once."""
    platforms = {id: known[id].platform.upper() if id in known else "device" for id in ids}
    return "; ".join(f"{name} {format_ranks(held)}" for name, held in by_value(platforms).items())


def checked(result: CheckResult) -> list[str]:
    """The findings of a check, worst first."""

    def place(leaf: Sequence[str], index: Bounds) -> str:
        return f"✖ {''.join(leaf) or result.name} {_index(index)}"

    def holders(copies: Sequence[tuple[int, int]]) -> str:
        ids = format_ranks(id for _, id in copies)
        return f"{name_ranks(r for r, _ in copies)} (device{'s' if len(copies) > 1 else ''} {ids})"

    lines = []
    for d in result.differences:
        most, *odd = map(holders, d.groups)
        differ = f"the copies differ: {'; '.join(odd)} against {most}"
        lines.append(f"{place(d.leaf, d.index)}: {differ}")
    same: dict[tuple[tuple[str, ...], Bounds, int, int], list[int]] = {}
    for b in result.bad:
        same.setdefault((b.leaf, b.index, b.nan, b.inf), []).append(b.rank)
    for (leaf, index, nan, inf), ranks in same.items():
        what = ", ".join(f"{n:,} {word}" for n, word in ((nan, "NaN"), (inf, "Inf")) if n)
        lines.append(f"{place(leaf, index)}: {what} on {name_ranks(ranks)}")
    if (hidden := len(lines) - MAX_FOUND) > 0:
        lines[MAX_FOUND:] = [f"  ... and {hidden} more"]
    lines += [f"? rank {rank} was not checked: {why}" for rank, why in result.unchecked.items()]
    if not (result.differences or result.bad):
        parts = plural(result.compared, "replicated part")
        compared = f"all copies of {parts} are bitwise equal"
        compared = compared if result.compared else "nothing is replicated"
        lines.insert(0, f"✔ {plural(result.shards, 'shard')} checked: {compared}, no NaN, no Inf")
    return lines


# --------------------------------------------------------------------------- trees


def tree(layout: TreeLayout, check: CheckResult | None = None) -> list[Block]:
    """One line a leaf, the totals above; long trees are truncated."""
    rows: list[Row] = []
    for path, use in layout.rows[:MAX_LEAVES]:
        found = layout.layouts[use]
        each = max(found.bytes_per_device.values(), default=0)
        rows.append(
            {
                "leaf": layout.name + "".join(path),
                "type": leaf_type(found),
                "sharding": leaf_spec(found),
                "bytes": format_nbytes(found.nbytes),
                "per device": format_nbytes(each) if found.parts else "",
            }
        )
    leaves = blocks.table(rows)
    if others := layout.rows[MAX_LEAVES:]:
        part = f"{layout.name}{''.join(others[0][0][:1])}"
        note = f"... and {plural(len(others), 'leaf', 'leaves')} more; %shards {part} shows a part"
        leaves = Table(leaves.head, leaves.rows, note)
    top = max(layout.bytes_per_device.values(), default=0)
    return [
        f"{layout.name}: {layout.type} of {plural(len(layout.rows), 'leaf', 'leaves')}, "
        f"{format_nbytes(layout.nbytes)}, {format_nbytes(top)} on the fullest device",
        *notes(layout),
        leaves,
        *(checked(check) if check is not None else []),
    ]


def leaf_type(layout: ArrayLayout) -> str:
    """``float32[8, 8]``, or what a leaf is that is not an array."""
    if layout.dtype:
        return f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"
    return next(iter(layout.notes.values()), "")


def leaf_spec(layout: ArrayLayout) -> str:
    """The PartitionSpec, or what there is instead."""
    if layout.spec:
        return layout.spec
    if layout.sharding:
        kind = layout.sharding.partition("(")[0]
        return kind if layout.spans else "on one device of each rank"
    return next(iter(layout.notes.values()), "") if layout.dtype else ""


# --------------------------------------------------------------------------- variables


def variables(world: World) -> list[Variable]:
    """A list's rows: the first living rank's arrays, and pytrees of arrays."""
    rows = []
    for found in array_queries.variables(world):
        is_array, first = found.type == "array", found.layouts[0]
        # That rank may hold nothing of it, as of another stage of a pipeline.
        num_parts = math.prod(dict(first.mesh)[axis] for axes in first.split for axis in axes)
        elsewhere = found.nbytes // num_parts
        rows.append(
            Variable(
                name=found.name,
                type=found.type + f" of {plural(len(found.rows), 'array')}" * (not is_array),
                shape=list(first.shape) if is_array else None,
                dtype=_some(one.dtype for one in found.layouts),
                sharding=_some(map(leaf_spec, found.layouts)),
                nbytes=found.nbytes,
                nbytes_per_device=max(found.bytes_per_device.values(), default=elsewhere),
            )
        )
    return rows


def _some(words: Iterable[str]) -> str:
    """The one word that all share, or some of them."""
    different = list(dict.fromkeys(words))
    return ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")


# --------------------------------------------------------------------------- meshes


def mesh(found: Meshes) -> list[Block]:
    """Each mesh as a grid of its devices, those of one rank marked alike."""
    out: list[Block] = []
    for info in found.found:
        sizes = zip(info.axis_names, info.axis_sizes, strict=True)
        axes = " x ".join(f"'{name}': {size}" for name, size in sizes)
        kinds = f" ({', '.join(sorted(set(info.axis_types)))})" if info.axis_types else ""
        hosts = sorted({found.devices[id].host for id in info.devices if id in found.devices})
        out += [
            f"{info.name}: {axes}{kinds}, {plural(len(info.devices), 'device')}",
            _mesh(info, found),
            f"hosts: {', '.join(hosts)}",
            "",
        ]
    return out[:-1] + _silent(found)


def _mesh(info: MeshInfo, found: Meshes) -> Table:
    """The last axis in columns."""

    def shown(id: int) -> str | Rank:
        if (known := found.devices.get(id)) is None:
            return f"device {id}"
        return Rank(known.rank, f"rank {known.rank} {devices([id], found.devices)}")

    *others, columns = info.axis_sizes or [1]
    wide = min(columns, MAX_COLUMNS)
    rows = [
        [",".join(map(str, place)), *map(shown, info.devices[number * columns :][:wide])]
        for number, place in enumerate(itertools.product(*map(range, others)))
        if number < MAX_TABLE
    ]
    left = len(info.devices) - len(rows) * wide
    *names, last = info.axis_names or [""]
    head = [", ".join(names), *(f"{last} {at}" for at in range(wide))]
    return Table(head, rows, f"... and {plural(left, 'device')} more" if left > 0 else "")


# --------------------------------------------------------------------------- memory


def memory(found: Memory) -> list[Block]:
    """A bar for each device, and the variables that hold most."""
    hosts = several_hosts({device.rank: device.host for device in found.devices.values()})
    bars: list[tuple[int, int, int, int, int | None]] = []  # of a device: named, total, limit
    variables: dict[str, dict[int, int]] = {}  # each one's bytes on the devices of each rank
    for rank, report in found.found.items():
        for name, nbytes in report.names.items():
            variables.setdefault(name, {})[rank] = sum(nbytes)
        for i, id in enumerate(report.devices):
            named = sum(nbytes[i] for nbytes in report.names.values())
            # The allocator knows more than the live arrays, where the platform tells it.
            total = max(named + report.other[i], report.in_use[i] or 0)
            bars.append((rank, id, named, total, report.limit[i]))
    full = max((limit or total for *_, total, limit in bars), default=0) or 1
    rows: list[Row] = []
    for rank, id, named, total, limit in bars:
        filled, split = (round(BAR * nbytes / (limit or full)) for nbytes in (total, named))
        rows.append(
            {
                "rank": Rank(rank, str(rank)),
                "host": hosts.get(rank),
                "device": devices([id], found.devices),
                "█ named ▒ other": "█" * split + "▒" * (filled - split) + "·" * (BAR - filled),
                "named": format_nbytes(named),
                "other": format_nbytes(total - named),
                "free": format_nbytes(limit - total) if limit else None,  # CPU devices have none
            }
        )
    names: list[Row] = [
        {
            "variable": name,
            "bytes on all devices": format_nbytes(sum(held.values())),
            "ranks": format_ranks(held),
        }
        for name, held in sorted(variables.items(), key=lambda one: -sum(one[1].values()))
    ]
    out: list[Block] = [blocks.table(rows, MAX_TABLE, "devices")] if rows else []
    out += ["", blocks.table(names, MAX_TABLE, "variables")] if names else []
    return out + _silent(found)


def _silent(found: Meshes | Memory) -> list[str]:
    return [f"Rank {rank}: {word}" for rank, word in found.reasons.items()]
