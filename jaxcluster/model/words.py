"""The message of a refusal: the cause first, then what each rank did, then what to do."""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections import Counter
from collections.abc import Mapping

from jaxcluster.agreement.messages import Doing, Refusal
from jaxcluster.ranks import begin_ranks, name_ranks

MOST_ROWS = 4
TEXT_CHARS = 60  # of a line

NOTHING = "Nothing was launched. "
SAME = "All ranks must make the same calls"
UNUSABLE = "Don't use what the {part} has assigned."
# For each kind of refusal what happened, and what to do.
WORDS = {
    "ended": (
        "{Who} ended the {part} without the launch that {others} wait{others_s} for.",
        NOTHING + "Fix the {part} and run it again.",
    ),
    "alone": (
        "{Who} make{who_s} a launch that the others do not.",
        NOTHING + "Fix the {part} and run it again.",
    ),
    "differs": (
        "{Waiting} were about to launch {what}.",
        f"{NOTHING}{SAME}{{more}}.",
    ),
    "circle": (
        "{Who} wait for each other.",
        NOTHING + "Make the calls in one order on all ranks.",
    ),
    "idle": (
        "{Who} wait{who_s} for {idle}, which run{idle_s} no cell.",
        NOTHING + "Run the cell on all ranks; or run the other cell first, with --async.",
    ),
    "died": ("{Who} died.", NOTHING),
    "failed": ("{Who} failed, so no rank launches anything more in this {part}.", NOTHING),
    "left": ("{Who} left the wait for a launch: an exception was raised in it.", NOTHING),
    "stopped": ("The {part} was stopped.", NOTHING),
    "uneven": (
        "{Who} launched other programs without collectives than the rest.",
        f"{SAME}. {UNUSABLE}",
    ),
    "unequal": (
        "{Who} gave other values than the rest to programs without collectives.",
        f"{SAME}, with the same values. {UNUSABLE}",
    ),
    "torn": ("XLA launched a program on some ranks, and refused it on others.", "{renew}"),
}
RENEW = {
    "cell": "The ranks need new processes: %jaxcluster restart",
    "script": "Run the script again.",
}


def explain(
    refusal: Refusal,
    sources: Mapping[int, str] | None = None,
    hosts: Mapping[int, str] | None = None,
    part: str = "cell",
) -> str:
    """The message of a refusal, at most some six lines.

    Args:
      sources: of cells, by number: to name the branch or loop that a launch is in.
      hosts: of the ranks, where there are several.
      part: what the ranks run, "cell" or "script".
    """
    waiting = [one for one in refusal.doing if one.does == "waits"]
    everybody = sorted(rank for one in waiting for rank in one.ranks)
    others = [rank for rank in everybody if rank not in refusal.causes]
    idle = [rank for one in refusal.doing if one.does == "idle" for rank in one.ranks]
    what, more = "different programs", ": run both programs on every rank, and choose afterwards"
    if len({one.fingerprint for one in waiting}) == 1:
        what, more = "one program, but had launched different ones without collectives", ""
        if len({one.given for one in waiting}) > 1:
            what = "one program with different values for it, or for programs before it"
            more = ", with the same values"
    told = {"part": part, "what": what, "more": more, "renew": RENEW[part]}
    told["Who"] = begin_ranks(refusal.causes, hosts)
    told["Waiting"] = begin_ranks(everybody, hosts)
    for name, ranks in (("who", refusal.causes), ("others", others), ("idle", idle)):
        told[name], told[f"{name}_s"] = name_ranks(ranks, hosts), "" if len(ranks) > 1 else "s"
    is_alone = refusal.kind == "ended" and not others
    happened, fix = (text.format_map(told) for text in WORDS["alone" if is_alone else refusal.kind])
    lines = [happened, *_rows(refusal, sources or {}, hosts)]
    if refusal.mixed is not None:
        place, count = refusal.mixed, refusal.mixed_launches
        where = f"line {place.line}" if place.line else place.within or "this program"
        lines.append(
            "If a rank skipped an iteration of a loop, the last "
            f"{'launch' if count == 1 else f'{count} launches'} from {where} on mixed iterations. "
            f"Don't use what the {part} has assigned since."
        )
        fix = fix.removeprefix(NOTHING)
    return "\n".join([*lines, fix.strip()])


def _rows(
    refusal: Refusal, sources: Mapping[int, str], hosts: Mapping[int, str] | None
) -> list[str]:
    """A line for each group of ranks that did the same."""
    waiting = [one for one in refusal.doing if one.does == "waits"]
    inputs = [one.signature.split(", ") for one in waiting]
    alike = len([*itertools.takewhile(lambda same: len({*same}) == 1, zip(*inputs, strict=False))])
    has_values = refusal.kind == "differs" and len({one.fingerprint for one in waiting}) == 1
    branch = _branch(refusal, sources)
    looks = {one: _row(one, alike) for one in refusal.doing}
    programs = Counter(row for row, _ in {(row, one.fingerprint) for one, row in looks.items()})
    groups: dict[str, list[int]] = {}
    for one, row in looks.items():
        more = ""
        if programs[row] > 1:
            more = f"   program #{one.fingerprint & 0xFFFFFF:06x}"
        elif has_values and one.does == "waits":
            more = f"   values #{one.given & 0xFFFFFF:06x}"
        elif one.does == "ended" and branch:
            more = f"   {branch}"
        groups.setdefault(row + more, []).extend(one.ranks)
    told = [(name_ranks(sorted(ranks), hosts), row) for row, ranks in groups.items()]
    if len(told) > MOST_ROWS:
        rest = sorted(rank for ranks in [*groups.values()][MOST_ROWS - 1 :] for rank in ranks)
        told = [*told[: MOST_ROWS - 1], (name_ranks(rest, hosts), "each something else")]
    width = max((len(name) for name, _ in told), default=0)
    lines = [f"  {name.ljust(width)}   {row}" for name, row in told]
    return [*lines, f"  {branch}"] if branch and refusal.kind != "ended" else lines


def _row(one: Doing, alike: int) -> str:
    """A rank's action, in a line.

    Args:
      alike: the first inputs that the programs of all ranks have; many are left out.
    """
    if one.does != "waits":
        does = {"works": "still at work", "idle": "in no cell"}.get(one.does, one.does)
        return f"{does}   {one.name}".rstrip()
    place, signature = one.place, one.signature
    if len(signature) > TEXT_CHARS:
        differing = signature.split(", ")[alike:]
        signature = ", ".join(["...", *differing]) if alike and differing else signature
        signature = textwrap.shorten(signature, TEXT_CHARS, placeholder=" ...")
    text = place.text if len(place.text) <= TEXT_CHARS else place.text[:TEXT_CHARS] + "..."
    line = f"line {place.line}   {text}".rstrip() if place.line else ""
    within = f"({place.within})" if line and place.within else place.within
    return "   ".join(filter(None, [line, within, f"{one.name} {signature}".strip()]))


def _branch(refusal: Refusal, sources: Mapping[int, str]) -> str:
    """The line of the branch or loop that some ranks alone took to their launch."""
    waiting = [one for one in refusal.doing if one.does == "waits" and one.place.line]
    if refusal.kind not in ("ended", "differs", "circle") or not waiting:
        return ""
    alone = [one for one in waiting if {*one.ranks} & {*refusal.causes}] or waiting
    place = alone[0].place
    try:
        tree = ast.parse(sources.get(place.cell, ""))
    except SyntaxError:
        return ""
    around = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.With)
        and node.lineno < place.line <= (node.end_lineno or 0)
    ]
    if not around:
        return ""
    text = sources[place.cell].splitlines()[max(around) - 1].strip()
    return f"line {max(around)} is `{text[:TEXT_CHARS]}`"
