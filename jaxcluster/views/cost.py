"""What a call would cost: as text, as HTML with a picture, and as JSON."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import Any

from jaxcluster.model.cost import Collective, Cost, Replicated
from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.text import format_nbytes, format_table, plural
from jaxcluster.views import markup, palette
from jaxcluster.views.displays import Bundle

VERSION = 1
MIME = "application/vnd.jaxcluster.cost+json"
MOST_ROWS = 40
BAR = 24  # characters of the longest bar
HEAD = ("collective", "axis", "times", "of", "each", "sent", "line")
WHEN = {"loop": " or more", "branch": " or 0"}
KINDS = ("arguments", "outputs", "temporaries", "code")
UNITS = ("", "k", "M", "G", "T", "P")
BAR_HEIGHT, LABEL, ROOM = 20, 150, 170  # of the picture, in pixels


def bundle(found: Cost) -> Bundle:
    """It in all the forms that a frontend may ask for."""
    return {MIME: document(found), "text/html": html(found), "text/plain": text(found)}


def document(found: Cost) -> dict[str, Any]:
    """The same as JSON's own types."""
    told = dataclasses.asdict(found)
    return {"v": VERSION, **told, "by_axis": found.by_axis, "peak": found.peak}


def text(found: Cost) -> str:
    """What is sent by whom first, then what is computed and held, and what might be better."""
    parts = [headline(found)]
    if found.collectives:
        rows = [HEAD, *map(_row, found.collectives[:MOST_ROWS])]
        parts += ["", *format_table(rows), *_more(found), "", *_bars(found)]
    parts += ["", *facts(found)]
    return "\n".join(parts)


def html(found: Cost) -> str:
    """The same, the bytes by axis as a picture. It has no colours, but for that."""
    out = [f"<p><b>{escape(headline(found))}</b></p>"]
    if found.collectives:
        out.append(markup.image(picture(found), "Bytes that each device sends; see the table"))
        out.append(markup.text_table(HEAD, map(_row, found.collectives[:MOST_ROWS])))
        out += [f"<p>{escape(line)}</p>" for line in _more(found)]
    lines = "<br>\n".join(escape(line) for line in facts(found))
    return "\n".join([*out, f"<p>{lines}</p>"])


def headline(found: Cost) -> str:
    """How many devices would do what."""
    mesh = ", ".join(f"{name}={size}" for name, size in found.mesh.items())
    where = f"{plural(found.size, 'device')}{f' ({mesh})' if mesh else ''}"
    if not found.collectives:
        return f"{found.expression}, on {where}: no collectives."
    sent = format_nbytes(sum(found.by_axis.values()))
    count = sum(one.times for one in found.collectives)
    told = plural(count, "collective")
    return f"{found.expression}, on {where}: {told}, each device sends {sent}."


def _row(one: Collective) -> list[str]:
    place = f"{one.place} ({one.within})" if one.within else one.place
    return [
        one.kind,
        one.over,
        f"{one.times}{WHEN.get(one.when, '')}",
        one.shape,
        format_nbytes(one.nbytes),
        format_nbytes(one.all_sent),
        place,
    ]


def _more(found: Cost) -> list[str]:
    left = found.collectives[MOST_ROWS:]
    sent = format_nbytes(sum(one.all_sent for one in left))
    return [f"... and {plural(len(left), 'more row')}, {sent} sent"] if left else []


def _bars(found: Cost) -> list[str]:
    most = max(found.by_axis.values(), default=0) or 1
    rows = [
        [over, "█" * max(1, round(BAR * sent / most)), _amount(found, over, sent)]
        for over, sent in found.by_axis.items()
    ]
    return ["Sent by each device, by mesh axis:", *format_table(rows)]


def _amount(found: Cost, over: str, sent: int) -> str:
    return f"{format_nbytes(sent)}{', between ranks' if over in found.spanning else ''}"


def picture(found: Cost) -> str:
    """A bar for each axis, as SVG."""
    rows = [
        (over, sent, _amount(found, over, sent), palette.color(number))
        for number, (over, sent) in enumerate(found.by_axis.items())
    ]
    most = max(found.by_axis.values(), default=0) or 1
    title = "sent by each device in one step, by mesh axis"
    return markup.bars(title, rows, most, BAR_HEIGHT, LABEL, ROOM)


# --------------------------------------------------------------------------- the rest of it


def facts(found: Cost) -> list[str]:
    """All but the collectives, a line each."""
    lines = []
    if found.differs:
        lines.append(
            f"{begin_ranks(found.differs)} would run another program than "
            f"{name_ranks([min(found.compile_s)])}: the ranks would hang, or compute nonsense."
        )
    if found.flops is not None:
        least = f" or more: {found.uncounted}" if found.uncounted else ""
        lines.append(f"Floating point operations of each device: {amount(found.flops)}{least}")
    if found.memory:
        kinds = [f"{kind} {format_nbytes(found.memory.get(kind, 0))}" for kind in KINDS]
        if donated := found.memory.get("donated", 0):
            kinds[1] += f" ({format_nbytes(donated)} of them in donated arguments)"
        peak = format_nbytes(found.peak)
        lines.append(f"Memory of each device: {peak} at the peak: {', '.join(kinds)}")
    lines.append(f"Traced and lowered in {seconds(found.lower_s)}")
    lines.append(f"Compiled in {seconds(found.compile_s)}")
    lines += map(_suggestion, found.replicated)
    return [*lines, *found.notes]


def amount(number: float) -> str:
    """``1.5 G``."""
    for unit in UNITS[:-1]:
        if number < 1000:
            return f"{number:.3g} {unit}".strip()
        number /= 1000
    return f"{number:.3g} {UNITS[-1]}"


def seconds(by_rank: dict[int, float] | Any) -> str:
    """Once where they are alike, else from the fastest to the slowest rank."""
    low = min(by_rank, key=lambda rank: by_rank[rank])
    high = max(by_rank, key=lambda rank: by_rank[rank])
    if len(by_rank) == 1 or by_rank[high] - by_rank[low] < 0.1 * by_rank[high] + 0.05:
        return f"{by_rank[high]:.2f} s on {name_ranks(by_rank)}"
    return f"{by_rank[low]:.2f} s (rank {low}) to {by_rank[high]:.2f} s (rank {high})"


def _suggestion(one: Replicated) -> str:
    which = one.what
    if one.count < one.total:
        which = f"{one.what} ({one.count} of {one.total} arrays)"
    axes = " and ".join(repr(name) for name in one.axes)
    return (
        f"Replicated over {axes}: {which}, {format_nbytes(one.nbytes)} on each device; cut "
        f"{one.ways} ways it would be {format_nbytes(one.sharded)}."
    )
