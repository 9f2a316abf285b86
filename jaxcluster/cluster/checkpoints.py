"""The ranks' variables on disk: saved under a name, restored into this cluster or a later one."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from jaxcluster.cluster import resizing, stopbutton
from jaxcluster.cluster.restoring import Restoring
from jaxcluster.cluster.world import World
from jaxcluster.errors import CellInterrupted, JaxClusterError, UsageError
from jaxcluster.records import registry
from jaxcluster.text import format_nbytes, join_reasons, plural
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.state import (
    RestoreLook,
    RestoreLooked,
    SavePlace,
    Snapshot,
)

TIMEOUT_S = 600.0
NAME = "a checkpoint's name"
UNTOUCHED = "Nothing was restored: all ranks keep the variables they have."
TOO_LATE = (
    "All ranks have read the checkpoint and are restoring its variables. That can't be stopped. "
    "Press stop again to stop waiting."
)


def save(
    world: World,
    name: str,
    folder: str | Path,
    between: AbstractContextManager[object],
) -> str:
    """Save every rank's variables; returns in a line what was saved and what can't be.

    A file a rank, in ``folder/name``; an older checkpoint of that name is replaced once the new one
    is whole. It takes one copy of all that the ranks hold.

    Args:
      between: a place among the cells of all notebooks.

    Raises:
      UsageError: a checkpoint can't be called so.
      RankError: a rank could not write its file.
    """
    registry.check_name(name, NAME, "%jaxcluster checkpoint before-tuning")
    final = Path(folder).resolve() / name
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in final.parent.glob(f".{name}.part*"):
        shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=final.parent))
    draft.chmod(0o700)  # whatever umask this process has
    try:
        ranks = range(world.num_processes)
        # Digests tell what another number of ranks gets.
        asked = Snapshot([SavePlace(str(draft))], digests=True)
        with between:
            answers = world.ask(ranks, asked, timeout_s=TIMEOUT_S)
        reports = [report for _, report in sorted(replies(answers).items())]
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    kept = {name for report in reports for name in report.kept}
    lost = {name: why for one in reports for name, why in (one.lost | one.left).items()}
    size = format_nbytes(sum(report.nbytes for report in reports))
    whose = plural(len(reports), "rank")
    line = f"Saved {plural(len(kept), 'variable')} of {whose} ({size}) in {final}."
    if lost:
        line += f" Not saved: {join_reasons(lost)}."
    return line


def restore(
    world: World,
    name: str,
    folder: str | Path,
    mesh: Mapping[str, int] | None,
    between: AbstractContextManager[object],
) -> str:
    """Bind what ``save`` wrote on all ranks, or on none; returns in a line what came back.

    The cluster must have the same jax as the one that was saved. With another number of ranks,
    arrays that span processes are cut for it (see ``engine.state.resizing``).
    Each rank reads its file and makes the values first; only when all have them, all bind them.
    Meanwhile no notebook hands out a cell.

    Args:
      between: a place among the cells of all notebooks.
      mesh: for another number of ranks: the sizes of the meshes' axes, where they must be named.

    Raises:
      UsageError: there is no checkpoint of that name; those that are there are named. Or ``mesh``
        must name the axis that takes the change.
      RecoveryError: it was saved by another jax, or a file of it can't be read, or is not this
        user's alone. Nothing was restored.
      CellInterrupted: stop was pressed; the message says what the ranks have now.
      RankDied, RankHung: a rank did not answer; the message says what the others have now.
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
    with between, stopbutton.held() as presses:
        restoring = Restoring(world, TIMEOUT_S, "%jaxcluster status shows where each rank is.")
        looks = _look(world, restoring, path, presses, mesh or {})
        lost = {n: why for look in looks.values() for n, why in look.lost.items()}
        unsaved = {n: why for look in looks.values() for n, why in look.unsaved.items()}
        reasons = {n: f"was not saved in checkpoint {name!r} ({why})" for n, why in unsaved.items()}
        reasons |= {n: f"was lost when {name!r} was restored ({why})" for n, why in lost.items()}
        before = next(iter(looks.values())).before
        reasons = resizing.reasons_of(looks, before) | reasons
        try:
            back, left = _bind(restoring, lost, reasons, presses)
        except JaxClusterError as error:
            again = f"%jaxcluster restore {name} brings it back on all."
            error.hint = f"The other ranks have restored it. {again}\n{error.hint}".strip()
            raise
    lost |= left
    line = f"Restored {plural(len(back - {*lost}), 'variable')} on {plural(len(looks), 'rank')}."
    if lost:
        line += f" Lost: {join_reasons(lost)}."
    return " ".join(filter(None, [line, resizing.tell(looks, before)]))


def _look(
    world: World, restoring: Restoring, path: Path, presses: list[None], mesh: Mapping[str, int]
) -> dict[int, RestoreLooked]:
    """Have all ranks read it; what they say that they would bind. Else none keeps what it read."""

    def check() -> None:
        world.check()
        if presses:
            raise CellInterrupted(f"Stopped. {UNTOUCHED}")

    look = RestoreLook(restoring.token, str(path), mesh=dict(mesh))
    try:
        return restoring.look(dict.fromkeys(range(world.num_processes), look), check)
    except JaxClusterError as error:
        error.hint = f"{UNTOUCHED}\n{error.hint}".strip()
        raise


def _bind(
    restoring: Restoring, lost: Collection[str], reasons: Mapping[str, str], presses: list[None]
) -> tuple[set[str], dict[str, str]]:
    """Have all ranks bind what they have read, which takes a moment and is not broken off."""
    told = False

    def check() -> None:
        nonlocal told
        if presses and not told:
            told = True
            print(TOO_LATE, file=sys.stderr, flush=True)
        if len(presses) > 1:
            raise CellInterrupted(
                "Stopped waiting. Each rank that has not answered gets the restored variables as "
                "soon as it is free."
            )

    return restoring.bind(lost, reasons, check)
