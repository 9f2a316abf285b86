"""The last resort that keeps the session: save every rank, and restore what was saved.

It needs no rank's main thread, so it works while all of them hang in different collectives, and
when ranks have died: a dead rank's successor takes from a survivor what it is known to have had as
well, and gets what else it has told of itself.
``respawn`` gives the ranks new processes in between.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.restoring import Check, Restoring
from jaxcluster.cluster.what_returns import OWN, plan, tell_unheard
from jaxcluster.cluster.world import World
from jaxcluster.errors import LaunchError, RecoveryError
from jaxcluster.model import lineage
from jaxcluster.model.last_known import LastKnown
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks, tell_each
from jaxcluster.records.saved_states import Dead, Kept, StateFolder
from jaxcluster.text import plural
from jaxcluster.wire.link import Event, replies
from jaxcluster.wire.ops.state import (
    NewDevices,
    SavePlace,
    SaveReport,
    Snapshot,
    Take,
)
from jaxcluster.wire.ops.values import Unbind

SAVE_S = 300.0
RESTORE_S = 300.0
AGAIN = "%jaxcluster restart tries again."
RANDOM = ("np.random's state", "random's state")  # as engine.state.randomness calls them
FEW = 8  # lost names that are in the line
AT_LIMIT = (
    "The rank's own limits do not allow it (ulimit -n, ulimit -f), and they can't be raised: close "
    "files that a cell has opened, then %jaxcluster restart"
)
_WORD = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Restored:
    """What came back.

    Attributes:
      kept: the names that all ranks which had them have again.
      lost: the others, and why.
      replaced: ranks whose processes had died.
      older: names that are what they were before the cell.
      nothing_lived: there was no rank whose variables could be saved.
      gone: why what ranks had saved could not be read any more; "" where all could.
      cells: those that make the lost names again, as ``lineage.tell`` has them; "" if not known.
      ranks: how many there are now, where there were others before; else 0.
      undone: the cells of which nothing is left.
      notes: what is to be known of some variables since then.
    """

    kept: tuple[str, ...]
    lost: dict[str, str] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()
    seconds: float = 0.0
    nothing_lived: bool = False
    older: tuple[str, ...] = ()
    gone: str = ""
    cells: str = ""
    ranks: int = 0
    undone: frozenset[int] = frozenset()
    notes: str = ""

    def __str__(self) -> str:
        again = f"To make them again, run {self.cells}." if self.cells else ""
        return " ".join(filter(None, [self.headline, self.lost_text, again, self.notes]))

    @property
    def lost_text(self) -> str:
        """All that is lost, whole and wrapped."""
        if not self.lost:
            return ""
        text = f"Lost: {', '.join(self.lost_names)}."
        if self.nothing_lived:
            text = f"They were {', '.join(sorted(self.lost))}."
        if len(self.lost) <= FEW:
            return text
        return "\n" + textwrap.fill(text, 100, subsequent_indent="  ", break_long_words=False)

    @property
    def headline(self) -> str:
        """What was done and what was kept, without the list of what was lost."""
        if self.nothing_lived:
            return (
                f"New processes after {self.seconds:.1f} s: no rank survived, so all variables "
                "are lost."
            )
        n = len(self.kept)
        replaced = f", {name_ranks(self.replaced)} replaced" if self.replaced else ""
        what = plural(self.ranks, "rank") if self.ranks else "New processes"
        text = (
            f"{what} after {self.seconds:.1f} s{replaced}: {n} variable"
            f"{'s' if n != 1 else ''} kept."
        )
        if self.gone:
            text += f" The saved variables are gone: {self.gone}."
        if self.older:
            text += f" As before the cell: {', '.join(self.older)}."
        return text

    @property
    def lost_names(self) -> list[str]:
        """Each lost name with its reason."""
        return [f"{name} ({why})" for name, why in sorted(self.lost.items())]


# --------------------------------------------------------------------------- saving


@dataclass(frozen=True)
class Resize:
    """Another number of ranks for a cluster.

    Attributes:
      spec: what the cluster is then.
      devices: how many these have; 0: not known yet.
      mesh: the sizes of the meshes' axes that were named.
      without_lost: hosts are lost, and it goes on without them and their ranks.
    """

    spec: wire.ClusterSpec
    devices: int
    mesh: Mapping[str, int]
    without_lost: bool = False


def save(
    world: World,
    cells: Sequence[CellRecord],
    last: Mapping[int, int] | None,
    check: Check,
    cell_is_undone: bool = False,
    resize: Resize | None = None,
) -> Kept:
    """Have each living rank write its variables; nothing is ended by it.

    The caller has the turn.

    Args:
      cells: the last ones that were sent.
      last: the seq of the last cell that any notebook has sent to each rank; None: nobody knows.
      resize: what it is for, where it is that.

    Raises:
      RecoveryError: a rank that lives could not be saved, and why.
    """
    undone = _undone(world, cells, cell_is_undone)
    folder = world.processes.state_folder()
    try:
        if last is None:
            last = {rank: record.seq for record in cells for rank in record.ranks}
        newest = dict.fromkeys(range(world.num_processes), max(last.values(), default=0))
        before = newest | taken_back_on(cells, undone)
        reports = _snapshots(world, before, folder, check, resize)
    except BaseException:
        folder.remove()
        raise
    silent = [r for r in range(world.num_processes) if r not in reports]
    own, first = world.own_cells, world.record.last_seq
    sources = {seq: text for one in reports.values() for seq, text in one.sources.items()}
    dead = {
        r: _dead(world.told, cells, r, last.get(r, 0), undone, own, first, sources) for r in silent
    }
    return Kept(
        folder, reports, bool(undone), dead, world.num_processes,
        mesh=resize.mesh if resize is not None else {}, undone=_with_undone(cells, undone),
    )  # fmt: skip


def _undone(world: World, cells: Sequence[CellRecord], cell_is_undone: bool) -> int:
    """The seq of the cell that is taken back; 0: none is. Cells may be queued behind it."""
    taken = [cell for cell in cells if cell.undone] if cell_is_undone else []
    last = max(taken or cells, key=lambda cell: cell.seq, default=None)
    return last.seq if last is not None and (cell_is_undone or _died_with(world, last)) else 0


def _with_undone(cells: Sequence[CellRecord], undone: int) -> frozenset[int]:
    """The cells that are taken back where ``undone`` is: also what was queued behind it.

    One may have begun on ranks that were not in the cell before it, and been aborted there.
    """
    later = {c.seq for c in cells if c.seq > undone and (c.is_open or c.is_aborted)}
    return frozenset({undone, *later}) if undone else frozenset()


def taken_back_on(cells: Sequence[CellRecord], undone: int) -> dict[int, int]:
    """By rank the first cell that is taken back on it, where ``undone`` is."""
    found: dict[int, int] = {}
    taken = _with_undone(cells, undone)
    for cell in sorted(cells, key=lambda cell: cell.seq):
        if cell.seq in taken:
            found = dict.fromkeys(cell.ranks, cell.seq) | found
    return found


def _died_with(world: World, cell: CellRecord) -> bool:
    """Whether all ranks of a cell that has not ended have died: nothing of it is there any more."""
    return cell.is_open and world.dead.keys() >= {*cell.ranks}


def _snapshots(
    world: World,
    before: Mapping[int, int],
    folder: StateFolder,
    check: Check,
    resize: Resize | None,
) -> dict[int, SaveReport]:
    """What each living rank says that it has written; empty if none lives.

    Args:
      before: what "before the cell" means, by rank.
    """
    saved: dict[int, SaveReport] = {}
    # Hashes tell the values that all ranks share from those that each has of its own. They are
    # needed where one has died, and a host may yet be lost with what its ranks have saved.
    digests = bool(world.dead) or len({f.host_key for f in world.record.facts}) > 1
    wanted = None
    if resize is not None:
        digests, wanted = True, NewDevices(resize.devices, dict(resize.mesh))
    while alive := [r for r in range(world.num_processes) if r not in world.dead]:
        places = {r: [SavePlace(*place) for place in folder.places_for(r)] for r in alive}
        each = {r: Snapshot(places[r], digests, before[r], wanted) for r in alive}
        answers = world.link.gather(each, each, timeout_s=SAVE_S, check=check)
        saved = replies(answers)
        living = [r for r in alive if r not in world.dead]
        if failed := {r: answers.get(r) for r in living if r not in saved}:
            raise _not_saved(failed, folder)
        if digests or len(saved) == len(alive):
            break
        digests = True  # one has died meanwhile, so now they are needed
    return saved


def _not_saved(failed: Mapping[int, Event[Any] | None], folder: StateFolder) -> RecoveryError:
    """That ranks which live could not be saved. They are not given up for that."""
    again, silent = "Try again: %jaxcluster restart", f"no answer within {SAVE_S:g} s"
    for _, event in sorted(failed.items()):
        if event is not None and event.ename in ("CannotSave", "OSError"):
            again = folder.hint
        if event is not None and event.ename == "AtLimit":
            again = AT_LIMIT
    told = tell_each({r: silent if event is None else event.why for r, event in failed.items()})
    return RecoveryError(
        f"The variables of {name_ranks(failed)} could not be saved, so nothing was ended or lost "
        f"({told}).",
        f"{again}\n%jaxcluster restart --clean gives you empty ranks instead.",
    )


def _dead(
    told: Mapping[int, LastKnown],
    cells: Sequence[CellRecord],
    rank: int,
    last: int,
    undone: int = 0,
    own: Set[int] = frozenset(),
    first: int = 0,
    sources: Mapping[int, str] | None = None,
) -> Dead:
    """What was heard of a rank that is dead.

    Args:
      cells: the last ones that this notebook has sent.
      last: the last one that any notebook has sent to the rank.
      undone: the seq of the cell that is taken back, with those behind it; 0: none is.
      own: all cells that this notebook has sent to these processes.
      first: the last cell before there were these.
      sources: those of other notebooks' cells that living ranks know.
    """
    heard = told.get(rank)
    since = heard.seq if heard is not None else 0
    others = {*range(max(since, first) + 1, last + 1)} - own - {cell.seq for cell in cells}
    others = {seq for seq in others if not undone or seq < undone}
    unknown = others - (sources or {}).keys()
    if heard is None:
        return Dead(unheard=since if others else None)
    unheard = since if unknown else None
    open_ = [c for c in cells if rank in c.ranks and rank not in c.replies]
    texts = [c.source for c in open_ if not undone or c.seq < undone]
    texts += [sources[seq] for seq in others - unknown] if sources else []
    bound = {name for text in texts for name in bound_names(text)}
    names, maybe = frozenset(heard.names | bound), frozenset(bound - heard.names)
    if heard.is_spoiled or unknown:  # another notebook may have changed any of them
        return Dead(names, maybe=maybe, unheard=unheard)
    mentioned = {word for text in texts for word in _WORD.findall(text)}
    values = {n: text for n, text in heard.known().items() if n not in mentioned}
    then = {r: one.known(until=heard.seq) for r, one in [*told.items()] if r != rank}
    return Dead(names, True, values, then, maybe)


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


# --------------------------------------------------------------------------- restoring


def restore(world: World, saved: Kept, check: Check) -> Restored:
    """Bind what was saved on the new processes: a name on all ranks that had it, or on none.

    Raises:
      NotBrought: a rank could not read what another host has. It can be brought to it.
      RecoveryError, RankDied, RankError, RankHung: a rank could not read it.
    """
    missing = tuple(r for r in range(world.num_processes) if r not in saved.reports)
    if not saved.reports:
        return replace(nothing(world, saved, check), replaced=missing)
    found = plan(saved.reports, saved.dead, saved.cell_is_undone)
    names, before = sorted(found.names), sorted(found.older)
    drawn = [report.random for report in saved.reports.values()]
    compared = {name for one in drawn for name in one} - {"seeded"}
    own = [
        name
        for name in sorted(compared)
        if len(drawn) == 1 or any(one.get(name) != drawn[0].get(name) for one in drawn)
    ]
    set_to = [report.set_to for report in saved.reports.values()]
    differing = [
        name
        for name in sorted({name for one in set_to for name in one} - compared)
        if any(one.get(name) != set_to[0].get(name) for one in set_to)
    ]
    # A module's variable is kept on all ranks, or on none.
    skip = [name for name in own if name not in RANDOM] if missing else []
    each: dict[int, Take] = {}
    for rank, report in sorted(saved.reports.items()):
        try:
            folder = saved.folder.bring(rank, report)
        except LaunchError as error:  # the host that has it is lost, too
            why = error.message.rstrip(".")
            return restore(world, saved.without({rank: why}), check)
        each[rank] = Take(folder, names, before, skip=skip)
    for rank in missing:
        donor, folder = saved.folder.donor_for(rank, found.donor, saved.reports)
        shared = found.shared[rank]
        each[rank] = Take(
            folder, sorted(shared), sorted(found.older & shared), donor, found.own[rank],
            skip=[*own, *differing],
        )  # fmt: skip
    restoring = Restoring(world, RESTORE_S, AGAIN)
    try:
        looks = restoring.take(each, check)
    except RecoveryError:
        if not restoring.damaged:
            raise
        damaged = {
            rank if (source := each[rank].from_rank) is None else source: why
            for rank, why in restoring.damaged.items()
        }  # else it would be promised, and fail, for ever
        return restore(world, saved.without(damaged), check)
    lost = dict(found.lost)
    for rank, look in looks.items():
        for name, why in look.lost.items():
            lost.setdefault(name, "its only copy died with the rank" if rank in missing else why)
    back = found.names - set(lost)
    left: dict[str, str] = {}
    for report in saved.reports.values():
        left |= report.left
    reasons = reasons_of_lost(saved, lost)
    for report in saved.reports.values():  # those of earlier times
        for name, why in report.unbound.items():
            if name not in back:
                reasons.setdefault(name, why)
    left |= restoring.bind(lost, reasons, check)[1]
    if missing:
        none = ", ".join(map(str, missing))
        left |= dict.fromkeys(differing, f"{OWN}: rank {none} has none")
    if missing and RANDOM[0] in own and any(d["seeded"] for d in drawn):
        left[RANDOM[0]] = OWN
    older = tuple(sorted(found.older & back))
    unheard = tell_unheard({rank: saved.dead[rank] for rank in missing if rank in saved.dead})
    return Restored(
        tuple(sorted(back)), lost | left, missing, older=older,
        gone=saved.why_gone, cells=lineage.tell(saved.made_by, lost), undone=saved.all_undone,
        notes=" ".join(filter(None, [saved.notes, unheard])),
    )  # fmt: skip


def nothing(world: World, saved: Kept, check: Check) -> Restored:
    """What is said where nothing comes back: what ranks have had that is lost."""
    why = "no rank survived" if not saved.gone else "what was saved is gone"
    lost = {name: why for one in saved.dead.values() for name in one.names or ()}
    if lost:
        unbind = Unbind(sorted(lost), reasons_of_lost(saved, lost))
        each = dict.fromkeys(range(world.num_processes), unbind)
        Restoring(world, RESTORE_S, AGAIN).ask(each, check)
    return Restored(
        (), lost, nothing_lived=not saved.gone, gone=saved.why_gone,
        cells=lineage.tell(saved.made_by, lost),
    )  # fmt: skip


def reasons_of_lost(saved: Kept, lost: Mapping[str, str]) -> dict[str, str]:
    """What an error says of names that are lost."""
    reasons = {}
    for name, why in lost.items():
        cells = lineage.tell(saved.made_by, [name])
        again = f"; run {cells} again to make it" if cells else ""
        reasons[name] = f"was lost {saved.when} ({why}){again}"
    return reasons
