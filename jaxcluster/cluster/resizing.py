"""Variables that come back on another number of ranks than had saved them.

Each rank looks at the files of all and says what it would have (``engine.state.resizing``); only
when all have done so, all bind it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import SupportsIndex

from jaxcluster import wire
from jaxcluster.cluster.restart import (
    AGAIN,
    RESTORE_S,
    Resize,
    Restored,
    nothing,
    reasons_of_lost,
)
from jaxcluster.cluster.restoring import Check, Restoring
from jaxcluster.cluster.what_returns import (
    as_chosen,
    lost_with_dead,
    may_be_own,
    taken_back,
    tell_unheard,
)
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.model import lineage
from jaxcluster.plan.spec import check_spec
from jaxcluster.ranks import name_ranks
from jaxcluster.records.saved_states import Kept
from jaxcluster.text import join_words, plural
from jaxcluster.wire.ops.state import (
    Chosen,
    RestoreLook,
    RestoreLooked,
    SavedNames,
)

MOST_NAMES = 8  # that are listed where most of them are as they should be


def resized(
    spec: wire.ClusterSpec,
    num_processes: int,
    mesh: Mapping[str, int],
    without_lost: bool = False,
) -> Resize:
    """What becomes of a cluster with another number of ranks. Pure.

    Args:
      mesh: the sizes of the meshes' axes that were named.
      without_lost: hosts are lost, and it goes on without them.

    Raises:
      UsageError: there can't be so many.
    """
    before = spec.num_processes
    if isinstance(num_processes, bool) or not isinstance(num_processes, SupportsIndex):
        raise UsageError(
            f"A number of ranks is a whole number, not {num_processes!r}.",
            "%jaxcluster resize -n 2",
        )
    num_processes = operator.index(num_processes)  # numpy's may be one
    if num_processes < 1:
        raise UsageError(
            f"A cluster has at least one rank, not {num_processes}.", "%jaxcluster resize -n 2"
        )
    if num_processes == before and not without_lost:
        raise UsageError(f"It has {plural(before, 'rank')} already.", "%jaxcluster restart")
    if spec.local_device_ids is not None:
        raise UsageError(
            "Its ranks were given their devices one by one (local_device_ids).",
            "Stop it, and start it with other lists.",
        )
    if spec.platform == "tpu" and not spec.is_here:
        raise UsageError(
            "The hosts of a TPU slice belong together, so their ranks can't be others in number.",
            "Stop it, and start it on another slice.",
        )
    wanted = replace(spec, num_processes=num_processes)
    check_spec(wanted)
    each = spec.devices_per_process or 1
    devices = num_processes * each if spec.platform == "cpu" else 0
    return Resize(wanted, devices, mesh, without_lost)


def restore(world: World, saved: Kept, check: Check) -> Restored:
    """Bind what other ranks have saved, as far as these can have it.

    Raises:
      UsageError: it is not clear what becomes of a mesh.
      NotBrought: as ``restart.restore``.
      RecoveryError, RankDied, RankError, RankHung: a rank could not read it. Nothing was bound.
    """
    choice, chosen, lost = choose(saved)
    ranks = range(world.num_processes)
    idle = tell_idle(world.processes.idle_hosts)
    if not saved.reports:
        return replace(nothing(world, saved, check), ranks=len(ranks), notes=idle)
    restoring = Restoring(world, RESTORE_S, AGAIN)
    each = {}
    for rank in ranks:
        check()
        folders, mesh = saved.folder.folders_for(rank, saved.reports), dict(saved.mesh)
        each[rank] = RestoreLook(restoring.token, mesh=mesh, folders=folders, chosen=choice)
    looks = restoring.look(each, check)
    # What could not be saved is why parts lack.
    for one in (*(c.lost for c in chosen.values()), *(look.lost for look in looks.values())):
        lost |= {name: why for name, why in one.items() if name not in lost}
    reasons = reasons_of(looks, saved.num_processes)
    for report in saved.reports.values():
        reasons |= report.unbound
    reasons |= reasons_of_lost(saved, lost)
    back, left = restoring.bind(lost, reasons, check)
    unheard = tell_unheard(saved.dead)
    return Restored(
        tuple(sorted(back)), lost | left, gone=saved.why_gone, ranks=world.num_processes,
        cells=lineage.tell(saved.made_by, lost),
        notes=" ".join(filter(None, [tell(looks, saved.num_processes), unheard, idle])),
        older=tuple(sorted(back.intersection(choice.older))),
    )  # fmt: skip


def choose(saved: Kept) -> tuple[Chosen, dict[int, SavedNames], dict[str, str]]:
    """Which values come back, where ranks have died or a cell is taken back. Pure.

    Returns:
      What the ranks are to know of it , what ranks say of these
      values, and the names that are lost with dead ranks.
    """
    older, absent = taken_back(saved.reports, saved.cell_is_undone)
    chosen = as_chosen(saved.reports, older)
    names = {name for report in chosen.values() for name in report.kept}
    told = {
        rank: {n: one.values.get(n, "") for n in names if one.names is None or n in one.names}
        for rank, one in saved.dead.items()
    }
    doubtful = sorted(name for name in names if may_be_own(name, chosen, saved.dead))
    choice = Chosen(sorted(older), sorted(absent), doubtful, told)
    return choice, chosen, lost_with_dead(chosen, saved.dead, absent, saved.reports)


def reasons_of(looks: Mapping[int, RestoreLooked], before: int) -> dict[str, str]:
    """Why new ranks have no value of a name, by the name."""
    return {
        name: f"has no value on this rank, which is new: each of ranks 0-{before - 1} had its own"
        for one in looks.values()
        for name in one.own
    }


def tell_idle(hosts: Sequence[str]) -> str:
    """What to say about hosts without ranks; "" where there are none."""
    if not hosts:
        return ""
    return f"No rank is on {join_words(hosts)} now; the next resize can use it again."


def tell(looks: Mapping[int, RestoreLooked], before: int) -> str:
    """What is to be said of variables that came from another number of ranks; "" if nothing is.

    Args:
      before: how many ranks had saved them.
    """
    lost = {name for one in looks.values() for name in one.lost}
    own = sorted({name for one in looks.values() for name in one.own} - lost)
    gone = sorted({name for one in looks.values() for name in one.gone})
    only = sorted({name for one in looks.values() for name in one.only})
    unequal = sorted({name for one in looks.values() for name in one.unequal})
    waiting = sorted({name for one in looks.values() for name in one.unplaced})
    said = []
    if own:
        new = [rank for rank, one in looks.items() if one.own]
        have = "has" if len(new) == 1 else "have"
        said.append(f"Each rank had its own {', '.join(own)}: {name_ranks(new)} {have} none.")
    if gone:
        former = name_ranks(range(len(looks), before))
        said.append(f"Gone with {former}: their own {', '.join(gone)}.")
    if only:
        grown = name_ranks([rank for rank, one in looks.items() if one.only])
        many = [f"{len(only) - MOST_NAMES} more"] if len(only) > MOST_NAMES else []
        said.append(
            f"With one rank it was not known which values are each rank's own, so {grown} got rank "
            f"0's {join_words([*only[:MOST_NAMES], *many])}. Run again the cells of those that "
            "depend on the rank, like rank = jax.process_index()."
        )
    if unequal:
        said.append(
            f"The copies of {', '.join(unequal)} were not equal on all ranks: each has the lowest "
            "rank's now."
        )
    if waiting:
        said.append(
            f"Not on any device yet: {', '.join(waiting)}. Place each: "
            f"{waiting[0]} = jaxcluster.place({waiting[0]}, sharding)"
        )
    return " ".join(said)
