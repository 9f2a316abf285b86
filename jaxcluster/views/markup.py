"""Layouts as HTML that survives: untrusted notebooks, nbconvert and GitHub's sanitizer.

Those strip styles, scripts and inline SVG, so a picture is an ``<img>`` of a data URI, and colour
is a ``bgcolor``. Every picture has a text that says the same, and a table beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from jaxcluster.cluster.array_queries import Memory, Meshes
from jaxcluster.cluster.resources import Sample
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.ranks import format_ranks, name_ranks
from jaxcluster.text import format_nbytes, plural
from jaxcluster.views import formatting, palette, picture, plain
from jaxcluster.wire import Death, RankState

WIDTH = 560
MAX_TILES = 600  # of one picture
MAX_ROWS = 64
MAX_LEAVES = 200
FONT = "font-family='system-ui,sans-serif'"


def array(layout: ArrayLayout, check: CheckResult | None = None) -> str:
    """A picture of the array cut into its parts, and a table of the devices."""
    kind = formatting.array_type(layout.dtype, layout.shape)
    out = [f"<p><b>{escape(layout.name)}</b>: <code>{escape(kind)}</code>, "
           f"{escape(formatting.headline(layout))}</p>"]  # fmt: skip
    out += _lines(formatting.facts(layout))
    odd = _odd_parts(check)
    drawn = picture.lay_out(layout)
    for panel in drawn.panels if layout.parts else ():
        if panel.fixed:
            where = ", ".join(f"axis {axis} at {a}:{b}" for axis, a, b in panel.fixed)
            out.append(f"<p>{where}</p>")
        svg = array_svg(layout, drawn, panel, odd)
        out.append(image(svg, f"{layout.name} cut into {len(panel.tiles)} parts; see the table"))
    if drawn.folded:
        out.append(f"<p>... and {plural(drawn.folded, 'such panel')} more</p>")
    if layout.parts:
        out.append(_devices(layout))
    if check is not None:
        out += _lines(formatting.check(check))
    return "\n".join(out)


def _lines(lines: Iterable[str]) -> list[str]:
    text = "<br>\n".join(escape(line) for line in lines)
    return [f"<p><small>{text}</small></p>"] if text else []


def image(svg: str, alt: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'


def html_table(head: Sequence[str], rows: Iterable[Iterable[str]], more: str = "") -> str:
    """Cells are HTML already."""
    out = ["<table><thead><tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr></thead><tbody>"]
    out += ["<tr>" + "".join(cells) + "</tr>" for cells in rows]
    out.append("</tbody></table>")
    return "\n".join(out) + (f"\n<p>{escape(more)}</p>" if more else "")


def td(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def text_table(head: Sequence[str], rows: Iterable[Iterable[str]], more: str = "") -> str:
    """Cells are text."""
    return html_table(head, (map(td, row) for row in rows), more)


def _rank_cells(rank: int) -> list[str]:
    """A swatch of the rank's colour and its glyph and number in plain ink."""
    return [
        f'<td bgcolor="{palette.color(rank)}">&nbsp;</td>',
        td(f"{palette.glyph(rank)} {rank}"),
    ]


def _devices(layout: ArrayLayout) -> str:
    held = layout.bytes_per_device
    replicas: dict[int, list[str]] = {}
    for shard in layout.shards:
        copy = f" copy {shard.replica_id}" if shard.replica_id else ""
        replicas.setdefault(shard.device, []).append(formatting.index(shard.index) + copy)
    ranks = {shard.device: shard.rank for shard in layout.shards}
    rows = []
    for id in sorted(held, key=lambda d: (ranks[d], d))[:MAX_ROWS]:
        found = layout.devices.get(id)
        rows.append(
            [
                *_rank_cells(ranks[id]),
                td(formatting.device(found, id)),
                td(_where(found)),
                td("; ".join(replicas[id][:4])),
                td(format_nbytes(held[id])),
            ]
        )
    more = len(held) - MAX_ROWS
    return html_table(
        ["", "rank", "device", "host", "holds", "bytes"],
        rows,
        f"... and {more} more devices" if more > 0 else "",
    )


def _where(found: Device | None) -> str:
    if found is None:
        return ""
    at = f" {found.coords}" if found.coords else ""
    return f"{found.host}{at}"


# --------------------------------------------------------------------------- SVG


def array_svg(
    layout: ArrayLayout,
    drawn: picture.Picture,
    panel: picture.Panel,
    odd: frozenset[object] = frozenset(),
) -> str:
    """One panel as SVG on its own white ground, so that it reads on every theme."""
    width, height = WIDTH, _height(drawn)
    left, top = (54, 20) if layout.shape else (4, 4)
    out = [open_svg(width + left + 6, height + top + 6)]
    shown = panel.tiles[:MAX_TILES]
    for tile in shown:
        x0, x1 = (left + width * at / max(1, drawn.columns) for at in tile.columns)
        y0, y1 = (top + height * at / max(1, drawn.rows) for at in tile.rows)
        out += _tile(layout, tile, (x0, y0, x1, y1), tile.part.index in odd)
    out += _axes(layout, drawn, panel, left, top, width, height)
    if len(panel.tiles) > len(shown):
        note = f"{len(panel.tiles) - len(shown)} more parts not drawn"
        out.append(svg_text(left, height + top + 4, note, 10))
    return "".join([*out, "</svg>"])


def open_svg(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" {FONT}>'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    )


def _height(drawn: picture.Picture) -> float:
    rows = len({tile.rows for panel in drawn.panels for tile in panel.tiles})
    natural = WIDTH * drawn.rows / max(1, drawn.columns)
    return max(30.0 * min(rows, 12), min(natural, 0.7 * WIDTH), 40.0)


def _tile(
    layout: ArrayLayout,
    tile: picture.Tile,
    box: tuple[float, float, float, float],
    odd: bool,
) -> list[str]:
    """A part: a stripe for each rank that holds it, and who they are."""
    x0, y0, x1, y1 = box
    ranks = tile.part.ranks
    if not ranks:
        return [
            _rect(x0 + 1, y0 + 1, x1 - x0 - 2, y1 - y0 - 2, "none",
                  ' stroke="#555555" stroke-dasharray="4 3"'),
            svg_text(x0 + 6, y0 + 14, "no one", 11),
        ]  # fmt: skip
    shown = ranks[:8]
    stripe = (x1 - x0) / len(shown)
    title = f"{formatting.index(tile.part.index)}: {name_ranks(ranks)}"
    out = [f"<g><title>{escape(title)}</title>"]
    for number, rank in enumerate(shown):
        out.append(_rect(x0 + number * stripe, y0, stripe, y1 - y0, palette.color(rank)))
        if stripe > 24 and y1 - y0 > 14:
            paper = palette.ink(palette.color(rank))
            label = f"{palette.glyph(rank)} {rank}"
            out.append(svg_text(x0 + number * stripe + 4, y0 + 13, label, 11, paper))
            ids = sorted(shard.device for shard in tile.part.shards if shard.rank == rank)
            held = formatting.devices(ids, layout.devices)
            if stripe > 6.2 * len(held) and y1 - y0 > 28:
                out.append(svg_text(x0 + number * stripe + 4, y0 + 26, held, 10, paper))
    frame = palette.ALARM if odd else "#ffffff"
    line = f' stroke="{frame}" stroke-width="{4 if odd else 1.5}"'
    out.append(f"{_rect(x0, y0, x1 - x0, y1 - y0, 'none', line)}</g>")
    if len(ranks) > len(shown) and x1 - x0 > 60:
        out.append(svg_text(x1 - 44, y1 - 5, f"+{len(ranks) - len(shown)} ranks", 10))
    return out


def _rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}"{more}/>'


def svg_text(x: float, y: float, text: str, size: int, fill: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}">{escape(text)}</text>'


def _axes(
    layout: ArrayLayout,
    drawn: picture.Picture,
    panel: picture.Panel,
    left: float,
    top: float,
    width: float,
    height: float,
) -> list[str]:
    """Where the cuts are, as many as there is room for, and which mesh axes make them."""
    out = []
    if drawn.column_axis is not None:
        marks = sorted({at for tile in panel.tiles for at in tile.columns})
        for at in _thin(marks, 12):
            out.append(
                svg_text(left + width * at / max(1, drawn.columns) - 6, top - 4, str(at), 10)
            )
    if drawn.row_axis is not None:
        marks = sorted({at for tile in panel.tiles for at in tile.rows})
        for at in _thin(marks, max(2, int(height / 14))):
            out.append(svg_text(2, top + height * at / max(1, drawn.rows) + 3, str(at), 10))
    return out


def _thin(marks: Sequence[int], limit: int) -> Sequence[int]:
    return marks if len(marks) <= limit else [*marks[:: -(-len(marks) // limit)], marks[-1]]


# --------------------------------------------------------------------------- the others


def tree(layout: TreeLayout, check: CheckResult | None = None) -> str:
    """The leaves as a table, the totals above."""
    top = max(layout.bytes_per_device.values(), default=0)
    out = [
        f"<p><b>{escape(layout.name)}</b>: {escape(layout.type)} of "
        f"{plural(layout.leaves, 'leaf', 'leaves')}, "
        f"{format_nbytes(layout.nbytes)}, {format_nbytes(top)} on the fullest device</p>",
        *_lines(formatting.notes(layout)),
    ]
    more = sum(row.count for row in layout.rows[MAX_LEAVES:])
    note = f"... and {plural(more, 'leaf', 'leaves')} more" if more else ""
    out.append(text_table(plain.LEAVES, plain.leaf_rows(layout, MAX_LEAVES), note))
    if check is not None:
        out += _lines(formatting.check(check))
    return "\n".join(out)


def mesh(found: Meshes) -> str:
    """Each mesh as a table of its devices, coloured by rank."""
    out = []
    for info in found.meshes:
        out.append(f"<p><b>{escape(plain.mesh_headline(info))}</b></p>")
        columns = info.axis_sizes[-1] if info.axis_sizes else 1
        cell, gap = (max(64.0, min(140.0, WIDTH / max(1, columns))), 34.0)
        rows = -(-len(info.devices) // columns)
        shown = min(rows, MAX_ROWS)
        svg = [open_svg(cell * columns + 60, gap * shown + 26)]
        if info.axis_names:
            svg.append(svg_text(58, 13, f"{info.axis_names[-1]} →", 11))
        if len(info.axis_names) > 1:
            svg.append(svg_text(2, 13, f"{','.join(info.axis_names[:-1])} ↓", 11))
        for number, id in enumerate(info.devices[: shown * columns]):
            device = found.devices.get(id)
            rank = device.rank if device else 0
            x, y = 56 + cell * (number % columns), 20 + gap * (number // columns)
            fill = palette.color(rank)
            svg.append(_rect(x, y, cell - 3, gap - 3, fill))
            paper = palette.ink(fill)
            svg.append(svg_text(x + 4, y + 13, f"{palette.glyph(rank)} {rank}", 11, paper))
            svg.append(svg_text(x + 4, y + 26, formatting.device(device, id), 10, paper))
            if number % columns == 0 and len(info.axis_sizes) > 1:
                svg.append(svg_text(4, y + 18, plain.place(number, info.axis_sizes), 10))
        out.append(image("".join([*svg, "</svg>"]), plain.mesh_headline(info)))
        if rows > shown:
            out.append(f"<p>... and {len(info.devices) - shown * columns} more devices</p>")
    hosts: dict[str, list[int]] = {}
    for found_device in found.devices.values():
        hosts.setdefault(found_device.host, []).append(found_device.rank)
    table = [[host, format_ranks(ranks)] for host, ranks in hosts.items()]
    out.append(text_table(["host", "ranks"], table[:MAX_ROWS]))
    return "\n".join(out + _lines(f"Rank {r}: {w}" for r, w in found.reasons.items()))


def memory(found: Memory) -> str:
    """A bar for each device, and a table of the variables."""
    bars = plain.device_bars(found)
    full = max((limit or total for *_, total, limit in bars), default=0) or 1
    shown = bars[:MAX_ROWS]
    svg = [open_svg(WIDTH + 160, 20 * len(shown) + 24)]
    svg.append(svg_text(150, 13, "dark: variables, light: other live arrays, grey: free", 11))
    for number, (rank, id, named, total, limit) in enumerate(shown):
        y = 20 + 20 * number
        scale = WIDTH / (limit or full)
        label = f"{palette.glyph(rank)} {rank} · {formatting.device(found.devices.get(id), id)}"
        svg.append(svg_text(4, y + 13, label, 11))
        svg += [
            _rect(150, y, WIDTH, 16, "#e0e0e0"),
            _rect(150, y, total * scale, 16, palette.color(rank), ' fill-opacity="0.45"'),
            _rect(150, y, named * scale, 16, palette.color(rank)),
        ]
    out = [image("".join([*svg, "</svg>"]), "Bytes held on each device; see the tables")]
    hosts = plain.memory_hosts(found)
    has_limits = any(limit for *_, limit in bars)  # CPU devices have none
    rows = [
        [*_rank_cells(rank), *([td(hosts[rank])] if hosts else []),
         td(formatting.device(found.devices.get(id), id)), td(format_nbytes(named)),
         td(format_nbytes(total - named)),
         *([td(format_nbytes(limit - total) if limit else "")] if has_limits else [])]
        for rank, id, named, total, limit in shown
    ]  # fmt: skip
    more = len(bars) - len(shown)
    note = f"... and {more} more devices" if more else ""
    where = ["host"] if hosts else []
    header = ["", "rank", *where, "device", "variables", "other", *(["free"] if has_limits else [])]
    out.append(html_table(header, rows, note))
    if names := plain.told_variables(found, MAX_ROWS):
        out.append(text_table(plain.VARIABLES, names))
    return "\n".join(out + _lines(f"Rank {r}: {w}" for r, w in found.reasons.items()))


def _odd_parts(check: CheckResult | None) -> frozenset[object]:
    if check is None:
        return frozenset()
    return frozenset({d.index for d in check.differences} | {b.index for b in check.bad})


# ------------------------------------------------------------------ what ranks do and use


def status(
    states: Sequence[RankState],
    dead: Mapping[int, Death],
    samples: Mapping[int, Sample],
) -> str:
    """A table of the ranks, with what each uses."""
    gpus = any(one.gpu_total_nbytes for one in samples.values())
    head = ["", "rank", "state", "cell", "for", "CPU", "memory", *(["GPU"] if gpus else [])]
    rows = []
    for state in states:
        found = samples.get(state.rank)
        rss = found.rss_nbytes if found is not None else state.rss_nbytes
        row = [
            *_rank_cells(state.rank),
            td(formatting.doing(state, dead)),
            td(formatting.cell(state)),
            td(f"{state.seconds:.1f} s" if state.cell is not None else ""),
            td(formatting.cpu(found)),
            td(format_nbytes(rss) if rss else ""),
            *([td(formatting.gpu(found))] if gpus else []),
        ]
        rows.append(row)
    places = {
        (s.hostname, s.pid, " ".join(s.devices)): s.rank for s in states
    }  # what does not change stands below, folded
    told = "<br>\n".join(
        escape(f"rank {rank}: {host}, pid {pid}, {devices}")
        for (host, pid, devices), rank in places.items()
    )
    folded = f"<details><summary>Hosts, processes, devices</summary><small>{told}</small></details>"
    return f"{html_table(head, rows)}\n{folded}"
