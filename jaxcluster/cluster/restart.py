"""The last resort that keeps the session: save every rank, and restore what was saved.

It needs no rank's main thread, so it works while all of them hang in different collectives, and
when ranks have died: a dead rank's successor takes the values that all ranks share from a survivor.
``respawn`` gives the ranks new processes in between.
"""

from __future__ import annotations

import ast
import queue
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.cluster.world import World
from jaxcluster.errors import NoCluster, RankHung, RecoveryError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.records.kept import Kept, StateFolder
from jaxcluster.wire.link import Event, Sink, unwrap

SAVE_S = 300.0
RESTORE_S = 300.0
RANDOM = ("np.random's state", "random's state")  # as engine.state.randomness calls them
FEW = 8  # lost names that stand in the line
LOOK_S = 0.05  # between two looks whether it is still wanted
Check = Callable[[], None]  # raises where what goes on is to end


@dataclass(frozen=True)
class Restored:
    """What came back.

    Attributes:
      kept: the names that all ranks which had them have again.
      lost: the others, and why.
      replaced: ranks whose processes had died.
      older: names that are what they were before the cell.
      nothing_lived: there was no rank whose variables could be saved.
    """

    kept: tuple[str, ...]
    lost: dict[str, str] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()
    seconds: float = 0.0
    nothing_lived: bool = False
    older: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(filter(None, [self.headline, self.lost_text]))

    @property
    def lost_text(self) -> str:
        """All that is lost, whole and wrapped."""
        if not self.lost:
            return ""
        text = f"Lost: {', '.join(self.lost_names)}."
        if len(self.lost) <= FEW:
            return text
        return "\n" + textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False)

    @property
    def headline(self) -> str:
        """What was done and what was kept, without the list of what was lost."""
        if self.nothing_lived:
            return (
                f"New processes after {self.seconds:.1f} s: no rank lived, so all variables are "
                "lost."
            )
        n = len(self.kept)
        replaced = f", {name_ranks(self.replaced)} replaced" if self.replaced else ""
        text = (
            f"New processes after {self.seconds:.1f} s{replaced}: {n} variable"
            f"{'s' if n != 1 else ''} kept."
        )
        if self.older:
            text += f" As before the cell: {', '.join(self.older)}."
        return text

    @property
    def lost_names(self) -> list[str]:
        """Each lost name with its reason."""
        return [f"{name} ({why})" for name, why in sorted(self.lost.items())]


# --------------------------------------------------------------------------- saving


def save(
    world: World, cells: Sequence[CellRecord], check: Check, cell_is_undone: bool = False
) -> Kept:
    """Have each living rank write its variables; nothing is ended by it.

    Args:
      cells: the last ones that were sent.

    Raises:
      RecoveryError: no living rank could be saved.
    """
    folder = world.state_folder()
    try:
        reports = _snapshots(world, cells, folder, check)
    except BaseException:
        folder.remove()
        raise
    silent = [r for r in range(world.num_processes) if r not in reports]
    return Kept(folder, reports, cell_is_undone, {r: _names_of(world, cells, r) for r in silent})


def _snapshots(
    world: World, cells: Sequence[CellRecord], folder: StateFolder, check: Check
) -> dict[int, dict[str, Any]]:
    """What each living rank says that it has written; empty if none lives."""
    saved: dict[int, dict[str, Any]] = {}
    answers: dict[int, Event] = {}
    # Hashes tell the values that all ranks share from those that each has of its own.
    digests = bool(world.dead)
    try:
        with world.turns.quiet() as last:
            cell = max(last.values(), default=0)  # what "before the cell" means on all ranks
    except NoCluster:  # nobody can hand out a cell any more
        cell = max((record.seq for record in cells), default=0)
    while alive := [r for r in range(world.num_processes) if r not in world.dead]:
        bodies = {r: {"path": folder.path_of(r), "digests": digests, "cell": cell} for r in alive}
        answers = ask(world, "snapshot", bodies, SAVE_S, check)
        saved = {rank: event.body for rank, event in answers.items() if event.op == "reply"}
        if digests or len(saved) == len(alive):
            break
        digests = True  # one has died meanwhile, so now they are needed
    died = [rank for rank, event in answers.items() if event.op == "died"]
    if not saved and len(died) < len(alive):
        why = next((str(e.body.get("message", e.body)) for e in answers.values()), "none answered")
        raise RecoveryError(
            f"No rank's variables could be saved ({why}).",
            "%jaxcluster restart --clean gives you empty ranks.",
        )
    return saved


def _names_of(world: World, cells: Sequence[CellRecord], rank: int) -> set[str] | None:
    """The names that a rank was heard to have, and those that it may have bound since."""
    found = world.names.get(rank)
    open_ = [cell for cell in cells if rank in cell.ranks and rank not in cell.replies]
    bound = {name for cell in open_ for name in bound_names(cell.source)}
    return None if found is None else found | bound


def ask(
    world: World, op: str, bodies: Mapping[int, Any], timeout_s: float, check: Check
) -> dict[int, Event]:
    """Each rank's answer; ``check`` is called now and then, and may raise."""
    sink = Sink()
    ids = world.link.request_each(bodies, op, sink=sink)
    found: dict[int, Event] = {}
    deadline = time.monotonic() + timeout_s
    try:
        while len(found) < len(ids) and time.monotonic() < deadline:
            check()
            try:
                event = sink.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            found[event.rank] = event
    finally:
        world.link.forget(ids)
    return found


def bound_names(source: str) -> list[str]:
    """The names of the namespace that a cell's own statements bind, also by import, def or for.

    Not those of its functions and comprehensions, which are their own.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                continue
            case ast.alias():
                found.add(node.asname or node.name.partition(".")[0])
            case ast.ExceptHandler():
                pass  # its name is unbound at its end
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case _:
                pass
        left.extend(ast.iter_child_nodes(node))
    return sorted(found - {"*"})


# --------------------------------------------------------------------------- what comes back


@dataclass(frozen=True)
class Plan:
    """Which names come back, from when, and which are lost on all ranks alike.

    Attributes:
      names: those that are bound again on the ranks that had them.
      older: those of ``names`` that are taken from before the cell.
      gone: names that were not there before the cell, which is undone.
      shared: those of ``names`` that the successors of dead ranks get from ``donor`` too.
      lost: all others, and why.
    """

    names: frozenset[str]
    older: frozenset[str]
    gone: frozenset[str]
    shared: frozenset[str]
    lost: dict[str, str]
    donor: int


def plan(
    reports: Mapping[int, dict[str, Any]],
    dead_names: Mapping[int, set[str] | None],
    cell_is_undone: bool = False,
) -> Plan:
    """What to restore of what each living rank has saved. Pure.

    All ranks take a name from the same moment: rank 0's ``params`` after the cell and rank 1's from
    before it would be silently wrong together. That is the newest where all ranks have it, and
    what was before the cell where one of them lost it in there, or where the cell is to be undone.
    Where a rank does not know what was before the cell (it had to let go of it), none goes back.
    """
    then = {rank: _as_before(report) for rank, report in reports.items()}
    changed = {n for r in reports.values() for n in _all_names(r["before"])}
    changed |= {n for r in reports.values() for n in r["before"]["absent"]}
    if not all(report["before"].get("known", True) for report in reports.values()):
        changed = set()
    lost = _lost_in(reports.values())
    lost_then = _lost_in(then.values())
    there = {n for report in then.values() for n in _all_names(report)}
    older, gone = set(), set()
    for name in changed:
        if cell_is_undone and name not in there:
            gone.add(name)
        elif (cell_is_undone or name in lost) and name in there and name not in lost_then:
            older.add(name)
    chosen = {rank: _mixed(report, then[rank], older) for rank, report in reports.items()}
    lost = {n: why for n, why in _lost_in(chosen.values()).items() if n not in gone}
    shared: list[str] = []
    if dead_names:
        shared, own = shared_names(chosen, dead_names)
        why_own = "each rank had its own, and one died with it"
        if len(reports) == 1:
            why_own = "it may have been the only survivor's own"
        lost |= dict.fromkeys(own, why_own)
        known = {n for report in chosen.values() for n in _all_names(report)}
        had: dict[str, list[int]] = {}
        for rank, names in sorted(dead_names.items()):
            for name in (names or set()) - known - gone:
                had.setdefault(name, []).append(rank)
        # Of a cell that nobody has ended it is known only what it may have bound, on each of them.
        for name, ranks in had.items():
            can = "had it" if len(ranks) == 1 else "can have had it"
            lost.setdefault(name, f"only {name_ranks(ranks)} {can}, which died")
    names = {n for report in chosen.values() for n in report["kept"]} - set(lost) - gone
    return Plan(
        frozenset(names),
        frozenset(older & names),
        frozenset(gone),
        frozenset(set(shared) - set(lost) - gone),
        lost,
        min(reports),
    )


def _all_names(report: Mapping[str, Any]) -> set[str]:
    return {*report["kept"], *report["lost"]}


def _lost_in(reports: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    lost: dict[str, str] = {}
    for report in reports:
        for name, why in report["lost"].items():
            lost.setdefault(name, why)
    return lost


def _as_before(report: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's report, were it as it was before the cell."""
    before = report["before"]
    return _mixed(report, before, {*_all_names(before), *before["absent"]})


def _mixed(
    newest: Mapping[str, Any], before: Mapping[str, Any], older: Iterable[str]
) -> dict[str, Any]:
    """A rank's report of the newest values, and of those before the cell for ``older``."""
    chosen = set(older)
    parts: dict[str, Any] = {}
    for part in ("kept", "common"):
        parts[part] = [n for n in newest[part] if n not in chosen]
        parts[part] += [n for n in before[part] if n in chosen]
    for part in ("lost", "spanning", "digests"):
        parts[part] = {k: v for k, v in newest[part].items() if k not in chosen}
        parts[part] |= {k: v for k, v in before[part].items() if k in chosen}
    return parts


def shared_names(
    saved: Mapping[int, dict[str, Any]], dead_names: Mapping[int, set[str] | None]
) -> tuple[list[str], list[str]]:
    """The names that all survivors share, and those of which a dead rank had a value of its own.

    Shared are those that all survivors have with equal values. A single survivor has nobody to
    compare with: then none counts as shared but what spans processes or says nothing of its rank
    (imports, meshes, functions), since a rank's own value on another rank would be silently wrong.
    """
    first, *others = saved.values()
    shared: list[str] = []
    own: list[str] = []
    for name in sorted({n for body in saved.values() for n in body["kept"]}):
        if all(name in body["kept"] for body in saved.values()):
            (shared if _is_equal(name, first, others) else own).append(name)
        elif any(name in (known or ()) for known in dead_names.values()):
            own.append(name)  # else it stays with those that have it
    return shared, own


def _is_equal(name: str, first: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    if not others:
        return name in first["spanning"] or name in first["common"]
    digest = first["digests"].get(name)
    return digest is not None and all(body["digests"].get(name) == digest for body in others)


# --------------------------------------------------------------------------- restoring


def restore(world: World, saved: Kept, when: str, check: Check) -> Restored:
    """Bind what was saved on the new processes: a name on all ranks that had it, or on none.

    Args:
      when: when names were lost that are lost, as in "in cell [3]".
    """
    missing = tuple(r for r in range(world.num_processes) if r not in saved.reports)
    if not saved.reports:
        return Restored((), replaced=missing, nothing_lived=True)
    found = plan(saved.reports, saved.dead_names, saved.cell_is_undone)
    body = {"names": sorted(found.names), "before": sorted(found.older)}
    shared = {"names": sorted(found.shared), "before": sorted(found.older & found.shared)}
    drawn = [report["random"] for report in saved.reports.values()]
    own = [n for n in RANDOM if len(drawn) == 1 or any(d[n] != drawn[0][n] for d in drawn)]
    bodies: dict[int, dict[str, Any]] = {}
    for rank in range(world.num_processes):
        bodies[rank] = {**body, "path": saved.folder.path_of(rank)}
        if rank in missing:
            donor = saved.folder.donor_for(rank, found.donor, list(saved.reports))
            bodies[rank] |= {**shared, "from_rank": donor, "skip": own}
    answers = ask_all(world, "restore", bodies, RESTORE_S, check)
    lost = dict(found.lost)
    for rank, reply in sorted(answers.items()):
        for name, why in reply["lost"].items():
            only = "its only copy died with the rank" if rank not in saved.reports else why
            lost.setdefault(name, only)
    back = found.names - set(lost)
    left: dict[str, str] = {}
    for report in saved.reports.values():
        left |= report["left"]
    for reply in answers.values():
        left |= reply["left"]
    reasons = {name: f"was lost {when} ({why})" for name, why in lost.items()}
    for report in saved.reports.values():  # those of earlier times
        for name, why in report["unbound"].items():
            if name not in back:
                reasons.setdefault(name, why)
    unbound = {"names": sorted(lost), "lost": reasons}
    ask_all(world, "unbind", dict.fromkeys(bodies, unbound), RESTORE_S, check)
    for rank, reply in answers.items():
        world.names[rank] = set(reply["restored"]) - set(lost)
    if missing and RANDOM[0] in own and any(d["seeded"] for d in drawn):
        left[RANDOM[0]] = "each rank had its own, and one died with it"
    older = tuple(sorted(found.older & back))
    return Restored(tuple(sorted(back)), lost | left, missing, older=older)


def ask_all(
    world: World, op: str, bodies: Mapping[int, Any], timeout_s: float, check: Check
) -> dict[int, Any]:
    """Like ``ask``, for ranks that must all answer.

    Raises:
      RankDied, RankError, RankHung, RecoveryError: one of them did not.
    """
    answers = ask(world, op, bodies, timeout_s, check)
    bodies_back = {rank: unwrap(event) for rank, event in sorted(answers.items())}
    if missing := sorted(set(bodies) - set(answers)):
        raise RankHung(
            f"{name_ranks(missing).capitalize()} did not {op} within {timeout_s:g} s.",
            "%jaxcluster restart tries again.",
            missing,
        )
    return bodies_back
