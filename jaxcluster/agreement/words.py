"""What a refusal says to a user: the cause first, then what each rank did, then what to do."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Mapping

from jaxcluster.agreement.refusals import NOWHERE, Doing, Refusal
from jaxcluster.ranks import begin_ranks, name_ranks

MOST_ROWS = 4
TEXT_CHARS = 60  # of a line

NOTHING = "Nothing was launched."
FIXES = {
    "ended": "Fix the cell and run it again.",
    "differs": "All ranks must make the same calls: run both on every rank, and choose afterwards.",
    "circle": "Make the calls in one order on all ranks.",
    "idle": "Run the cell on all ranks; or run the other cell first, with --async.",
    "uneven": "All ranks must make the same calls.",
    "torn": "The ranks need new processes: %jaxcluster restart",
}
SCRIPTS_FIXES = {"torn": "Run the script again."}


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
    first = headline(refusal, hosts).replace("cell", part)
    lines = [first, *rows(refusal, sources or {}, hosts)]
    fix = FIXES.get(refusal.kind, "").replace("cell", part)
    if part == "script":
        fix = SCRIPTS_FIXES.get(refusal.kind, fix)
    if refusal.mixed is not None:
        lines += [mixed(refusal).replace("cell", part), fix]
    elif refusal.kind in ("uneven", "torn"):
        lines.append(fix)
    else:
        lines.append(f"{NOTHING} {fix}".rstrip())
    return "\n".join(lines)


def headline(refusal: Refusal, hosts: Mapping[int, str] | None = None) -> str:
    """What happened, in a sentence."""
    causes, waiting = refusal.causes, [one for one in refusal.doing if one.does == "waits"]
    who = begin_ranks(causes, hosts)
    others = [one.rank for one in waiting if one.rank not in causes]
    match refusal.kind:
        case "ended" if others:
            launch = f"the launch that {name_ranks(others, hosts)} {_verb(others, 'wait')} for"
            return f"{who} ended the cell without {launch}."
        case "ended":
            return f"{who} {_verb(causes, 'make')} a launch that the others do not."
        case "differs":
            what = "different programs"
            if len({one.fingerprint for one in waiting}) == 1:
                values = len({one.given for one in waiting}) > 1
                what = "one program with different values" if values else "a program after others"
            return f"{begin_ranks([one.rank for one in waiting], hosts)} came to launch {what}."
        case "circle":
            return f"{who} wait for each other."
        case "idle":
            idle = [one.rank for one in refusal.doing if one.does == "idle"]
            return (
                f"{who} {_verb(causes, 'wait')} for {name_ranks(idle, hosts)}, which "
                f"{_verb(idle, 'run')} no cell."
            )
        case "died":
            return f"{who} died."
        case "failed":
            return f"{who} failed, so no rank launches anything more in this cell."
        case "left":
            return f"{who} left the wait for a launch: an exception was raised in it."
        case "uneven":
            return f"{who} launched other programs without collectives."
        case "torn":
            return "XLA launched a program on some ranks, and refused it on others."
        case _:
            return "The cell was stopped."


def rows(
    refusal: Refusal, sources: Mapping[int, str], hosts: Mapping[int, str] | None = None
) -> list[str]:
    """What the ranks did, a line for those that did the same."""
    is_one = len({one.fingerprint for one in refusal.doing if one.does == "waits"}) == 1
    inputs = [one.signature.split(", ") for one in refusal.doing if one.does == "waits"]
    alike = len([*itertools.takewhile(lambda same: len({*same}) == 1, zip(*inputs, strict=False))])
    branch, groups = _branch(refusal, sources), dict[str, list[int]]()
    looks: dict[str, set[int]] = {}  # the programs that look so
    for one in refusal.doing:
        looks.setdefault(_row(one, alike), set()).add(one.fingerprint)
    for one in refusal.doing:
        row = _row(one, alike)
        if len(looks[row]) > 1:
            row = f"{row}   program #{one.fingerprint & 0xFFFFFF:06x}"
        elif is_one and refusal.kind == "differs" and one.does == "waits":
            row = f"{row}   values #{one.given & 0xFFFFFF:06x}"
        if one.does == "ended" and branch is not None:
            row = f"{row}   line {branch[0]} is `{branch[1]}`"
        groups.setdefault(row, []).append(one.rank)
    told = [(name_ranks(ranks, hosts), row) for row, ranks in groups.items()]
    if len(told) > MOST_ROWS:
        rest = [rank for ranks in list(groups.values())[MOST_ROWS - 1 :] for rank in ranks]
        told = [*told[: MOST_ROWS - 1], (name_ranks(rest, hosts), "each something else")]
    width = max((len(name) for name, _ in told), default=0)
    lines = [f"  {name.ljust(width)}   {row}" for name, row in told]
    if branch is not None and refusal.kind != "ended":
        lines.append(f"  line {branch[0]} is `{branch[1]}`")
    return lines


def _row(one: Doing, alike: int) -> str:
    """What a rank did.

    Args:
      alike: the first inputs that the programs of all ranks have.
    """
    if one.does != "waits":
        does = {"works": "still at work", "idle": "in no cell"}.get(one.does, one.does)
        return f"{does}   {one.name}".rstrip()
    place, program = one.place, f"{one.name} {_short(one.signature, alike)}".strip()
    if place is not NOWHERE and place.line:
        text = place.text if len(place.text) <= TEXT_CHARS else place.text[:TEXT_CHARS] + "..."
        where = f"line {place.line}   {text}".rstrip()
        if place.within:
            where += f"   ({place.within})"
        program = f"{where}   {program}"
    elif place.within:
        program = f"{place.within}   {program}"
    return program


def _short(signature: str, alike: int) -> str:
    """A program's inputs; of many the first that differ."""
    if len(signature) <= TEXT_CHARS:
        return signature
    inputs = signature.split(", ")
    skipped = alike if alike < len(inputs) else 0
    shown = ["..."] if skipped else []
    for one in inputs[skipped:]:
        if len(", ".join([*shown, one])) > TEXT_CHARS and shown != ["..."]:
            return ", ".join([*shown, "..."])
        shown.append(one)
    return ", ".join(shown)


def mixed(refusal: Refusal) -> str:
    """Since when turns of a loop may have met other turns."""
    place, count = refusal.mixed or NOWHERE, refusal.mixed_launches
    where = f"line {place.line}" if place.line else place.within or "this program"
    launches = "launch" if count == 1 else f"{count} launches"
    return (
        f"The last {launches} from {where} on may have met other turns of a loop, if a rank left "
        "one out: don't use what the cell has assigned since."
    )


def _branch(refusal: Refusal, sources: Mapping[int, str]) -> tuple[int, str] | None:
    """The line, and its text, of the branch or loop that some ranks alone took to their launch."""
    waiting = [one for one in refusal.doing if one.does == "waits" and one.place.line]
    if refusal.kind not in ("ended", "differs", "circle") or not waiting:
        return None
    alone = [one for one in waiting if one.rank in refusal.causes] or waiting
    place = alone[0].place
    try:
        tree = ast.parse(sources.get(place.cell, ""))
    except SyntaxError:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.With)
        and node.lineno < place.line <= (node.end_lineno or 0)
    ]
    found = max(around, key=lambda node: node.lineno, default=None)
    if found is None:
        return None
    text = sources[place.cell].splitlines()[found.lineno - 1].strip()
    return found.lineno, text[:TEXT_CHARS]


def _verb(ranks: Iterable[int], verb: str) -> str:
    return verb if len({*ranks}) > 1 else f"{verb}s"
