"""Variables that come back on another number of ranks than had saved them.

Each rank looks at the files of all and says what it would have (``engine.state.resizing``); only
when all have done so, all bind it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.restart import RESTORE_S, Check, Resize, Restored, ask_all
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.model import makers
from jaxcluster.model.told import Told
from jaxcluster.plan.spec import check_spec
from jaxcluster.ranks import name_ranks
from jaxcluster.records.kept import Kept
from jaxcluster.text import plural


def resized(spec: wire.ClusterSpec, num_processes: int, mesh: Mapping[str, int]) -> Resize:
    """What becomes of a cluster with another number of ranks. Pure.

    Args:
      mesh: the sizes of the meshes' axes that were named.

    Raises:
      UsageError: there can't be so many.
    """
    before = spec.num_processes
    if num_processes < 1:
        raise UsageError(
            f"A cluster has at least one rank, not {num_processes}.", "%jaxcluster resize -n 2"
        )
    if num_processes == before:
        raise UsageError(f"It has {plural(before, 'rank')} already.", "%jaxcluster restart")
    if spec.local_device_ids is not None:
        raise UsageError(
            "Its ranks were given their devices one by one (local_device_ids).",
            "Stop it, and start it with other lists.",
        )
    wanted = replace(spec, num_processes=num_processes)
    check_spec(wanted)
    each = spec.devices_per_process or 1
    return Resize(wanted, num_processes * each if spec.platform == "cpu" else 0, mesh)


def restore(
    world: World, saved: Kept, when: str, check: Check, made_by: makers.Makers | None = None
) -> Restored:
    """Bind what other ranks have saved, as far as these can have it.

    Args:
      when: when names were lost that are lost, as in "in cell [3]".
      made_by: the cells that have made names.

    Raises:
      UsageError: it is not clear what becomes of a mesh.
      RecoveryError, RankDied, RankError, RankHung: a rank could not read it. Nothing was bound.
    """
    body = {"token": uuid.uuid4().hex, "mesh": dict(saved.mesh)}
    ranks = range(world.num_processes)
    bodies = {}
    for rank in ranks:
        check()
        found = saved.folder.folders_for(rank, saved.reports)
        bodies[rank] = {**body, "folders": {str(one): path for one, path in found.items()}}
    looks = ask_all(world, "restore_look", bodies, RESTORE_S, check)
    lost = {name: why for one in looks.values() for name, why in one["lost"].items()}
    reasons = reasons_of(looks, saved.num_processes)
    for report in saved.reports.values():
        lost |= {n: why for n, why in report["lost"].items() if n not in lost}
        reasons |= report["unbound"]
    for name, why in lost.items():
        cells = makers.tell(made_by or {}, [name])
        again = f"; run {cells} again to make it" if cells else ""
        reasons[name] = f"was lost {when} ({why}){again}"
    unbind = {"token": body["token"], "unbind": sorted(lost), "lost": reasons}
    answers = ask_all(world, "restore_bind", dict.fromkeys(ranks, unbind), RESTORE_S, check)
    last, first = world.turns.last_cells(), world.record.last_seq
    left: dict[str, str] = {}
    for rank, answer in answers.items():
        left |= answer["left"]
        world.told[rank] = Told(set(answer["restored"]), max(first, last.get(rank, 0)))
        world.told[rank].hear_bound(answer["values"])
    back = {name for answer in answers.values() for name in answer["restored"]}
    return Restored(
        tuple(sorted(back)), lost | left, gone=saved.why_gone, ranks=world.num_processes,
        cells=makers.tell(made_by or {}, lost), notes=tell(looks, saved.num_processes),
    )  # fmt: skip


def reasons_of(looks: Mapping[int, Mapping[str, Any]], before: int) -> dict[str, str]:
    """Why new ranks have no value of a name, by the name."""
    return {
        name: f"has no value on this rank, which is new: each of ranks 0-{before - 1} had its own"
        for one in looks.values()
        for name in one.get("own", ())
    }


def tell(looks: Mapping[int, Mapping[str, Any]], before: int) -> str:
    """What is to be said of variables that came from another number of ranks; "" if nothing is.

    Args:
      before: how many ranks had saved them.
    """
    lost = {name for one in looks.values() for name in one.get("lost", ())}
    own = sorted({name for one in looks.values() for name in one.get("own", ())} - lost)
    gone = sorted({name for one in looks.values() for name in one.get("gone", ())})
    waiting = sorted({name for one in looks.values() for name in one.get("unplaced", ())})
    said = []
    if own:
        new = [rank for rank, one in looks.items() if one.get("own")]
        have = "has" if len(new) == 1 else "have"
        said.append(f"Each rank had its own {', '.join(own)}: {name_ranks(new)} {have} none.")
    if gone:
        former = name_ranks(range(len(looks), before))
        said.append(f"Gone with {former}: their own {', '.join(gone)}.")
    if waiting:
        said.append(
            f"Not on any device yet: {', '.join(waiting)}. Place each: "
            f"{waiting[0]} = jaxcluster.place({waiting[0]}, sharding)"
        )
    return " ".join(said)
