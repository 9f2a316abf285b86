"""An expression's values by rank, equal ones once: as text, as HTML and as JSON."""

from __future__ import annotations

import dataclasses
from html import escape

from jaxcluster.model.compared import Compared
from jaxcluster.ranks import format_ranks, name_ranks
from jaxcluster.views.displays import Bundle

VERSION = 1
MIME = "application/vnd.jaxcluster.compared+json"


def bundle(found: Compared) -> Bundle:
    """It in all the forms that a frontend may ask for."""
    groups = [{**dataclasses.asdict(group), "note": found.note(group)} for group in found.groups]
    return {
        MIME: {
            "v": VERSION,
            "headline": found.headline,
            "equal": found.equal,
            "groups": groups,
            "odd": list(found.odd),
        },
        "text/html": html(found),
        "text/plain": text(found),
    }


def text(found: Compared) -> str:
    """The values, each below the ranks that have it."""
    lines = [found.headline]
    for group in found.groups:
        shown = [group.look.text, *filter(None, [found.note(group)])]
        lines += [f"── {name_ranks(group.ranks)} ──", *shown]
    return "\n".join([*lines, *found.odd])


def html(found: Compared) -> str:
    """A row for each value. It has no colours, since it is shown on any ground."""
    rows = []
    for group in found.groups:
        note = found.note(group)
        rows.append(
            f"<tr><th scope='row' style='text-align:left;vertical-align:top'>"
            f"{format_ranks(group.ranks)}</th><td style='text-align:left'>"
            f"<pre>{escape(group.look.text)}</pre>"
            + (f"<small>{escape(note)}</small>" if note else "")
            + "</td></tr>"
        )
    odd = "".join(f"<p>{escape(line)}</p>" for line in found.odd)
    head = "<thead><tr><th scope='col'>rank</th><th scope='col'>value</th></tr></thead>"
    body = "\n".join(rows)
    return f"<p>{escape(found.headline)}</p>\n<table>{head}<tbody>\n{body}\n</tbody></table>{odd}"
