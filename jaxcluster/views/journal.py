"""The last launches of all ranks in a notebook: a timeline, which a saved notebook has too.

The Lab extension draws it from JSON as it draws a report's. The HTML beside it says the same to
nbconvert and to frontends without the extension; of colours it has none, since it is shown on any
ground.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from jaxcluster.model.timeline import Lane, Timeline, letter
from jaxcluster.ranks import format_ranks, name_ranks
from jaxcluster.views import text
from jaxcluster.views.displays import Bundle

VERSION = 1
MIME = "application/vnd.jaxcluster.journal+json"
MOST_ROWS = 16  # of a rank each; of more ranks those that are equal share a row
MOST_PLACES = 3  # at which a program was launched


@dataclass(frozen=True)
class Journal:
    """What the Lab extension draws of the last launches."""

    v: int
    timelines: list[Timeline]


def bundle(found: Sequence[Timeline]) -> Bundle:
    """Timelines in all the forms that a frontend may ask for."""
    told = text.journal(found)
    if not found:
        return {"text/plain": told}
    return {
        MIME: dataclasses.asdict(Journal(VERSION, list(found))),
        "text/html": "\n".join(html(one) for one in found),
        "text/plain": told,
    }


def html(found: Timeline) -> str:
    """A row for each rank, a letter for each launch; below it the programs that they stand for."""
    different = found.difference()
    heads = "".join(
        f"<th scope='col'>{found.first + at}{' ≠' if at == different else ''}</th>"
        for at in range(found.length)
    )
    rows = "\n".join(
        f"<tr><th scope='row'>{format_ranks(ranks)}{' died' if lane.died else ''}</th>"
        f"{''.join(_marks(lane, different if set(ranks) <= set(found.odd) else None))}</tr>"
        for lane, ranks in _rows(found)
    )
    title = f"<p><b>Last launches of {name_ranks(found.processes)}</b></p>"
    first = ""
    if different is not None:
        first = f"<p>Launch {found.first + different} is the first that differs.</p>"
    left = f"<p>Not shown: {name_ranks(found.hidden)}</p>" if found.hidden else ""
    return (
        f"{title}\n<table><thead><tr><th scope='col'>rank</th>{heads}</tr></thead>"
        f"<tbody>\n{rows}\n</tbody></table>\n{first}{_programs(found)}{left}"
    )


def _rows(found: Timeline) -> list[tuple[Lane, list[int]]]:
    if sum(len(lane.ranks) for lane in found.lanes) > MOST_ROWS:
        return [(lane, lane.ranks) for lane in found.lanes]
    return sorted(
        ((lane, [rank]) for lane in found.lanes for rank in lane.ranks), key=lambda row: row[1]
    )


def _marks(lane: Lane, odd_at: int | None) -> Iterator[str]:
    for at, launch in enumerate(lane.launches):
        if launch is not None:
            mark, said = letter(launch.program), f"{launch.name} {launch.place}".strip()
        elif lane.died:
            mark, said = "✖", "died"
        else:
            mark, said = ("…", "not yet") if lane.under_way else ("-", "not launched")
        if at == odd_at:
            mark = f"<b>≠{mark}</b>"
        yield f"<td title='{escape(said)}'>{mark}</td>"


def _programs(found: Timeline) -> str:
    names: dict[int, str] = {}
    places: dict[int, dict[str, None]] = {}
    for at in range(found.length):
        for lane in found.lanes:
            if (launch := lane.launches[at]) is not None:
                names[launch.program] = launch.name
                if launch.place:
                    places.setdefault(launch.program, {})[launch.place] = None
    told = []
    for program, name in sorted(names.items()):
        at_lines = list(places.get(program, ()))
        more = ", ..." if len(at_lines) > MOST_PLACES else ""
        where = f": {', '.join(at_lines[:MOST_PLACES])}{more}" if at_lines else ""
        told.append(f"<b>{letter(program)}</b> {escape(name + where)}")
    return f"<p><small>{'<br>'.join(told)}</small></p>"
