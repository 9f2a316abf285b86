"""The ranks' variables: saved by all, and had again by all or by none.

Each rank reads what was saved and makes the values first. Only when all have them, all bind them.
So it is for new processes, for another number of ranks, and for a checkpoint. A rank's side of it
is ``rank.state``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from jaxcluster.cluster.world import World
from jaxcluster.errors import RankDied, RankError, RecoveryError
from jaxcluster.hosts.states import Kept
from jaxcluster.ranks import name_ranks, tell_each
from jaxcluster.wire.link import Sink, replies
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.saving import Bind, Drop, Load, Made, Save, Saved, SavePlace

Check = Callable[[], None]  # raises where what goes on is to end
R = TypeVar("R")

TIMEOUT_S = 600.0  # a large copy takes its time; the stop button ends it sooner
FEW = 8  # lost names that are told with their reasons


@dataclass(frozen=True)
class Restored:
    """What came back.

    Attributes:
      names: those that all ranks which had them have again.
      replaced: the ranks that could not be saved.
      details: in sentences, what was lost, and which cells make it again.
    """

    names: Set[str]
    replaced: Sequence[int]
    details: Sequence[str]


def tell_lost(lost: Mapping[str, str]) -> str:
    """Each lost name with its reason; of many, the first."""
    return _few([f"{name} ({why})" for name, why in sorted(lost.items())])


def _few(told: Sequence[str]) -> str:
    more = len(told) - FEW
    return ", ".join(told[:FEW]) + (f" and {more} more" if more > 0 else "")


def save(world: World, check: Check, *, compare: bool) -> Kept:
    """Have each living rank write its variables, whatever its main thread does; ends nothing.

    Args:
      compare: there will be another number of ranks.

    Raises:
      RecoveryError: a rank that lives could not be saved, and why.
    """
    folder = world.processes.state_folder()
    try:
        alive = [rank for rank in range(world.num_processes) if rank not in world.dead]
        places = {rank: [SavePlace(*one) for one in folder.places_for(rank)] for rank in alive}
        each = {rank: Save(found, compare) for rank, found in places.items()}
        answers = world.link.gather(each, each, timeout_s=TIMEOUT_S, check=check)
        check()
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
        return Kept(folder, saved, world.num_processes, had)
    except BaseException:
        folder.remove()
        raise


def read(
    world: World, each: Mapping[int, Callable[..., Operation[R]]], check: Check, **options: Any
) -> tuple[dict[int, R], Callable[..., dict[int, Made]]]:
    """Have ranks read values; returns what each says of it, and what has all bind them.

    The latter takes the names that each rank has lost, and why.

    Args:
      each: makes each rank's request, with a token and its place among the cells.
      **options: see ``World.ask_in_turn``.

    Raises:
      JaxClusterError: a rank could not; all drop what they have read.
    """
    token = uuid.uuid4().hex
    asked: dict[str, Any] = {"timeout_s": TIMEOUT_S, "check": check}
    requests = {rank: partial(make, token=token) for rank, make in each.items()}
    try:
        made = replies(world.ask_in_turn(requests, **asked, **options))
    except BaseException:
        world.link.request_each(dict.fromkeys(each, Drop(token)), sink=Sink())
        raise

    def bind(lost: Mapping[int, dict[str, str]], is_final: bool = False) -> dict[int, Made]:
        wanted = {rank: partial(Bind, token=token, lost=lost[rank]) for rank in lost}
        bound = replies(world.ask_in_turn(wanted, is_final=is_final, **asked))
        for rank, one in bound.items():
            names = world.names.get(rank, set()) | {*one.names}
            world.names[rank] = names - lost[rank].keys()
        return bound

    return made, bind


def load(
    world: World,
    kept: Kept,
    check: Check,
    when: str,
    made_by: Mapping[str, int] | None = None,
    autosaved: tuple[Kept, int] | None = None,
) -> Restored:
    """Have the ranks bind what was saved, all or none.

    Args:
      check: called now and then meanwhile.
      when: names that are lost were lost then, as in "in cell [3]".
      made_by: the cells that have made them.
      autosaved: what was saved at the end of a cell, and its number: the ranks that could not be
        saved have their values from there.

    Raises:
      JaxClusterError: a rank could not; none has bound anything, or the message says so.
    """
    reports, before = kept.reports, kept.num_processes
    is_resized, made_by = before != world.num_processes, made_by or {}
    each = {}
    for rank in range(world.num_processes):
        own = rank if rank in reports else None
        files = kept.folder.bring(rank, reports if is_resized or own is None else [rank], reports)
        each[rank] = partial(Load, files=files, own=own, num_processes=before)
    made, bind = read(world, each, check)
    lost = lost_on(reports, made, kept.had)
    again = {name: f"; run cell [{number}] again" for name, number in made_by.items()}
    earlier = {name: why for saved in reports.values() for name, why in saved.unbound.items()}
    reasons = {
        rank: (reports[rank].unbound if rank in reports else earlier)
        | {name: f"was lost {when} ({why}){again.get(name, '')}" for name, why in by_name.items()}
        for rank, by_name in lost.items()
    }
    bound = bind(reasons).values()
    back = {name for one in bound for name in one.names}
    gone = {name: why for by_name in lost.values() for name, why in by_name.items()}
    settings = [*(saved.left for saved in reports.values()), *(one.lost for one in bound)]
    left = {name: why for one in settings for name, why in one.items()}
    replaced = [] if is_resized else [rank for rank in each if rank not in reports]
    filled = _fill_in(world, autosaved[0], replaced, check) if autosaved and replaced else None
    found, had = list[str](), filled or set()
    if kept.gone:
        found.append(f"The saved variables are gone: {kept.why_gone}.")
    whose = (name_ranks(replaced) if replaced else "some ranks").capitalize()
    has, its = ("has", "its") if len(replaced) == 1 else ("have", "their")
    if autosaved and filled is not None:
        found.append(
            f"{whose} {has} {its} values of the end of cell [{autosaved[1]}]; so have all ranks "
            "theirs of arrays that span processes."
        )
    if missing := sorted((back & gone.keys()) - had):
        found.append(f"{whose} {has} no values of: {_few(missing)}.")
    if nowhere := {n: why for n, why in (gone | left).items() if n in left or n not in back | had}:
        found.append(f"Lost: {tell_lost(nowhere)}.")
    wanted = {*missing, *nowhere}
    if cells := sorted({number for name, number in made_by.items() if name in wanted}):
        which = ", ".join(f"[{cell}]" for cell in cells)
        found.append(f"Run cell{'s' * (len(cells) > 1)} {which} to make them again.")
    if wanted and replaced and filled is None:
        found.append("%jaxcluster autosave on saves each rank's variables from now on.")
    return Restored(back | had, replaced, found)


def _fill_in(world: World, saved: Kept, replaced: Sequence[int], check: Check) -> set[str] | None:
    """Give ranks that were replaced what they had at the end of a cell; returns these names.

    Arrays that span processes are those of that end on all ranks: their parts must be of one
    moment. All other values of the other ranks stay. None: it can't be read.
    """
    saved = saved.looked_at()
    reports, ranks = saved.reports, range(world.num_processes)
    if len(reports) != len(ranks):
        return None
    spanning = {name for report in reports.values() for name in report.spanning}
    each = {
        rank: partial(
            Load,
            files=saved.folder.bring(rank, [rank], reports),
            own=rank,
            num_processes=saved.num_processes,
            only=None if rank in replaced else sorted(spanning),
        )
        for rank in ranks
    }
    try:
        made, bind = read(world, each, check)
    except RankDied:
        raise
    except RankError:
        return None
    lost = {name: why for one in made.values() for name, why in one.lost.items()}
    torn = {name: f"was lost ({why})" for name, why in lost.items() if name in spanning}
    bound = bind(dict.fromkeys(each, torn))
    return {name for rank in replaced for name in bound[rank].names}


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
    gone = "parts of it were on a rank that is gone"
    torn = {
        name: one.lost.get(name, gone)
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
        own = {n: one.lost.get(n, "each rank had its own") for n in had if n not in one.names}
        found[rank] = alone | own | not_saved | torn
    return found
