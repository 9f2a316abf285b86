"""The ranks' variables: saved by all, and had again by all or by none.

Each rank reads what was saved and makes the values first. Only when all have them, all bind them.
So it is for new processes, for another number of ranks, and for a checkpoint. A rank's side of it
is ``rank.state``.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxcluster.allocation.states import Kept
from jaxcluster.cluster.world import World
from jaxcluster.errors import RankDied, RankError, RecoveryError
from jaxcluster.model.fitted_meshes import fit_mesh
from jaxcluster.ranks import name_ranks, tell_each
from jaxcluster.text import plural
from jaxcluster.wire.link import Sink, replies
from jaxcluster.wire.ops.saving import (
    Bind,
    Drop,
    Load,
    Made,
    MeshAxes,
    Save,
    Saved,
    SavePlace,
)

Check = Callable[[], None]  # raises where what goes on is to end

TIMEOUT_S = 600.0
GONE = "parts of it were on a rank that is gone"
OWN = "each rank had its own"
FEW = 8  # lost names that are told with their reasons


@dataclass(frozen=True)
class Restored:
    """What came back.

    Attributes:
      kept: the names that all ranks which had them have again.
      lost: names that no rank has any more, and settings, and why.
      missing: names that are kept, but that these new ranks don't have.
      replaced: the ranks that could not be saved.
      ranks: how many there are now, where there were others before; else 0.
      gone: why what ranks had saved could not be read any more; "" where all could.
      made_by: the numbers of the cells that have made names.
      autosaved: the cell from whose end the replaced ranks have their values; 0: from none.
    """

    kept: tuple[str, ...]
    lost: Mapping[str, str]
    missing: tuple[str, ...] = ()
    replaced: tuple[int, ...] = ()
    ranks: int = 0
    gone: str = ""
    made_by: Mapping[str, int] | None = None
    autosaved: int = 0

    def tell(self, seconds: float) -> str:
        """In a line: new processes after so many seconds, and what they have."""
        what = plural(self.ranks, "rank") if self.ranks else "New processes"
        replaced = f", {name_ranks(self.replaced)} replaced" if self.replaced else ""
        kept = f"{plural(len(self.kept), 'variable')} kept."
        return " ".join([f"{what} after {seconds:.1f} s{replaced}: {kept}", *self.details])

    @property
    def details(self) -> list[str]:
        """What was lost, and which cells make it again."""
        found = []
        whose = name_ranks(self.replaced) if self.replaced else "some ranks"
        whose, is_one = whose.capitalize(), len(self.replaced) == 1
        if self.gone:
            found.append(f"The saved variables are gone: {self.gone}.")
        if self.autosaved:
            found.append(
                f"{whose} {'has its' if is_one else 'have their'} values of the end of cell "
                f"[{self.autosaved}]; so have all ranks theirs of arrays that span processes."
            )
        if self.missing:
            have = "has" if is_one else "have"
            found.append(f"{whose} {have} no values of: {_few(self.missing)}.")
        if self.lost:
            found.append(f"Lost: {tell_lost(self.lost)}.")
        wanted = {*self.missing, *self.lost}
        cells = sorted({n for name, n in (self.made_by or {}).items() if name in wanted})
        if cells:
            again = ", ".join(f"[{cell}]" for cell in cells)
            found.append(f"Run cell{'s' if len(cells) > 1 else ''} {again} to make them again.")
        if wanted and self.replaced and not self.autosaved:
            found.append("%jaxcluster autosave on saves each rank's variables from now on.")
        return found


def tell_lost(lost: Mapping[str, str]) -> str:
    """Each lost name with its reason; of many, the first."""
    return _few([f"{name} ({why})" for name, why in sorted(lost.items())])


def _few(told: Sequence[str]) -> str:
    more = len(told) - FEW
    return ", ".join(told[:FEW]) + (f" and {more} more" if more > 0 else "")


def save(
    world: World,
    check: Check,
    num_processes: int | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Kept:
    """Have each living rank write its variables, whatever its main thread does; ends nothing.

    Args:
      num_processes: how many ranks there will be, if others; and the sizes of the meshes' axes.

    Raises:
      RecoveryError: a rank that lives could not be saved, and why.
      UsageError: somebody must choose what becomes of a mesh.
    """
    folder = world.processes.state_folder()
    try:
        alive = [rank for rank in range(world.num_processes) if rank not in world.dead]
        is_resized = num_processes is not None
        each = {
            rank: Save([SavePlace(*place) for place in folder.places_for(rank)], is_resized)
            for rank in alive
        }
        answers = world.link.gather(each, each, timeout_s=TIMEOUT_S, check=check)
        saved = replies(answers)
        missing = [r for r in alive if r not in saved and r not in world.dead]
        failed = {r: answers[r].why if r in answers else "no answer" for r in missing}
        if failed:
            raise RecoveryError(
                f"The variables of {name_ranks(failed)} could not be saved, so nothing was ended "
                f"or lost ({tell_each(failed)}).",
                f"{folder.hint}\n%jaxcluster restart --clean gives you empty ranks instead.",
            )
        had = {r: frozenset(names) for r, names in world.names.items() if r not in saved}
        kept = Kept(folder, saved, world.num_processes, had, mesh=mesh or {})
        fit_meshes(kept, num_processes or world.num_processes)
        return kept
    except BaseException:
        folder.remove()
        raise


def _read(
    world: World, each: Mapping[int, Mapping[str, Any]], check: Check
) -> tuple[str, dict[int, Made]]:
    """Have each rank read its part; returns by which token, and what each can bind.

    Raises:
      JaxClusterError: a rank could not; all drop what they have read.
    """
    token = uuid.uuid4().hex
    requests = {rank: partial(Load, token=token, **part) for rank, part in each.items()}
    try:
        answers = world.ask_in_turn(requests, timeout_s=TIMEOUT_S, check=check)
    except BaseException:
        world.link.request_each(dict.fromkeys(each, Drop(token)), sink=Sink())
        raise
    return token, replies(answers)


def _bind(
    world: World, token: str, lost: Mapping[int, dict[str, str]], check: Check
) -> dict[int, Made]:
    """Have all bind what they have read, but for the names that each has lost, and why."""
    each = {rank: partial(Bind, token=token, lost=lost[rank]) for rank in lost}
    bound = replies(world.ask_in_turn(each, timeout_s=TIMEOUT_S, check=check))
    for rank, one in bound.items():
        world.names[rank] = (world.names.get(rank, set()) | {*one.names}) - lost[rank].keys()
    return bound


def load(
    world: World, kept: Kept, check: Check, when: str, made_by: Mapping[str, int] | None = None
) -> Restored:
    """Have the ranks bind what was saved, all or none.

    Args:
      check: called now and then meanwhile.
      when: names that are lost were lost then, as in "in cell [3]".
      made_by: the cells that have made them.

    Raises:
      JaxClusterError: a rank could not; none has bound anything, or the message says so.
    """
    ranks, reports = range(world.num_processes), kept.reports
    is_resized = kept.num_processes != world.num_processes
    meshes, each = fit_meshes(kept, world.num_processes), {}
    for rank in ranks:
        own = rank if rank in reports else None
        files = kept.folder.bring(rank, reports if is_resized or own is None else [rank], reports)
        before = kept.num_processes
        each[rank] = {"files": files, "own": own, "num_processes": before, "meshes": meshes}
    token, loaded = _read(world, each, check)
    lost = lost_on(reports, loaded, kept.had)
    again = {name: f"; run cell [{number}] again" for name, number in (made_by or {}).items()}
    earlier = {name: why for saved in reports.values() for name, why in saved.unbound.items()}
    reasons = {
        rank: (reports[rank].unbound if rank in reports else earlier)
        | {name: f"was lost {when} ({why}){again.get(name, '')}" for name, why in by_name.items()}
        for rank, by_name in lost.items()
    }
    bound = _bind(world, token, reasons, check)
    back = {name for one in bound.values() for name in one.names}
    gone = {name: why for by_name in lost.values() for name, why in by_name.items()}
    left = {name: why for saved in reports.values() for name, why in saved.left.items()}
    left |= {name: why for one in bound.values() for name, why in one.lost.items()}
    return Restored(
        tuple(sorted(back)),
        {name: why for name, why in gone.items() if name not in back} | left,
        tuple(sorted(back & gone.keys())),
        () if is_resized else tuple(rank for rank in ranks if rank not in reports),
        world.num_processes if is_resized else 0,
        kept.why_gone,
        made_by,
    )


def fill_in(world: World, saved: Kept, cell: int, restored: Restored, check: Check) -> Restored:
    """After ``load``: what ranks that were replaced had at the end of a cell, as autosave has it.

    Arrays that span processes are those of that end on all ranks: their parts must be of one
    moment. All other values of the other ranks stay.

    Args:
      restored: what ``load`` has said; it stays if what autosave has saved can't be read.
    """
    reports = saved.reports
    spanning = {name for report in reports.values() for name in report.spanning}
    each = {
        rank: {
            "files": saved.folder.bring(rank, [rank], reports),
            "own": rank,
            "num_processes": saved.num_processes,
            "only": None if rank in restored.replaced else sorted(spanning),
        }
        for rank in range(world.num_processes)
    }
    try:
        token, loaded = _read(world, each, check)
    except RankDied:
        raise
    except RankError:
        return restored
    lost = {name: why for one in loaded.values() for name, why in one.lost.items()}
    torn = {name: f"was lost ({why})" for name, why in lost.items() if name in spanning}
    bound = _bind(world, token, dict.fromkeys(each, torn), check)
    back = {name for rank in restored.replaced for name in bound[rank].names}
    return replace(
        restored,
        kept=tuple(sorted({*restored.kept, *back})),
        lost={name: why for name, why in restored.lost.items() if name not in back},
        missing=tuple(name for name in restored.missing if name not in back),
        autosaved=cell,
    )


def fit_meshes(kept: Kept, num_processes: int) -> list[MeshAxes]:
    """What becomes of the meshes of all devices on another number of ranks. Pure.

    Raises:
      UsageError: somebody must choose.
    """
    if num_processes == kept.num_processes:
        return []
    fitted = {}
    for mesh in (one for report in kept.reports.values() for one in report.meshes):
        devices, rest = divmod(math.prod(mesh.sizes) * num_processes, kept.num_processes)
        after = [] if rest else fit_mesh(mesh.names, mesh.sizes, devices, kept.mesh)
        fitted[str(mesh)] = replace(mesh, after=after)
    return list(fitted.values())


def lost_on(
    reports: Mapping[int, Saved],
    loaded: Mapping[int, Made],
    unsaved: Mapping[int, frozenset[str]],
) -> dict[int, dict[str, str]]:
    """By rank the names that it does not have again, and why. Pure.

    An array that spans processes is lost on all of them if any can't have its part. All other
    values are each rank's own.

    Args:
      unsaved: the names that other ranks had, which could not be saved.
    """
    had = {name for report in reports.values() for name in report.kept}
    spanning = {name for report in reports.values() for name in report.spanning}
    torn = {
        name: one.lost.get(name, GONE)
        for one in loaded.values()
        for name in spanning
        if name not in one.names
    }
    alone = {
        name: f"only {name_ranks([r for r in unsaved if name in unsaved[r]])} had it"
        if reports
        else "no rank survived"
        for name in set().union(*unsaved.values()) - had
    }
    found = {}
    for rank, one in loaded.items():
        not_saved = reports[rank].lost if rank in reports else {}
        own = {name: one.lost.get(name, OWN) for name in had if name not in one.names}
        found[rank] = alone | own | not_saved | torn
    return found
