"""What findings say to a user: who waits where, who does not, and why that may be. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.model import lockstep
from jaxcluster.model.findings import Crossed, Mismatch, Missing, Suspicion
from jaxcluster.ranks import begin_ranks, name_ranks, several_hosts


def hosts_of(reports: Mapping[int, wire.RankReport]) -> dict[int, str]:
    """The ranks' hosts, where there are several."""
    return several_hosts({rank: report.state.hostname for rank, report in reports.items()})


@dataclass(frozen=True)
class Scene:
    """What surrounds a finding of one set of processes.

    Attributes:
      source: the cell's source, with the notebook's line numbers.
      cell: its number.
      reports: what the set's ranks say.
      launches: theirs of this set, by place.
      over: the ranks that have ended the cell (or never ran it).
      runners: the ranks that were told to run it.
      errors: what ranks raised in it.
      hosts: of all ranks, where there are several.
    """

    source: str
    cell: int
    reports: Mapping[int, wire.RankReport]
    launches: Mapping[int, Mapping[int, wire.Launch]]
    over: set[int]
    runners: set[int]
    errors: Mapping[int, wire.ErrorInfo]
    hosts: Mapping[int, str]


def tell_suspicion(found: Suspicion, waited_s: float) -> str:
    """Who waits for whom, in one line."""
    wanted = "a missing launch"
    if (launch := found.launch) is not None:
        wanted = f"launch {launch.seq + 1} ({launch.name})"
    have = "has" if len(found.waiting) == 1 else "have"
    messages: dict[str, list[int]] = {}
    for rank, reason in sorted(found.reasons.items()):
        messages.setdefault(reason.message, []).append(rank)
    others = "; ".join(
        f"{name_ranks(ranks, found.hosts)} {what}" for what, ranks in messages.items()
    )
    who = begin_ranks(found.waiting, found.hosts)
    return f"{who} {have} waited about {waited_s:.0f} s for {wanted}; {others}."


# --------------------------------------------------------------------------- different programs


def tell_mismatch(found: Mismatch, scene: Scene) -> list[str]:
    """What each group of ranks launched, and why that may be."""
    if found.seq is None:
        who = f"{begin_ranks(found.culprits, scene.hosts)} and "
        who += name_ranks(found.others, scene.hosts)
        return [f"{who} launched different programs, further back than the journals go."]
    seq = found.seq
    lines = [f"The ranks launched different programs as launch {seq + 1}:"]
    for ranks in reversed(found.groups):
        program = program_line(scene.launches[ranks[0]][seq])
        lines.append(f"  {name_ranks(ranks, scene.hosts)}: {program}")
    if refused := lockstep.refused(found.processes, seq, scene.reports):
        one = len(refused) == 1
        lines.append(
            f"{begin_ranks(refused, scene.hosts)} {'has' if one else 'have'} not launched "
            f"{'its' if one else 'their'} program: it was refused, because another rank had "
            "come first with a different one."
        )
    lines += [*_tell_scalars(scene.reports), f"Hint: {_mismatch_hint(seq, found, scene)}"]
    if (extra := _extra(seq, found, scene)) is not None and not extra.collective:
        lines.append(f"Hint: {_alone_hint(extra)}")
    return lines


def _extra(seq: int, found: Mismatch, scene: Scene) -> wire.Launch | None:
    """What some ranks launched before they went on with what the others launched in its place."""
    first, second = (scene.launches[r[0]] for r in (found.groups[-1], found.groups[0]))
    for own, others in ((second, first), (first, second)):
        following = own.get(seq + 1)
        if following is not None and following.fingerprint == others[seq].fingerprint:
            return own[seq]
    return None


def _alone_hint(entry: wire.Launch) -> str:
    """Of a program that JAX would have let some ranks launch alone, unless something came of it."""
    return (
        f"{entry.name} needs nothing from other ranks, but its result is an array that spans all "
        "of them, so all must launch it. For one rank alone, compute in numpy: np.asarray(x) "
        "launches nothing."
    )


def _mismatch_hint(seq: int, found: Mismatch, scene: Scene) -> str:
    first, second = (scene.launches[r[0]] for r in (found.groups[-1], found.groups[0]))
    a, b = first[seq], second[seq]
    if any(wire.BROKEN_OFF in name for name in (a.name, b.name)):
        return (
            "where one process aborts a program, the others wait for it in the collectives, or "
            "continue without it."
        )
    if a.name == b.name and a.signature != b.signature:
        return (
            f"the shapes differ ({a.signature or '?'} against {b.signature or '?'}): pad or "
            "drop so that every process passes the same shape."
        )
    if a.name == b.name:
        return (
            "the same call compiled to different programs: do constants, closures, jax.config "
            "or environment variables differ between the processes?"
        )
    later_a = [first[s].name for s in sorted(first) if s >= seq]
    later_b = [second[s].name for s in sorted(second) if s >= seq]
    if len(later_a) > 1 and sorted(later_a) == sorted(later_b):
        return (
            "the same programs in another order: iterating over a set, a dict or a directory can "
            "differ between processes. Sort first."
        )
    own = [entry.line for entry in (b, a) if entry.cell == scene.cell]
    branch = next(filter(None, (_branch(scene.source, line) for line in own)), "")
    return branch or "a branch that depends on the rank, or on data that differs between ranks."


def tell_crossed(found: Crossed, hosts: Mapping[int, str]) -> list[str]:
    """In which order each group of ranks launched programs of the two sets."""
    named = " and of ".join(name_ranks(map(int, one.split(","))) for one in found.sets)
    lines = [f"The ranks launched programs of {named} in different orders:"]
    for ranks, entry in reversed(found.firsts):
        if entry is not None:
            whose = name_ranks(map(int, entry.processes.split(",")))
            lines.append(f"  {name_ranks(ranks, hosts)}: first {program_line(entry)} (of {whose})")
    return [
        *lines,
        "Hint: processes that share programs must all launch them in one order. Their results "
        "may be mixed up.",
    ]


def program_line(entry: wire.Launch) -> str:
    place = f", cell [{entry.cell}] line {entry.line}" if entry.cell is not None else ""
    place += f", in {entry.within}" if entry.within else ""
    signature = f"  {entry.signature}" if entry.signature else ""
    return f"{entry.name}{place}{signature}"


# --------------------------------------------------------------------------- a missing launch


def tell_missing(found: Missing, scene: Scene) -> list[str]:
    """Who waits where, who skipped the launch, how, and why that may be."""
    lines = [_tell_waiting(ranks, found, scene) for ranks in _by_place(found.others, scene)]
    skipped: dict[tuple[str, str], list[int]] = {}
    for rank in found.culprits:
        skipped.setdefault(_tell_skipped(rank, scene), []).append(rank)
    for (what, last), ranks in skipped.items():
        one = len(ranks) == 1
        told = f"{'its' if one else 'their'} last launch: {last}"
        if not last:
            told = f"{'it has' if one else 'they have'} launched none"
        lines.append(f"{begin_ranks(ranks, scene.hosts)} {what} ({told}).")
    lines += _tell_scalars(scene.reports)
    if hint := _missing_hint(found, scene):
        lines.append(f"Hint: {hint}")
    if found.wanted is not None and not found.wanted.collective:
        lines.append(f"Hint: {_alone_hint(found.wanted)}")
    return lines


def _by_place(ranks: Sequence[int], scene: Scene) -> list[list[int]]:
    places: dict[tuple[object, ...], list[int]] = {}
    for rank in ranks:
        state = scene.reports[rank].state
        places.setdefault((rank in scene.over, state.line), []).append(rank)
    return list(places.values())


def _tell_waiting(ranks: Sequence[int], found: Missing, scene: Scene) -> str:
    state, who = scene.reports[ranks[0]].state, begin_ranks(ranks, scene.hosts)
    wanted, source = found.wanted, scene.source
    launch = ""
    if wanted is not None:
        within = f", in {wanted.within}" if wanted.within else ""
        launch = f" (launch {wanted.seq + 1}: {wanted.name}{within})"
    own = wanted is not None and wanted.cell == scene.cell
    if ranks[0] in scene.over:
        line = f" at cell [{wanted.cell}] line {wanted.line}" if wanted and wanted.line else ""
        call = _call_at(source, wanted.line) if wanted and own else ""
        return f"{who} launched {call or 'a program'}{line}{launch}."
    where = f"cell [{state.cell}] line {state.line}" if state.line else f"cell [{scene.cell}]"
    if wanted is not None and own and wanted.line != state.line:
        call = _call_at(source, wanted.line) or "the program"
        return f"{who} waited at {where} for {call} of line {wanted.line}{launch}."
    call = _call_at(source, state.line) or state.frame.partition(" ")[0]
    return f"{who} waited {f'in {call} ' if call else ''}at {where}{launch}."


def _tell_skipped(rank: int, scene: Scene) -> tuple[str, str]:
    """How a rank came to skip a launch, and its last one ("" where it has made none)."""
    entries = scene.launches[rank]
    last = ""
    if entries:
        entry = entries[max(entries)]
        last = f"{entry.seq + 1}, {program_line(entry)}"
    if (error := scene.errors.get(rank)) is not None:
        line = f" on line {error.lineno}" if error.lineno else ""
        return f"raised {error.ename}{line} before it", last
    if scene.reports[rank].state.state == "dead":
        return "died before it", last
    if scene.reports[rank].state.seq == 0 and rank not in scene.runners:
        return "did not run the cell", last
    return "finished the cell without it", last


def _missing_hint(found: Missing, scene: Scene) -> str:
    if any(r not in scene.runners for r in found.culprits):
        return "a program that spans processes must be launched by all of them: no --ranks."
    if any(r in scene.errors for r in found.culprits):
        return "an error on some ranks only: check its cause on all of them before the launch."
    if found.wanted is None or found.wanted.cell != scene.cell:
        return ""
    if branch := _branch(scene.source, found.wanted.line):
        return branch
    if loop := _enclosing(scene.source, found.wanted.line, (ast.For, ast.While)):
        return (
            f"the loop on line {loop.lineno} ran more often on some ranks: give every process "
            "the same number of steps (the last batch is the usual cause)."
        )
    return ""


# --------------------------------------------------------------------------- a cell's source


def _enclosing(
    source: str, line: int | None, kinds: tuple[type[ast.stmt], ...]
) -> ast.If | ast.For | ast.While | None:
    tree = _tree(source)
    if tree is None or line is None:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    inner = max(found, key=lambda n: n.lineno, default=None)
    return inner if isinstance(inner, (ast.If, ast.For, ast.While)) else None


def _branch(source: str, line: int | None) -> str:
    """How the ``if`` or ``while`` around a line decides whether it runs."""
    node = _enclosing(source, line, (ast.If, ast.While))
    if node is None or isinstance(node, ast.For) or line is None:
        return ""
    test = ast.unparse(node.test)
    word = "while" if isinstance(node, ast.While) else "if"
    here = f"line {line}" if node.lineno == line else f"line {node.lineno}"
    if isinstance(node, ast.If) and any(
        part.lineno <= line <= (part.end_lineno or 0) for part in node.orelse
    ):
        return f"{here} runs it only if `{test}` is false."
    call = _call_at(source, line) or "it"
    return f"{here} runs {call} only `{word} {test}`."


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # IPython's own syntax: then there is no hint
        return None


def _call_at(source: str, line: int | None) -> str:
    """The outermost call on a line, as it is written: ``jnp.sum``."""
    tree = _tree(source)
    if tree is None or line is None:
        return ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    printing = ("print", "float", "int", "str", "repr", "bool", "range", "len", "enumerate")
    for node in sorted(calls, key=lambda n: n.col_offset):
        name = ast.unparse(node.func)
        if name not in printing and len(name) < 60:
            return name
    return ""


def _tell_scalars(reports: Mapping[int, wire.RankReport]) -> list[str]:
    """Small values of the cell's names that differ between the ranks."""
    names = sorted({n for report in reports.values() for n in report.locals})
    lines = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, report in reports.items():
            if name in report.locals:
                values.setdefault(report.locals[name], []).append(rank)
        if 1 < len(values) <= 4 and sum(map(len, values.values())) == len(reports):
            told = ", ".join(f"{v} on {name_ranks(r)}" for v, r in values.items())
            lines.append(f"{name} = {told}.")
    return lines[:3]


def tell_working(
    reports: Mapping[int, wire.RankReport],
    ended: Iterable[int],
    waited_s: float,
    hosts: Mapping[int, str] | None = None,
) -> list[str]:
    """One line for each place where ranks still are while others have ended the cell.

    Args:
      hosts: of all ranks, where there are several; else those of ``reports``.
    """
    places: dict[str, list[int]] = {}
    hosts = hosts_of(reports) if hosts is None else hosts
    for rank, report in sorted(reports.items()):
        state = report.state
        where = f"cell [{state.cell}] line {state.line}" if state.line else state.frame or "no cell"
        places.setdefault(where, []).append(rank)
    lines = [
        f"{begin_ranks(ranks, hosts)} still {'works' if len(ranks) == 1 else 'work'} at {where} "
        f"({waited_s:.0f} s)"
        for where, ranks in places.items()
    ]
    done = list(ended)
    have = "has" if len(done) == 1 else "have"
    return [f"{line}." for line in lines[:-1]] + [
        f"{lines[-1]}; {name_ranks(done, hosts)} {have} ended the cell."
    ]


def tell_left(ranks: Sequence[int], hosts: Mapping[int, str] | None = None) -> list[str]:
    """What is to be known of ranks that a script has ended by ``os._exit(0)``; empty for none.

    Nobody can ask them any more whether they had made what others wait for.
    """
    if not ranks:
        return []
    processes = "process has" if len(ranks) == 1 else "processes have"
    whom = "it" if len(ranks) == 1 else "them"
    return [
        f"{begin_ranks(ranks, hosts)}: the {processes} ended with exit code 0 (os._exit). A "
        f"collective that waits for {whom} never ends; Ctrl-C ends the run."
    ]


def tell_places(
    reports: Mapping[int, wire.RankReport], ranks: Iterable[int], source: str, cell: int
) -> list[str]:
    """One line for each place of a cell where some of these ranks are, or were when asked."""
    places: dict[str, list[int]] = {}
    hosts = hosts_of(reports)
    for rank in sorted(ranks):
        if (report := reports.get(rank)) is None:
            where = "did not respond"
        elif (state := report.state).state != "running":
            where = "{had} ended the cell"
        elif state.line:
            call = _call_at(source, state.line) if state.cell == cell else ""
            where = "{was} " + f"{f'in {call} ' if call else ''}at cell [{state.cell}] "
            where += f"line {state.line}"
        else:
            where = "{was} in " + (state.frame.partition(" ")[0] or f"cell [{cell}]")
        places.setdefault(where, []).append(rank)
    lines = []
    for where, group in places.items():
        was = "was" if len(group) == 1 else "were"
        said = where.replace("{was}", was).replace("{had}", "had")
        lines.append(f"{begin_ranks(group, hosts)} {said}.")
    return lines + _tell_scalars({r: reports[r] for r in ranks if r in reports})
