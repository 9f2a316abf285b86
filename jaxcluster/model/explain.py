"""What findings say to a user: who waits where, who does not, and why that may be. Pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from jaxcluster import wire
from jaxcluster.model import lockstep, signatures
from jaxcluster.model.findings import Crossed, Mismatch, Missing, Suspicion, place_of
from jaxcluster.model.rewrite import tree_of
from jaxcluster.ranks import (
    MOST_GROUPS,
    begin_ranks,
    by_value,
    name_ranks,
    of_several,
    several_hosts,
)
from jaxcluster.text import format_seconds

N = TypeVar("N", bound=ast.expr | ast.stmt)
FAILED_HINT = "an error on some ranks only: check its cause on all of them before the launch."


def hosts_of(reports: Mapping[int, wire.RankReport]) -> dict[int, str]:
    """The ranks' hosts, where there are several; not of the dead, which say none."""
    hosts = {rank: report.state.hostname for rank, report in reports.items()}
    return several_hosts({rank: host for rank, host in hosts.items() if host})


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


def tell_suspicion(found: Suspicion, waited_s: float, waiting: Sequence[int] = ()) -> str:
    """Who waits for whom, in one line.

    Args:
      waiting: those of the ranks that launched it which are known to wait; empty for all.
    """
    waiting = waiting or found.waiting
    have = "has" if len(waiting) == 1 else "have"
    told = f"{begin_ranks(waiting, found.hosts)} {have} waited {format_seconds(waited_s)} for "
    groups = by_value({rank: reason.message for rank, reason in found.reasons.items()})
    pieces = [
        f"{name_ranks(ranks, found.hosts)}, which "
        f"{message if len(ranks) == 1 else of_several(message)}"
        for message, ranks in groups.items()
    ]
    if len(groups) > MOST_GROUPS:
        others = [rank for ranks in list(groups.values())[MOST_GROUPS - 1 :] for rank in ranks]
        pieces = [*pieces[: MOST_GROUPS - 1], name_ranks(others, found.hosts)]
    launch = found.launch
    what = f" (launch {launch.seq + 1}, {launch.name})" if launch is not None else ""
    return f"{told}{'; for '.join(pieces)}{what}."


# --------------------------------------------------------------------------- different programs


@dataclass(frozen=True)
class Told:
    """What is said of a finding: its cause in a few words, then in lines, the cause first."""

    title: str
    lines: tuple[str, ...]


def tell_mismatch(found: Mismatch, scene: Scene) -> Told:
    """What each group of ranks launched, and why that may be."""
    if found.seq is None:
        who = f"{begin_ranks(found.culprits, scene.hosts)} and "
        who += name_ranks(found.others, scene.hosts)
        line = f"{who} launched different programs, further back than the journals go."
        return Told("Different programs", (line,))
    seq = found.seq
    title, cause, hint = _why_different(seq, found, scene)
    lines = [cause] if cause else []
    lines += _tell_launched(seq, found, scene)
    if refused := lockstep.refused(found.processes, seq, scene.reports):
        one = len(refused) == 1
        lines.append(
            f"{begin_ranks(refused, scene.hosts)} {'has' if one else 'have'} not launched "
            f"{'its' if one else 'their'} program: it was refused, because another rank had "
            "announced a different one first."
        )
    lines += _tell_compiling(found.processes, scene)
    lines += _tell_scalars(scene.reports)
    if hint:
        lines.append(f"Hint: {hint}")
    if (extra := _extra(seq, found, scene)) is not None and not extra.collective:
        lines.append(f"Hint: {_alone_hint(extra)}")
    return Told(title, tuple(lines))


def _tell_compiling(processes: str, scene: Scene) -> list[str]:
    """That ranks have not launched yet what they are said to have launched, and why they wait."""
    if not (ranks := lockstep.compiling(processes, scene.reports)):
        return []
    what = "was still compiling its program" if len(ranks) == 1 else "were still compiling theirs"
    return [
        f"{begin_ranks(ranks, scene.hosts)} {what}: on GPU, processes tune a program together, and "
        "each waits there for all of them."
    ]


def _tell_launched(seq: int, found: Mismatch, scene: Scene) -> list[str]:
    """What each group of ranks launched: what differs alone, where that is the inputs."""
    made = {ranks: scene.launches[ranks[0]][seq] for ranks in found.groups}
    first = next(iter(made.values()))
    alike = {(e.name, e.cell, e.line, e.within) for e in made.values()}
    inputs = {ranks: e.signature for ranks, e in made.items()}
    different = set(inputs.values())
    if len(alike) == 1 and len(different) == len(made) <= MOST_IN_LINE and "" not in different:
        told = signatures.apart(inputs)
        each = "; ".join(f"{name_ranks(r, scene.hosts)}: {what}" for r, what in told.items())
        what = _what_differs(different)
        place = _place(first)
        return [
            f"The ranks launched {first.name} with different {what}, as launch {seq + 1}: "
            f"{each}{place}."
        ]
    lines = [f"The ranks launched different programs as launch {seq + 1}:"]
    return lines + [
        f"  {name_ranks(ranks, scene.hosts)}: {program_line(made[ranks])}"
        for ranks in reversed(found.groups)
    ]


MOST_IN_LINE = 3  # groups of ranks whose inputs one line tells


def _what_differs(inputs: Collection[str]) -> str:
    """``shapes`` or ``shardings``, if only these differ between inputs; else ``inputs``."""
    if len({re.sub(r"@(\([^)]*\)|[^,\]]*)", "", one) for one in inputs}) == 1:
        return "shardings"
    return "shapes" if len({re.sub(r"\[.*?\]", "", one) for one in inputs}) == 1 else "inputs"


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


def _why_different(seq: int, found: Mismatch, scene: Scene) -> tuple[str, str, str]:
    """(the cause in a few words, in a sentence where it is known, else a hint)."""
    title = "Different programs"
    first, second = (scene.launches[r[0]] for r in (found.groups[-1], found.groups[0]))
    a, b = first[seq], second[seq]
    if any(wire.BROKEN_OFF in name for name in (a.name, b.name)):
        hint = (
            "where one process aborts a program, the others wait for it in the collectives, or "
            "continue without it."
        )
        return "Aborted program", "", hint
    if a.name == b.name and a.signature != b.signature:
        what = _what_differs((a.signature, b.signature))
        how = "pad or drop" if what == "shapes" else "change the cell"
        hint = f"{how} so that every process passes the same {what}."
        return f"Different {what}", "", hint
    if a.name == b.name and (a.cell, a.line, a.within) == (b.cell, b.line, b.within):
        what = "the same call compiled to different programs"
        if "<lambda>" in a.name:
            what = "another function, or one that has compiled to different programs"
        hint = (
            f"{what}: do constants, closures, jax.config or environment variables differ between "
            "the processes?"
        )
        return title, "", hint
    later_a = [first[s].name for s in sorted(first) if s >= seq]
    later_b = [second[s].name for s in sorted(second) if s >= seq]
    if len(later_a) > 1 and sorted(later_a) == sorted(later_b):
        hint = (
            "the same programs in another order: iterating over a set, a dict or a directory can "
            "differ between processes. Sort first."
        )
        return "Programs in different orders", "", hint
    for entry in (b, a):
        line = entry.line if entry.cell == scene.cell else None
        if line is not None and (node := _branch(scene.source, line)) is not None:
            told = _tell_branch(scene.source, node, line, entry)
            return f"Branch on line {node.lineno}", told, ""
    return title, "", "a branch that depends on the rank, or on data that differs between ranks."


def tell_crossed(found: Crossed, hosts: Mapping[int, str]) -> Told:
    """In which order each group of ranks launched programs of the two sets."""
    named = " and of ".join(name_ranks(map(int, one.split(","))) for one in found.sets)
    lines = [f"The ranks launched programs of {named} in different orders:"]
    for ranks, entry in reversed(found.firsts):
        if entry is not None:
            whose = name_ranks(map(int, entry.processes.split(",")))
            lines.append(f"  {name_ranks(ranks, hosts)}: first {program_line(entry)} (of {whose})")
    hint = (
        "Hint: ranks that share programs must launch them in the same order. Their results may "
        "be wrong."
    )
    return Told("Programs in different orders", (*lines, hint))


def program_line(entry: wire.Launch) -> str:
    signature = f"  {signatures.brief(entry.signature)}" if entry.signature else ""
    return f"{entry.name}{_place(entry)}{signature}"


def _place(entry: wire.Launch) -> str:
    """``, cell [4] line 3, in train.py line 7: step(x)``."""
    place = f", cell [{entry.cell}] line {entry.line}" if entry.cell is not None else ""
    return place + (f", in {entry.within}" if entry.within else "")


# --------------------------------------------------------------------------- a missing launch


def tell_missing(found: Missing, scene: Scene) -> Told:
    """Why ranks skipped a launch, if that is known; who did, how, and who waits where."""
    title, cause, hint = _why_missing(found, scene)
    lines = [cause] if cause else []
    skipped = by_value({rank: _tell_skipped(rank, found, scene) for rank in found.culprits})
    for (what, last), ranks in skipped.items():
        one = len(ranks) == 1
        told = f"{'its' if one else 'their'} last launch: {last}"
        if not last:  # the journal may not reach back to it
            none = f"none since launch {found.seq}" if found.seq else "none"
            told = f"{'it has' if one else 'they have'} launched {none}"
        lines.append(f"{begin_ranks(ranks, scene.hosts)} {what} ({told}).")
    lines += [_tell_waiting(ranks, found, scene) for ranks in _by_place(found.others, scene)]
    lines += _tell_compiling(found.processes, scene)
    lines += _tell_scalars(scene.reports)
    if hint:
        lines.append(f"Hint: {hint}")
    if found.wanted is not None and not found.wanted.collective:
        lines.append(f"Hint: {_alone_hint(found.wanted)}")
    return Told(title, tuple(lines))


def tell_earlier(rank: int, entry: wire.Launch, hosts: Mapping[int, str]) -> str:
    """Where a rank launched what has failed before this cell: in a signal's handler, say."""
    name = entry.name.partition(wire.BROKEN_OFF)[0]
    who = begin_ranks([rank], hosts)
    return (
        f"{who} had launched it before this cell (launch {entry.seq + 1}: {name}{_place(entry)})."
    )


def _by_place(ranks: Sequence[int], scene: Scene) -> list[list[int]]:
    places = {rank: (rank in scene.over, scene.reports[rank].state.line) for rank in ranks}
    return list(by_value(places).values())


def _tell_waiting(ranks: Sequence[int], found: Missing, scene: Scene) -> str:
    state, who = scene.reports[ranks[0]].state, begin_ranks(ranks, scene.hosts)
    wanted, source = found.wanted, scene.source
    own = wanted is not None and wanted.cell == scene.cell
    launch = ""
    if wanted is not None:
        is_told = own or ranks[0] in scene.over
        place = _place(replace(wanted, cell=None) if is_told else wanted)
        launch = f" (launch {wanted.seq + 1}: {wanted.name}{place})"
    if ranks[0] in scene.over:
        line = f" at cell [{wanted.cell}] line {wanted.line}" if wanted and wanted.line else ""
        call = _call_at(source, wanted.line, wanted) if wanted and own else ""
        return f"{who} launched {call or 'a program'}{line}{launch}."
    where = f"cell [{state.cell}] line {state.line}" if state.line else f"cell [{scene.cell}]"
    if wanted is not None and own and wanted.line != state.line:
        call = _call_at(source, wanted.line, wanted) or "the program"
        return f"{who} waited at {where} for {call} of line {wanted.line}{launch}."
    call = _call_at(source, state.line, wanted) if state.cell == scene.cell else ""
    call = call or _function(state)
    return f"{who} waited {f'in {call} ' if call else ''}at {where}{launch}."


def _function(state: wire.RankState) -> str:
    """The innermost function that a rank is in; "" where it has no name."""
    name = state.frame.partition(" ")[0]
    return "" if name.startswith("<") else name


def _tell_skipped(rank: int, found: Missing, scene: Scene) -> tuple[str, str]:
    """How a rank came to skip a launch, and its last one before ("" where none is known)."""
    # At a cell's end the scene has what was launched in it alone.
    entries = scene.launches[rank] or {
        e.seq: e
        for e in scene.reports[rank].launches
        if e.processes == found.processes and e.seq < found.seq
    }
    last = ""
    if entries:
        entry = entries[max(entries)]
        last = f"{entry.seq + 1}, {program_line(entry)}"
    wanted = f"launch {found.seq + 1}"
    if found.wanted is not None:
        wanted += f", {found.wanted.name.partition(wire.BROKEN_OFF)[0]}"
    if (error := scene.errors.get(rank)) is not None:
        line = f" on line {error.lineno}" if error.lineno else ""
        return f"raised {error.ename}{line} before {wanted}", last
    if scene.reports[rank].state.state == "dead" and rank not in scene.runners:
        return f"died before {wanted}", last
    if scene.reports[rank].state.seq == 0 and rank not in scene.runners:
        return "did not run the cell", last
    if rank not in scene.over:
        return f"had not come to {wanted}", last
    return f"finished the cell without {wanted}", last


def _why_missing(found: Missing, scene: Scene) -> tuple[str, str, str]:
    """(the cause in a few words, in a sentence where its rank's own says less, a hint)."""
    culprits = name_ranks(found.culprits, scene.hosts)
    if left_out := [r for r in found.culprits if r not in scene.runners]:
        title = f"Cell not run on {name_ranks(left_out, scene.hosts)}"
        hint = "a program that spans processes must be launched by all of them: no --ranks."
        return title, "", hint
    if failed := [r for r in found.culprits if r in scene.errors]:
        title = f"{scene.errors[failed[0]].ename} on {name_ranks(failed, scene.hosts)}"
        return title, "", FAILED_HINT
    if (line := _wanted_line(found, scene)) is None:
        return f"Launch skipped on {culprits}", "", ""
    branch = _branch(scene.source, line)
    loop = _innermost(_on(scene.source, line, ast.For, ast.While, ast.AsyncFor))
    if branch is not None and not (_is_inside(loop, branch) and _has_run(line, found, scene)):
        told = _tell_branch(scene.source, branch, line, found.wanted)
        return f"Branch on line {branch.lineno}", told, ""
    if (stopped := _tell_thread(found, scene)) is not None:
        return *stopped, FAILED_HINT
    caught = _within_try(scene.source, line)
    if loop is None:
        told = ""
        if caught is not None:
            told = (
                f"Line {line} is in the `try` of line {caught.lineno}, which may have ended in an "
                f"error on {culprits}."
            )
        return f"Launch skipped on {culprits}", told, ""
    more = f"ran more often on {name_ranks(found.others, scene.hosts)} than on {culprits}."
    kinds = {type(node) for node in ast.walk(loop)}
    if ast.Continue in kinds or (caught is not None and _is_inside(caught, loop)):
        hint = "what `except` or `continue` skips in a loop must be the same on every process."
        return f"Line {line}, in a loop", f"Line {line} {more}", hint
    hint = "give every process the same number of steps (the last batch is the usual cause)."
    if ast.Break in kinds:
        hint = "what ends a loop by `break` must be the same on every process."
    return f"Loop on line {loop.lineno}", f"The loop on line {loop.lineno} {more}", hint


def _tell_thread(found: Missing, scene: Scene) -> tuple[str, str] | None:
    """What a thread of a rank that skipped a launch has ended with, and none of the others'.

    Of a loader's that fails, the cell sees the end of its loop.
    """
    errors = {r: one.thread_error for r, one in scene.reports.items() if one.thread_error}
    elsewhere = {errors[rank].ename for rank in found.others if rank in errors}
    for rank in found.culprits:
        if (error := errors.get(rank)) is not None and error.ename not in elsewhere:
            who = name_ranks([rank], scene.hosts)
            return f"{error.ename} in a thread of {who}", error.tell(who)
    return None


def _is_inside(inner: ast.stmt | None, outer: ast.stmt) -> bool:
    """Whether a statement is within another one, of two that are around the same line."""
    return inner is not None and inner.lineno > outer.lineno


def _has_run(line: int, found: Missing, scene: Scene) -> bool:
    """Whether a rank that skipped a launch of this line has made another one of it."""
    made = (e for rank in found.culprits for e in scene.launches[rank].values())
    return any((e.cell, e.line) == (scene.cell, line) for e in made)


def _wanted_line(found: Missing, scene: Scene) -> int | None:
    """The line of this cell that others have launched from once more; None: another cell's.

    Where two lines launch one program, it need not be the line of the launch at that place.
    """
    wanted = found.wanted
    if wanted is None or wanted.cell != scene.cell:
        return None
    more, fewer = (
        _lines_of(scene.launches[ranks[0]], wanted.cell_seq, found.seq)
        for ranks in (found.others, found.culprits)
    )
    apart = [line for line in more | fewer if more[line] != fewer[line]]
    is_one = len(apart) == 1 and more[apart[0]] > fewer[apart[0]]
    return apart[0] if is_one else wanted.line


def _lines_of(entries: Mapping[int, wire.Launch], cell_seq: int, last: int) -> Counter[int | None]:
    """How often each line of a cell has launched, up to a place."""
    own = [e for seq, e in entries.items() if e.cell_seq == cell_seq and seq <= last]
    return Counter(entry.line for entry in own)


def _within_try(source: str, line: int) -> ast.Try | ast.TryStar | None:
    """The innermost ``try`` with handlers that a line is in, be it in one of these."""
    found: list[ast.Try | ast.TryStar] = _on(source, line, ast.Try, ast.TryStar)
    return _innermost(node for node in found if node.handlers)


# --------------------------------------------------------------------------- a cell's source


def _on(source: str, line: int | None, *kinds: type[N]) -> list[N]:
    """The nodes of these kinds that a line is in."""
    tree = tree_of(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)] if tree is not None else []
    return [n for n in nodes if line is not None and n.lineno <= line <= (n.end_lineno or 0)]


def _innermost(nodes: Iterable[N]) -> N | None:
    """Of nodes that are all around one line."""
    return max(nodes, key=lambda node: node.lineno, default=None)


def _branch(source: str, line: int | None) -> ast.If | ast.While | None:
    """The ``if`` or ``while`` that decides whether a line runs."""
    found: list[ast.If | ast.While] = _on(source, line, ast.If, ast.While)
    node = _innermost(found)
    return None if node is None or isinstance(node.test, ast.Constant) else node


def _tell_branch(
    source: str, node: ast.If | ast.While, line: int, entry: wire.Launch | None = None
) -> str:
    """How it decides whether the line runs. ``entry``: what the line has launched."""
    test = ast.unparse(node.test)
    if isinstance(node, ast.If) and any(
        part.lineno <= line <= (part.end_lineno or 0) for part in node.orelse
    ):
        return f"Line {node.lineno} runs line {line} only if `{test}` is false."
    call = _call_at(source, line, entry, node.test) or f"line {line}"
    if call == f"line {node.lineno}":
        return f"What line {line} launches depends on `{test}`."
    word = "while" if isinstance(node, ast.While) else "if"
    return f"Line {node.lineno} runs {call} only `{word} {test}`."


_PRINTING = ("print", "float", "int", "str", "repr", "bool", "range", "len", "enumerate")
_OF_HOST = re.compile(
    r"(np|numpy|time|os|sys|math|random|logging|json|datetime)\.|"
    r"jax\.(process_index|process_count|(local_)?devices|(local_)?device_count)$"
)


def _call_at(
    source: str,
    line: int | None,
    entry: wire.Launch | None = None,
    but: ast.expr | None = None,
) -> str:
    """The call on a line that launches, as it is written: ``jnp.sum``.

    That is the one of the program's name, else the outermost one that may launch.

    Args:
      entry: what has been launched there, if that is known.
      but: what has not launched it.
    """
    left_out = set(ast.walk(but)) if but is not None else set()
    calls = [node for node in _on(source, line, ast.Call) if node not in left_out]
    loops: list[ast.For | ast.AsyncFor] = _on(source, line, ast.For, ast.AsyncFor)
    loops = [loop for loop in loops if loop.body[0].lineno == line]
    looped_over = {
        node for loop in loops for node in ast.walk(loop.iter)
    }  # before what it launches
    calls.sort(key=lambda node: (node in looped_over, node.col_offset))
    names = [ast.unparse(node.func) for node in calls]
    names = [name for name in names if name not in _PRINTING and len(name) < 60]
    program = _function_of(entry.name) if entry is not None else ""
    likely = [name for name in names if name.rpartition(".")[2] == program]
    likely += [name for name in names if not _OF_HOST.match(name)]
    return next(iter([*likely, *names]), "")


def _function_of(program: str) -> str:
    """What was called for a program: ``sum`` for jit(_reduce_sum)."""
    name = program.partition("(")[2].partition(")")[0]
    return name.removeprefix("_").removeprefix("reduce_")


def _tell_scalars(reports: Mapping[int, wire.RankReport]) -> list[str]:
    """Small values of the cell's names that differ between the ranks."""
    names = sorted({n for report in reports.values() for n in report.locals})
    lines = []
    for name in names:
        values = by_value({r: one.locals[name] for r, one in reports.items() if name in one.locals})
        if 1 < len(values) <= 4 and sum(map(len, values.values())) == len(reports):
            told = ", ".join(f"{v} on {name_ranks(r)}" for v, r in values.items())
            lines.append(f"{name} = {told}.")
    return lines[:3]


def tell_working(
    reports: Mapping[int, wire.RankReport],
    ended: Iterable[int],
    waited_s: float,
    hosts: Mapping[int, str] | None = None,
) -> str:
    """Where ranks still are while others have ended the cell, in one line.

    Args:
      hosts: of all ranks, where there are several; else those of ``reports``.
    """
    hosts = hosts_of(reports) if hosts is None else hosts
    groups = list(by_value({r: _doing(report) for r, report in reports.items()}).items())
    if len(groups) > MOST_GROUPS:
        others = [rank for _, ranks in groups[MOST_GROUPS - 1 :] for rank in ranks]
        groups = [*groups[: MOST_GROUPS - 1], ("has not ended it", others)]
    pieces = []
    for doing, ranks in groups:
        still = "still " if doing.startswith("works ") else ""
        said = doing if len(ranks) == 1 else of_several(doing)
        pieces.append(f"{name_ranks(ranks, hosts)} {still}{said}")
    done = list(ended)
    have = "has" if len(done) == 1 else "have"
    told = f"{'; '.join(pieces)} ({format_seconds(waited_s)}); {name_ranks(done, hosts)} {have} "
    return f"R{told[1:]}ended the cell."


def _doing(report: wire.RankReport) -> str:
    """What a rank does that has not ended a cell."""
    if report.state.gate:
        return "has not begun it, since an earlier cell has not ended on all ranks"
    where = place_of(report) or report.state.frame
    return f"works at {where}" if where else "has not begun it"


def tell_left(
    ranks: Sequence[int], hosts: Mapping[int, str] | None = None, is_over: bool = False
) -> list[str]:
    """What is to be known of ranks that a script has ended by ``os._exit(0)``; empty for none.

    Nobody can ask them any more whether they had made what others wait for. ``is_over``: the script
    has failed since.
    """
    if not ranks:
        return []
    processes = "process has" if len(ranks) == 1 else "processes have"
    whom = "it" if len(ranks) == 1 else "them"
    then = "never ends, or fails" if is_over else "never ends; Ctrl-C ends the run"
    return [
        f"{begin_ranks(ranks, hosts)}: the {processes} ended with exit code 0 (os._exit). A "
        f"collective that waits for {whom} {then}."
    ]


def tell_places(
    reports: Mapping[int, wire.RankReport], ranks: Iterable[int], source: str, cell: int
) -> list[str]:
    """One line for each place of a cell where some of these ranks are, or were when asked."""

    def place(report: wire.RankReport | None) -> str:
        if report is None:
            return "did not respond"
        if (state := report.state).state != "running":
            return "had ended the cell"
        if not state.line:
            return "was in " + (_function(state) or f"cell [{cell}]")
        call = _call_at(source, state.line) if state.cell == cell else ""
        return f"was {f'in {call} ' if call else ''}at cell [{state.cell}] line {state.line}"

    ranks, hosts = list(ranks), hosts_of(reports)
    lines = [
        f"{begin_ranks(group, hosts)} {where if len(group) == 1 else of_several(where)}."
        for where, group in by_value({rank: place(reports.get(rank)) for rank in ranks}).items()
    ]
    return lines + _tell_scalars({r: reports[r] for r in ranks if r in reports})
