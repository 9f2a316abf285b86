"""Layouts, meshes and memory as lines, tables and pictures."""

from __future__ import annotations

import itertools
import math

from jaxcluster.cluster.array_queries import Memory, Meshes
from jaxcluster.model.layout import ArrayLayout, CheckResult, Part, TreeLayout
from jaxcluster.ranks import format_ranks, name_ranks, several_hosts
from jaxcluster.text import format_nbytes, plural
from jaxcluster.views import blocks, formatting
from jaxcluster.views.blocks import Block, Rank, Row, Table
from jaxcluster.wire import MeshInfo, Shard

MAX_ROWS = 12  # of a picture
MAX_COLUMNS = 8
MAX_TABLE = 32
MAX_LEAVES = 60
BAR = 24  # characters


def array(layout: ArrayLayout, check: CheckResult | None = None) -> list[Block]:
    """The array cut into its parts, and a table of who holds how much."""
    kind = formatting.array_type(layout.dtype, layout.shape)
    out: list[Block] = [f"{layout.name}: {kind}, {formatting.headline(layout)}"]
    out += formatting.facts(layout)
    if layout.parts:
        out += [*_picture(layout), "", _holders(layout)]
    return out + (formatting.check(check) if check is not None else [])


def _picture(layout: ArrayLayout) -> list[Block]:
    """The parts as a table; nothing if they form no grid, or are cut on more than two axes."""
    held = {part.index: part for part in layout.parts}
    every = [*held, *layout.gaps]
    cut = [sorted({index[axis] for index in every}) for axis in range(len(layout.shape))]
    most = sorted(range(len(cut)), key=lambda axis: (-len(cut[axis]), -axis))
    axes = sorted(most[:2])  # the later one as columns
    if not axes or len(every) != math.prod(len(cut[axis]) for axis in axes):
        return []
    panel = {tuple(index[axis] for axis in axes): held.get(index) for index in every}
    *across, columns = (cut[axis] for axis in axes)
    shown = columns[:MAX_COLUMNS]
    rows: list[Row] = [
        ["".join(map(_span, row)), *(_holder(layout, panel[(*row, at)]) for at in shown)]
        for row in itertools.islice(itertools.product(*across), MAX_ROWS)
    ]
    more = len(every) - len(rows) * len(shown)
    note = f"... and {plural(more, 'part')} more" if more else ""
    return [Table(["", *map(_span, shown)], rows, note)]


def _span(span: tuple[int, int]) -> str:
    return f"{span[0]}:{span[1]}"


def _holder(layout: ArrayLayout, part: Part | None) -> str | Rank:
    if part is None:
        return "(no one)"
    ids = [shard.device for shard in part.shards]
    held = formatting.devices(ids, layout.devices)
    held = held if len(held) <= 24 else plural(len(ids), "device")
    return Rank(part.ranks[0], f"{name_ranks(part.ranks)}: {held}")


def _holders(layout: ArrayLayout) -> Table:
    by_rank: dict[int, list[Shard]] = {}
    for shard in layout.shards:
        by_rank.setdefault(shard.rank, []).append(shard)
    rows: list[Row] = []
    for rank, own in sorted(by_rank.items()):
        ids = sorted({shard.device for shard in own})
        places = sorted({shard.index for shard in own})
        holds = ", ".join(formatting.index(place) for place in places[:2])
        holds += f" and {len(places) - 2} more" if len(places) > 2 else ""
        host = layout.devices[ids[0]].host if ids[0] in layout.devices else ""
        nbytes = format_nbytes(sum(shard.nbytes for shard in own))
        held = formatting.devices(ids, layout.devices)
        rows.append([Rank(rank, str(rank)), host, held, holds or "[]", nbytes])
    head = ["rank", "host", "devices", "holds", "bytes"]
    return blocks.table(head, rows, MAX_TABLE, "ranks")


# --------------------------------------------------------------------------- trees


def tree(layout: TreeLayout, check: CheckResult | None = None) -> list[Block]:
    """One line a leaf, the totals above; long trees are truncated."""
    top = max(layout.bytes_per_device.values(), default=0)
    rows = []
    for path, use in layout.rows[:MAX_LEAVES]:
        found = layout.layouts[use]
        each = max(found.bytes_per_device.values(), default=0)
        rows.append(
            [
                layout.name + "".join(path),
                leaf_type(found),
                leaf_spec(found),
                format_nbytes(found.nbytes),
                format_nbytes(each) if found.parts else "",
            ]
        )
    note = ""
    if others := layout.rows[MAX_LEAVES:]:
        part = f"{layout.name}{''.join(others[0][0][:1])}"
        note = f"... and {plural(len(others), 'leaf', 'leaves')} more; %shards {part} shows a part"
    return [
        f"{layout.name}: {layout.type} of {plural(len(layout.rows), 'leaf', 'leaves')}, "
        f"{format_nbytes(layout.nbytes)}, {format_nbytes(top)} on the fullest device",
        *formatting.notes(layout),
        Table(["leaf", "type", "sharding", "bytes", "per device"], rows, note),
        *(formatting.check(check) if check is not None else []),
    ]


def leaf_type(layout: ArrayLayout) -> str:
    """``float32[8, 8]``, or what a leaf is that is not an array."""
    if layout.dtype:
        return formatting.array_type(layout.dtype, layout.shape)
    return next(iter(layout.notes.values()), "")


def leaf_spec(layout: ArrayLayout) -> str:
    """The PartitionSpec, or what there is instead."""
    if layout.spec:
        return layout.spec
    if layout.kind:
        return "on one device of each rank" if not layout.spans else layout.kind
    return next(iter(layout.notes.values()), "") if layout.dtype else ""


# --------------------------------------------------------------------------- meshes


def mesh(found: Meshes) -> list[Block]:
    """Each mesh as a grid of its devices, those of one rank marked alike."""
    out: list[Block] = []
    for info in found.meshes:
        out += [_headline(info), _mesh(info, found)]
        hosts = sorted({found.devices[id].host for id in info.devices if id in found.devices})
        out += [f"hosts: {', '.join(hosts)}", ""]
    return out[:-1] + _silent(found)


def _headline(info: MeshInfo) -> str:
    """``mesh: 'data': 4 x 'model': 2, 8 devices``."""
    axes = " x ".join(
        f"'{name}': {size}" for name, size in zip(info.axis_names, info.axis_sizes, strict=True)
    )
    kinds = f" ({', '.join(sorted(set(info.axis_types)))})" if info.axis_types else ""
    return f"{info.name}: {axes}{kinds}, {plural(len(info.devices), 'device')}"


def _mesh(info: MeshInfo, found: Meshes) -> Table:
    """The last axis in columns."""
    *others, columns = info.axis_sizes or [1]
    shown = min(columns, 2 * MAX_COLUMNS)
    rows: list[Row] = []
    for number, place in enumerate(itertools.product(*map(range, others))):
        if number < MAX_TABLE:
            ids = info.devices[number * columns :][:shown]
            rows.append([",".join(map(str, place)), *(_device(found, id) for id in ids)])
    left = len(info.devices) - len(rows) * shown
    *names, last = info.axis_names or [""]
    head = [", ".join(names), *(f"{last} {at}" for at in range(shown))]
    return Table(head, rows, f"... and {plural(left, 'device')} more" if left > 0 else "")


def _device(found: Meshes, id: int) -> str | Rank:
    device = found.devices.get(id)
    if device is None:
        return f"device {id}"
    return Rank(device.rank, f"rank {device.rank} {formatting.device(device, id)}")


# --------------------------------------------------------------------------- memory


def memory(found: Memory) -> list[Block]:
    """A bar for each device, and the variables that hold most."""
    hosts = several_hosts({device.rank: device.host for device in found.devices.values()})
    bars = _bars(found)
    full = max((limit or total for *_, total, limit in bars), default=0)
    has_limits = any(limit for *_, limit in bars)  # CPU devices have none
    rows: list[Row] = []
    for rank, device, named, total, limit in bars:
        top = limit or full or 1
        filled, split = round(BAR * total / top), round(BAR * named / top)
        rows.append(
            [
                Rank(rank, str(rank)),
                *([hosts[rank]] if hosts else []),
                formatting.device(found.devices.get(device), device),
                "█" * split + "▒" * (filled - split) + "·" * (BAR - filled),
                format_nbytes(named),
                format_nbytes(total - named),
                *([format_nbytes(limit - total) if limit else ""] if has_limits else []),
            ]
        )
    head = ["rank", *["host"] * bool(hosts), "device", "█ named ▒ other", "named", "other"]
    head += ["free"] * has_limits
    out: list[Block] = [blocks.table(head, rows, MAX_TABLE, "devices")]
    if names := _variables(found):
        told = [[name, format_nbytes(total), format_ranks(ranks)] for name, total, ranks in names]
        columns = ["variable", "bytes on all devices", "ranks"]
        out += ["", blocks.table(columns, told, MAX_TABLE, "variables")]
    return out + _silent(found)


def _silent(found: Meshes | Memory) -> list[str]:
    return [f"Rank {rank}: {word}" for rank, word in found.reasons.items()]


def _bars(found: Memory) -> list[tuple[int, int, int, int, int | None]]:
    """(rank, device, bytes of variables, bytes in all, limit) of each device.

    In all is what the allocator says where the platform tells it, else what live arrays hold.
    """
    bars = []
    for rank, report in found.reports.items():
        for i, device in enumerate(report.devices):
            named = sum(entry.nbytes[i] for entry in report.names)
            held = named + report.other[i]
            bars.append((rank, device, named, max(held, report.in_use[i] or 0), report.limit[i]))
    return bars


def _variables(found: Memory) -> list[tuple[str, int, list[int]]]:
    """(name, bytes on all devices, ranks) of each variable, the largest first."""
    total: dict[str, int] = {}
    ranks: dict[str, list[int]] = {}
    for rank, report in found.reports.items():
        for entry in report.names:
            total[entry.name] = total.get(entry.name, 0) + sum(entry.nbytes)
            ranks.setdefault(entry.name, []).append(rank)
    return [(name, total[name], ranks[name]) for name in sorted(total, key=lambda n: -total[n])]
