"""The ranks' variables on disk: saved under a name, restored into this cluster or a later one."""

from __future__ import annotations

import shutil
from pathlib import Path

from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.records import registry
from jaxcluster.text import format_nbytes

FOLDER = "jaxcluster-checkpoints"
TIMEOUT_S = 600.0
NAME = "a checkpoint's name"


def save(world: World, name: str, folder: str | Path = FOLDER) -> str:
    """Save every rank's variables; returns in a line what was saved and what can't be.

    A file a rank, in ``folder/name``; an older checkpoint of that name is replaced once the new one
    is whole. It takes one copy of all that the ranks hold.

    Raises:
      UsageError: a checkpoint can't be called so.
      RankError: a rank could not write its file.
    """
    registry.check_name(name, NAME, "%jaxcluster checkpoint before-tuning")
    final = Path(folder).resolve() / name
    draft = final.with_name(f".{name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        ranks = range(world.num_processes)
        answers = world.ask(ranks, "snapshot", {"path": str(draft)}, timeout_s=TIMEOUT_S)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    bodies = [event.body for _, event in sorted(answers.items())]
    kept = sorted({kept for body in bodies for kept in body["kept"]})
    lost = {lost: why for body in bodies for lost, why in (body["lost"] | body["left"]).items()}
    size = format_nbytes(sum(body["nbytes"] for body in bodies))
    line = f"Saved {len(kept)} variables of {len(bodies)} ranks ({size}) in {final}."
    if lost:
        line += " Not saved: " + ", ".join(f"{n} ({why})" for n, why in sorted(lost.items())) + "."
    return line


def restore(world: World, name: str, folder: str | Path = FOLDER) -> str:
    """Bind what ``save`` wrote on the ranks; returns in a line what came back.

    The cluster must have as many ranks and devices, and the same jax, as the one that was saved.

    Raises:
      UsageError: there is no checkpoint of that name; those that are there are named.
      RecoveryError: it was saved by a cluster of another shape or another jax.
    """
    registry.check_name(name, NAME, "%jaxcluster restore before-tuning")
    path = Path(folder).resolve() / name
    if not path.is_dir():
        others = sorted(p.name for p in path.parent.glob("[!.]*")) if path.parent.is_dir() else []
        raise UsageError(
            f"There is no checkpoint {name!r} in {path.parent}.",
            f"There are: {', '.join(others)}."
            if others
            else "%jaxcluster checkpoint NAME saves one.",
        )
    ranks = range(world.num_processes)
    answers = world.ask(ranks, "restore", {"path": str(path)}, timeout_s=TIMEOUT_S)
    lost = {n: why for event in answers.values() for n, why in event.body["lost"].items()}
    unsaved = {n: why for event in answers.values() for n, why in event.body["unsaved"].items()}
    reasons = {n: f"was not saved in checkpoint {name!r} ({why})" for n, why in unsaved.items()}
    reasons |= {n: f"was lost in restoring {name!r} ({why})" for n, why in lost.items()}
    if reasons:  # on all ranks or on none
        unbound = {"names": sorted(lost), "lost": reasons}
        world.ask(ranks, "unbind", unbound, timeout_s=TIMEOUT_S)
    for event in answers.values():
        lost |= event.body["left"]
    restored = {n for event in answers.values() for n in event.body["restored"]} - set(lost)
    line = f"Restored {len(restored)} variables on {len(answers)} ranks."
    if lost:
        line += " Lost: " + ", ".join(f"{n} ({why})" for n, why in sorted(lost.items())) + "."
    return line
