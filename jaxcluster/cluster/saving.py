"""The ranks' variables: saved by all, and had again by all or by none.

Each rank reads what was saved and makes the values first. Only when all have them, all bind them.
So it is for new processes, for another number of ranks, and for a checkpoint. A rank's side of it
is ``rank.state``.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from jaxcluster.allocation.states import Kept
from jaxcluster.cluster.world import World
from jaxcluster.errors import RankDied, RankError, RecoveryError
from jaxcluster.model.fitted_meshes import fit_mesh
from jaxcluster.ranks import name_ranks, tell_each
from jaxcluster.text import plural
from jaxcluster.wire.link import Sink, replies
from jaxcluster.wire.ops.saving import Bind, Drop, Load, Loaded, MeshAxes, Save, Saved, SavePlace

Check = Callable[[], None]  # raises where what goes on is to end

TIMEOUT_S = 600.0
GONE = "parts of it were on a rank that is gone"
OWN = "each rank had its own"
FEW = 8  # lost names that are told with their reasons


class BadSave(Exception):
    """What autosave has saved can't be read."""


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
    seconds: float = 0.0

    def __str__(self) -> str:
        return " ".join(filter(None, [self.headline, *self.details]))

    @property
    def headline(self) -> str:
        """What was done and what was kept, without the list of what was lost."""
        what = plural(self.ranks, "rank") if self.ranks else "New processes"
        replaced = f", {name_ranks(self.replaced)} replaced" if self.replaced else ""
        return (
            f"{what} after {self.seconds:.1f} s{replaced}: "
            f"{plural(len(self.kept), 'variable')} kept."
        )

    @property
    def details(self) -> list[str]:
        """What was lost, and which cells make it again."""
        found = []
        if self.gone:
            found.append(f"The saved variables are gone: {self.gone}.")
        if self.autosaved:
            whose = name_ranks(self.replaced).capitalize()
            verb = "has its" if len(self.replaced) == 1 else "have their"
            found.append(
                f"{whose} {verb} values of the end of cell [{self.autosaved}]; so have all ranks "
                "theirs of arrays that span processes."
            )
        if self.missing:
            whose = name_ranks(self.replaced) if self.replaced else "some ranks"
            verb = "has" if len(self.replaced) == 1 else "have"
            found.append(f"{whose.capitalize()} {verb} no values of: {_few(self.missing)}.")
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
    told = [f"{name} ({why})" for name, why in sorted(lost.items())]
    more = len(told) - FEW
    return ", ".join(told[:FEW]) + (f" and {more} more" if more > 0 else "")


def _few(names: tuple[str, ...]) -> str:
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def save(world: World, check: Check, *, compare: bool = False) -> Kept:
    """Have each living rank write its variables, whatever its main thread does; ends nothing.

    Args:
      compare: there will be another number of ranks.

    Raises:
      RecoveryError: a rank that lives could not be saved, and why.
    """
    folder = world.processes.state_folder()
    try:
        alive = [rank for rank in range(world.num_processes) if rank not in world.dead]
        each = {
            rank: Save([SavePlace(*place) for place in folder.places_for(rank)], compare)
            for rank in alive
        }
        answers = world.link.gather(each, each, timeout_s=TIMEOUT_S, check=check)
        saved = replies(answers)
        failed = {
            rank: event.why if (event := answers.get(rank)) is not None else "no answer"
            for rank in alive
            if rank not in saved and rank not in world.dead
        }
        if failed:
            raise RecoveryError(
                f"The variables of {name_ranks(failed)} could not be saved, so nothing was ended "
                f"or lost ({tell_each(failed)}).",
                f"{folder.hint}\n%jaxcluster restart --clean gives you empty ranks instead.",
            )
    except BaseException:
        folder.remove()
        raise
    had = {r: frozenset(names) for r, names in world.names.items() if r not in saved}
    return Kept(folder, saved, world.num_processes, had)


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
    meshes = fit_meshes(kept, world.num_processes)
    each, token = {}, uuid.uuid4().hex
    for rank in ranks:
        own = rank if rank in reports else None
        files = kept.folder.bring(rank, reports if is_resized or own is None else [rank], reports)
        before = kept.num_processes
        each[rank] = partial(
            Load, token=token, files=files, own=own, num_processes=before, meshes=meshes
        )
    try:
        loaded = replies(world.ask_in_turn(each, timeout_s=TIMEOUT_S, check=check))
    except BaseException:
        world.link.request_each(dict.fromkeys(ranks, Drop(token)), sink=Sink())
        raise
    lost = lost_on(reports, loaded, kept.had)
    again = {name: f"; run cell [{number}] again" for name, number in (made_by or {}).items()}
    earlier = {name: why for saved in reports.values() for name, why in saved.unbound.items()}
    reasons = {
        rank: (reports[rank].unbound if rank in reports else earlier)
        | {name: f"was lost {when} ({why}){again.get(name, '')}" for name, why in by_name.items()}
        for rank, by_name in lost.items()
    }
    binds = {rank: partial(Bind, token=token, lost=reasons[rank]) for rank in ranks}
    bound = replies(world.ask_in_turn(binds, timeout_s=TIMEOUT_S, check=check))
    for rank, one in bound.items():
        world.names[rank] = (world.names.get(rank, set()) | {*one.names}) - reasons[rank].keys()
    back = {name for one in bound.values() for name in one.names}
    gone = {name: why for by_name in lost.values() for name, why in by_name.items()}
    left = {name: why for saved in reports.values() for name, why in saved.left.items()}
    left |= {name: why for one in bound.values() for name, why in one.left.items()}
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
      restored: what ``load`` has said.

    Raises:
      BadSave: a rank could not read it; nothing of it is bound.
    """
    ranks, reports, token = range(world.num_processes), saved.reports, uuid.uuid4().hex
    spanning = {name for report in reports.values() for name in report.spanning}
    each = {
        rank: partial(
            Load,
            token=token,
            files=saved.folder.bring(rank, [rank], reports),
            own=rank,
            num_processes=saved.num_processes,
            only=None if rank in restored.replaced else sorted(spanning),
        )
        for rank in ranks
    }
    try:
        loaded = replies(world.ask_in_turn(each, timeout_s=TIMEOUT_S, check=check))
    except BaseException as error:
        world.link.request_each(dict.fromkeys(ranks, Drop(token)), sink=Sink())
        if isinstance(error, RankError) and not isinstance(error, RankDied):
            raise BadSave(str(error)) from None
        raise
    lost = {name: why for one in loaded.values() for name, why in one.lost.items()}
    torn = {name: f"was lost ({why})" for name, why in lost.items() if name in spanning}
    bind = partial(Bind, token=token, lost=torn)
    bound = replies(world.ask_in_turn(dict.fromkeys(ranks, bind), timeout_s=TIMEOUT_S, check=check))
    for rank, one in bound.items():
        world.names[rank] = world.names.get(rank, set()) | {*one.names}
    back = [{*one.names} for rank, one in bound.items() if rank in restored.replaced]
    on_all = set[str]().union(*back)
    return replace(
        restored,
        kept=tuple(sorted({*restored.kept, *on_all})),
        lost={name: why for name, why in restored.lost.items() if name not in on_all},
        missing=tuple(name for name in restored.missing if name not in on_all),
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
    loaded: Mapping[int, Loaded],
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
