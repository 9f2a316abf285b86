"""What the profiles of all ranks say: as text, as HTML with a picture, and as JSON."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import Any

from jaxcluster.model import stragglers
from jaxcluster.model.profile import Collective, Profile
from jaxcluster.ranks import begin_ranks, by_value
from jaxcluster.text import format_table, plural
from jaxcluster.views import markup, palette
from jaxcluster.views.displays import Bundle

VERSION = 1
MIME = "application/vnd.jaxcluster.profile+json"
MOST_ROWS, MOST_TOLD = 20, 100  # collectives, as text and as JSON
MOST_BARS = 64
MOST_SHARES = 8
BAR_HEIGHT, LABEL, ROOM = 16, 70, 110  # of the picture, in pixels
HEAD = ("collective", "program", "times", "in it", "comes last", "line")


def bundle(found: Profile, what: str) -> Bundle:
    """It in all the forms that a frontend may ask for.

    Args:
      what: was profiled, as in "cell [4]".
    """
    return {
        MIME: document(found),
        "text/html": html(found, what),
        "text/plain": text(found, what),
    }


def document(found: Profile) -> dict[str, Any]:
    """The same as JSON's own types."""
    told = dataclasses.asdict(dataclasses.replace(found, collectives=found.collectives[:MOST_TOLD]))
    return {"v": VERSION, **told, "told": named(found)}


def text(found: Profile, what: str) -> str:
    """Who keeps the others waiting first, then the collectives, then where the files are."""
    parts = [headline(found, what), *filter(None, [named(found)])]
    if found.collectives:
        rows = [HEAD, *map(_row, found.collectives[:MOST_ROWS])]
        parts += ["", *format_table(rows), *_more(found), "", _share(found)]
    return "\n".join([*parts, *facts(found)])


def html(found: Profile, what: str) -> str:
    """The same, the time in collectives as a picture."""
    out = [f"<p><b>{escape(headline(found, what))}</b></p>"]
    if told := named(found):
        out.append(f"<p>{escape(told)}</p>")
    if found.collectives:
        out.append(markup.text_table(HEAD, map(_row, found.collectives[:MOST_ROWS])))
        out += [f"<p>{escape(line)}</p>" for line in _more(found)]
        out.append(markup.image(picture(found), _share(found)))
    lines = "<br>\n".join(escape(line) for line in facts(found))
    return "\n".join([*out, f"<p>{lines}</p>"])


def headline(found: Profile, what: str) -> str:
    """How many ranks did what for how long."""
    ranks = plural(len(found.files), "rank")
    if not found.span_s:
        return f"Profile of {what}: {ranks}."
    steps = ""
    if (step := found.steps) is not None:
        each = _seconds(step.median_s)
        kind = plural(step.count, "step") if not step.name else (
            plural(step.count, f"launch of {step.name}", f"launches of {step.name}")
        )  # fmt: skip
        steps = f", {kind}, {each} each"
    return f"Profile of {what}: {ranks}, {_seconds(found.span_s)}{steps}."


def named(found: Profile) -> str:
    """Who keeps the others waiting, in a sentence; "" for nobody."""
    if found.straggler is None:
        return ""
    return stragglers.tell(found.straggler, is_over=True, into=found.into)


def facts(found: Profile) -> list[str]:
    """Where it all is, and what is missing, a line each."""
    lines = []
    for why, ranks in sorted(by_value(found.missing).items()):
        has = "has" if len(ranks) == 1 else "have"
        lines.append(f"{begin_ranks(ranks)} {has} no profile: {why}.")
    lines += found.notes
    if found.trace:
        lines.append(f"All ranks in one file, for ui.perfetto.dev: {found.trace}")
    if found.files:
        lines.append(
            f"{plural(len(found.files), 'file')}, one for each rank: tensorboard --logdir "
            f"{found.folder}"
        )
    if found.error_s:
        lines.append(f"The hosts' clocks are known to {_seconds(found.error_s)}.")
    return lines


def picture(found: Profile) -> str:
    """How long each rank was in collectives, a bar each, as SVG."""
    late = found.straggler.ranks if found.straggler is not None else ()
    shown = list(found.in_collectives_s.items())[:MOST_BARS]
    rows = [
        (f"rank {rank}", seconds, _seconds(seconds), palette.color(int(rank in late)))
        for rank, seconds in shown
    ]
    most = max(found.span_s, *(seconds for _, seconds in shown)) or 1.0
    return markup.bars("time in collectives", rows, most, BAR_HEIGHT, LABEL, ROOM)


def _row(one: Collective) -> list[str]:
    late = ""
    if one.last is not None:
        late = f"rank {one.last}: {100 * one.share:.0f} %, {_seconds(one.behind_s)} behind"
    return [one.operation, one.program, str(one.times), _range(one.seconds), late, one.place]


def _range(seconds: dict[int, float]) -> str:
    low, high = (pick(seconds, key=lambda rank: seconds[rank]) for pick in (min, max))
    if seconds[high] < 1.5 * seconds[low] + 0.001:
        return _seconds(seconds[high])
    return f"{_seconds(seconds[low])} (rank {low}) to {_seconds(seconds[high])} (rank {high})"


def _share(found: Profile) -> str:
    """How much of the time the ranks were in collectives: each, or from the least to the most."""
    shares = {
        rank: f"{min(100.0, 100 * seconds / found.span_s):.0f} %"
        for rank, seconds in sorted(found.in_collectives_s.items(), key=lambda one: one[1])
    }
    ranks = list(shares)
    if len(ranks) > MOST_SHARES:
        least, middle, most = ranks[0], ranks[len(ranks) // 2], ranks[-1]
        told = f"{shares[least]} (rank {least}) to {shares[most]} (rank {most})"
        return f"Time in collectives: {told}, {shares[middle]} in the middle"
    told = ", ".join(f"{shares[rank]} (rank {rank})" for rank in sorted(ranks))
    return f"Time in collectives: {told}"


def _more(found: Profile) -> list[str]:
    left = len(found.collectives) - MOST_ROWS
    return [f"... and {plural(left, 'more row')}"] if left > 0 else []


def _seconds(seconds: float) -> str:
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"
