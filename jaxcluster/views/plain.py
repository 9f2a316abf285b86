"""Layouts as plain text: for terminals, logs, and notebooks that show nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from jaxcluster.cluster.array_queries import Memory, Meshes
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, Part, Shard, TreeLayout
from jaxcluster.ranks import format_ranks, name_ranks, several_hosts
from jaxcluster.text import format_nbytes, format_table, plural
from jaxcluster.views import formatting, palette, picture
from jaxcluster.wire import MeshInfo

MAX_ROWS = 12  # of a picture
MAX_COLUMNS = 8
MAX_TABLE = 32
MAX_LEAVES = 60
BAR = 24  # characters

Paint = Callable[[int, str], str]


def no_paint(rank: int, text: str) -> str:
    return text


def array(layout: ArrayLayout, check: CheckResult | None = None, color: bool = False) -> str:
    """The array cut into its parts, and a table of who holds how much."""
    paint = palette.ansi if color else no_paint
    kind = formatting.array_type(layout.dtype, layout.shape)
    lines = [f"{layout.name}: {kind}, {formatting.headline(layout)}", *formatting.facts(layout)]
    if layout.parts:
        lines += _pictures(layout, paint)
        lines.append(_holders(layout))
    if check is not None:
        lines += formatting.check(check)
    return "\n".join(lines)


# --------------------------------------------------------------------------- picture


def _pictures(layout: ArrayLayout, paint: Paint) -> list[str]:
    drawn = picture.lay_out(layout, limit=3)
    lines = []
    for panel in drawn.panels:
        if panel.fixed:
            where = ["·"] * len(layout.shape)
            for axis, start, stop in panel.fixed:
                where[axis] = f"{start}:{stop}"
            for whole in (drawn.row_axis, drawn.column_axis):
                if whole is not None:
                    where[whole] = ":"
            lines.append(f"[{', '.join(where)}]")
        lines += _grid(layout, panel.tiles, paint)
    if drawn.folded:
        lines.append(f"... and {plural(drawn.folded, 'such panel')} more")
    return lines


def _grid(layout: ArrayLayout, tiles: Sequence[picture.Tile], paint: Paint) -> list[str]:
    rows = sorted({tile.rows for tile in tiles})
    columns = sorted({tile.columns for tile in tiles})
    at = {(tile.rows, tile.columns): tile.part for tile in tiles}
    pairs = [pair for spans in (rows, columns) for pair in itertools.pairwise(spans)]
    overlapping = any(a[1] > b[0] for a, b in pairs)
    if overlapping or len(at) < len(tiles):
        return []  # parts that form no grid: the table has them all
    shown_rows, shown_columns = rows[:MAX_ROWS], columns[:MAX_COLUMNS]
    labels = {
        (r, c): _label(layout, at[r, c]) if (r, c) in at else ["(no one)"]
        for r in shown_rows
        for c in shown_columns
    }
    width = max(len(line) for label in labels.values() for line in label) + 2
    edge = [f"{start}:{stop}" for start, stop in shown_rows] if len(layout.shape) > 1 else [""]
    margin = max(map(len, edge)) + 1 if edge != [""] else 0
    pad = " " * margin
    across = len(shown_columns)
    heads = [f"{start}:{stop}".center(width) for start, stop in shown_columns]
    lines = [(pad + " " + " ".join(heads)).rstrip()] if layout.shape else []
    lines.append(pad + "┌" + "┬".join(["─" * width] * across) + "┐")
    for number, row in enumerate(shown_rows):
        if number:
            lines.append(pad + "├" + "┼".join(["─" * width] * across) + "┤")
        cells = [labels[row, column] for column in shown_columns]
        for line in range(max(map(len, cells))):
            texts = []
            for column, cell in zip(shown_columns, cells, strict=True):
                text = (cell[line] if line < len(cell) else "").center(width)
                part = at.get((row, column))
                texts.append(paint(part.shards[0].rank, text) if part and part.shards else text)
            head = (edge[number] if line == 0 and margin else "").rjust(max(0, margin - 1))
            lines.append(head + (" " if margin else "") + "│" + "│".join(texts) + "│")
    lines.append(pad + "└" + "┴".join(["─" * width] * across) + "┘")
    hidden = len(rows) * len(columns) - len(shown_rows) * across
    if hidden:
        lines.append(f"{pad}... and {plural(hidden, 'part')} more")
    return lines


def _label(layout: ArrayLayout, part: Part) -> list[str]:
    if not part.shards:
        return ["(no one)"]
    ids = [shard.device for shard in part.shards]
    held = formatting.devices(ids, layout.devices)
    first = f"{palette.glyph(part.ranks[0])} {name_ranks(part.ranks)}"
    if len(held) > 24:
        held = plural(len(ids), "device")
    return [first, held]


def _holders(layout: ArrayLayout) -> str:
    by_rank: dict[int, list[Shard]] = {}
    for shard in layout.shards:
        by_rank.setdefault(shard.rank, []).append(shard)
    rows = []
    for rank, own in sorted(by_rank.items())[:MAX_TABLE]:
        ids = sorted({shard.device for shard in own})
        places = sorted({shard.index for shard in own})
        holds = ", ".join(formatting.index(place) for place in places[:2])
        holds += f" and {len(places) - 2} more" if len(places) > 2 else ""
        host = layout.devices[ids[0]].host if ids[0] in layout.devices else ""
        rows.append(
            [
                f"{palette.glyph(rank)} {rank}",
                host,
                formatting.devices(ids, layout.devices),
                holds or "[]",
                format_nbytes(sum(shard.nbytes for shard in own)),
            ]
        )
    more = len(by_rank) - len(rows)
    shown = "\n".join(format_table([["rank", "host", "devices", "holds", "bytes"], *rows]))
    return f"{shown}\n... and {more} more ranks" if more else shown


# --------------------------------------------------------------------------- trees


def tree(layout: TreeLayout, check: CheckResult | None = None) -> str:
    """One line a leaf, the totals above; long trees are truncated."""
    held = layout.bytes_per_device
    top = max(held.values(), default=0)
    lines = [
        f"{layout.name}: {layout.type} of {plural(layout.leaves, 'leaf', 'leaves')}, "
        f"{format_nbytes(layout.nbytes)}, {format_nbytes(top)} on the fullest device",
        *formatting.notes(layout),
    ]
    lines += format_table([LEAVES, *leaf_rows(layout, MAX_LEAVES, layout.name)])
    if len(layout.rows) > MAX_LEAVES:
        more = sum(row.count for row in layout.rows[MAX_LEAVES:])
        lines.append(
            f"... and {plural(more, 'leaf', 'leaves')} more; "
            f"%shards {layout.name}{''.join(layout.rows[MAX_LEAVES].path[:1])} shows a part"
        )
    if check is not None:
        lines += formatting.check(check)
    return "\n".join(lines)


LEAVES = ("leaf", "type", "sharding", "bytes", "per device")


def leaf_rows(layout: TreeLayout, most: int, name: str = "") -> list[list[str]]:
    """The columns ``LEAVES`` of the first leaves.

    Args:
      name: stands before their paths.
    """
    rows = []
    for row in layout.rows[:most]:
        found = layout.layouts[row.use]
        times = f" x {row.count:,}" if row.count > 1 else ""
        per_device = max(found.bytes_per_device.values(), default=0) * row.count
        rows.append(
            [
                name + "".join(row.path) + times,
                leaf_type(found),
                leaf_spec(found),
                format_nbytes(found.nbytes * row.count),
                format_nbytes(per_device) if found.parts else "",
            ]
        )
    return rows


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


def mesh(found: Meshes) -> str:
    """Each mesh as a grid of its devices, those of one rank marked alike."""
    return "\n\n".join(_mesh(info, found) for info in found.meshes)


def mesh_headline(info: MeshInfo) -> str:
    """``mesh: 'data': 4 x 'model': 2, 8 devices``."""
    axes = " x ".join(
        f"'{name}': {size}" for name, size in zip(info.axis_names, info.axis_sizes, strict=True)
    )
    kinds = f" ({', '.join(sorted(set(info.axis_types)))})" if info.axis_types else ""
    return f"{info.name}: {axes}{kinds}, {plural(len(info.devices), 'device')}"


def _mesh(info: MeshInfo, found: Meshes) -> str:
    lines = [mesh_headline(info)]
    sizes = info.axis_sizes
    columns = sizes[-1] if sizes else 1
    cells = [_mesh_cell(found.devices.get(id), id) for id in info.devices]
    width = max(map(len, cells), default=0)
    names = info.axis_names
    if len(sizes) > 1:
        lines.append(f"rows: {', '.join(map(repr, names[:-1]))}; columns: {names[-1]!r}")
    for number in range(0, len(cells), columns):
        if number // columns >= MAX_TABLE:
            lines.append(f"... and {plural(len(cells) - number, 'device')} more")
            break
        row = cells[number : number + columns]
        cut = " ..." if len(row) > 2 * MAX_COLUMNS else ""
        at = place(number, sizes) if len(sizes) > 1 else ""
        shown = "  ".join(cell.ljust(width) for cell in row[: 2 * MAX_COLUMNS])
        lines.append(f"{at:<{2 * len(sizes)}}  {shown}{cut}".rstrip())
    hosts = sorted({found.devices[id].host for id in info.devices if id in found.devices})
    lines.append(f"hosts: {', '.join(hosts)}")
    return "\n".join(lines)


def _mesh_cell(device: Device | None, id: int) -> str:
    if device is None:
        return f"device {id}"
    return f"{palette.glyph(device.rank)} rank {device.rank} {formatting.device(device, id)}"


def place(number: int, sizes: Sequence[int]) -> str:
    """The indices of all axes but the last at a flat position."""
    at = []
    number //= sizes[-1]
    for size in reversed(sizes[:-1]):
        at.append(str(number % size))
        number //= size
    return ",".join(reversed(at))


# --------------------------------------------------------------------------- memory


def memory(found: Memory) -> str:
    """A bar for each device, and the variables that hold most."""
    lines = []
    rows = []
    hosts = memory_hosts(found)
    bars = device_bars(found)
    full = max((limit or total for *_, total, limit in bars), default=0)
    has_limits = any(limit for *_, limit in bars)  # CPU devices have none
    for rank, device, named, total, limit in bars:
        top = limit or full or 1
        filled = round(BAR * total / top)
        split = round(BAR * named / top)
        bar = "█" * split + "▒" * (filled - split) + "·" * (BAR - filled)
        free = [format_nbytes(limit - total) if limit else ""] if has_limits else []
        label = formatting.device(found.devices.get(device), device)
        where = [hosts[rank]] if hosts else []
        rows.append(
            [f"{palette.glyph(rank)} {rank}", *where, label, bar, format_nbytes(named),
             format_nbytes(total - named), *free]
        )  # fmt: skip
    where = ["host"] if hosts else []
    header = ["rank", *where, "device", "█ named ▒ other", "named", "other"]
    header += ["free"] if has_limits else []
    lines += format_table([header, *rows])
    if named_rows := told_variables(found, MAX_TABLE):
        lines += ["", *format_table([VARIABLES, *named_rows])]
    if len(found.names) > MAX_TABLE:
        lines.append(f"... and {len(found.names) - MAX_TABLE} more variables")
    lines += [f"Rank {rank}: {word}" for rank, word in found.reasons.items()]
    return "\n".join(lines)


def memory_hosts(found: Memory) -> dict[int, str]:
    """The ranks' hosts, where there are several."""
    devices = [found.devices[d] for r in found.reports.values() for d in r.devices
               if d in found.devices]  # fmt: skip
    hosts = several_hosts({device.rank: device.host for device in devices})
    return {rank: hosts.get(rank, "") for rank in found.reports} if hosts else {}


def device_bars(found: Memory) -> list[tuple[int, int, int, int, int | None]]:
    """(rank, device, bytes of variables, bytes in all, limit) of each device.

    In all is what the allocator says where the platform tells it, else what live arrays hold.
    """
    bars = []
    for rank, report in found.reports.items():
        for i, device in enumerate(report.devices):
            named = sum(entry.nbytes[i] for entry in report.names)
            held = named + report.other[i]
            in_use = report.in_use[i]
            bars.append((rank, device, named, max(held, in_use or 0), report.limit[i]))
    return bars


VARIABLES = ("variable", "bytes on all devices", "ranks")


def told_variables(found: Memory, most: int) -> list[list[str]]:
    """The columns ``VARIABLES`` of the largest ones."""
    return [
        [name, format_nbytes(total), format_ranks(ranks)]
        for name, total, ranks in variable_rows(found)[:most]
    ]


def variable_rows(found: Memory) -> list[tuple[str, int, list[int]]]:
    """(name, bytes on all devices, ranks) of each variable, the largest first."""
    total: dict[str, int] = {}
    ranks: dict[str, list[int]] = {}
    for rank, report in found.reports.items():
        for entry in report.names:
            total[entry.name] = total.get(entry.name, 0) + sum(entry.nbytes)
            ranks.setdefault(entry.name, []).append(rank)
    return [(name, total[name], ranks[name]) for name in sorted(total, key=lambda n: -total[n])]
