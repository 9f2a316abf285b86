"""The last resort that keeps the session: save every rank, start new processes, restore.

It needs no rank's main thread, so it works while all of them hang in different collectives, and
when ranks have died: a dead rank's successor takes the values that all ranks share from a survivor.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster import registry
from jaxcluster.errors import LaunchError, RankDied, RecoveryError
from jaxcluster.link import Event
from jaxcluster.ranks import name_ranks

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

SAVE_S = 300.0
RESTORE_S = 300.0
SHARED_MEMORY = Path("/dev/shm")
SPARE_NBYTES = 1 << 30


@dataclass(frozen=True)
class Rebuilt:
    """What came back.

    Attributes:
      kept: the names that all ranks which had them have again.
      lost: the others, and why.
      replaced: ranks whose processes had died.
      nothing_lived: there was no rank whose variables could be saved.
    """

    kept: tuple[str, ...]
    lost: dict[str, str] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()
    seconds: float = 0.0
    nothing_lived: bool = False

    def __str__(self) -> str:
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
        if self.lost:
            shown = [f"{name} ({why})" for name, why in sorted(self.lost.items())]
            more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
            text += f" Lost: {', '.join(shown[:8])}{more}."
        return text


def rebuild(cluster: Cluster, progress: Callable[[str], None] | None = None) -> Rebuilt:
    """Give ``cluster`` new processes with the variables of the old ones.

    Takes the time of a restart, plus a copy of all that the ranks hold, out and in. A rank that
    dies meanwhile costs a second try.

    Raises:
      RecoveryError: no living rank could be saved; nothing was ended then.
      LaunchError: the new processes did not come up; the cluster is stopped then.
      RankDied: a new rank died while it was given its variables, twice.
    """
    say = progress or (lambda line: None)
    started = time.perf_counter()
    folder = _state_folder()
    try:
        say("saving the ranks' variables ...")
        saved = _save(cluster, folder)
        missing = tuple(r for r in range(cluster.num_processes) if r not in saved)
        try:
            lost = _replace(cluster, folder, saved, progress)
        except (LaunchError, RankDied) as error:
            say(f"{error.message.partition(chr(10))[0]} Once more ...")
            lost = _replace(cluster, folder, saved, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for body in saved.values():
        for name, why in body["lost"].items():
            lost.setdefault(name, why)
    kept = {name for body in saved.values() for name in body["kept"]} - set(lost)
    seconds = time.perf_counter() - started
    return Rebuilt(tuple(sorted(kept)), lost, missing, seconds, not saved)


def _replace(
    cluster: Cluster,
    folder: Path,
    saved: dict[int, dict[str, Any]],
    progress: Callable[[str], None] | None,
) -> dict[str, str]:
    """New processes with what was saved; returns the names that are lost."""
    cluster.start_anew(progress)
    if not saved:
        return {}
    if progress is not None:
        progress("restoring the variables ...")
    return _restore(cluster, folder, saved)


def _state_folder() -> Path:
    """A private folder: in memory where there is room, else beside the clusters."""
    parent = registry.runtime_root()
    try:
        room = os.statvfs(SHARED_MEMORY)
        if room.f_bavail * room.f_frsize > SPARE_NBYTES:
            parent = SHARED_MEMORY
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="jaxcluster-state-", dir=parent))


def _save(cluster: Cluster, folder: Path) -> dict[int, dict[str, Any]]:
    """What each living rank has written; empty if none lives."""
    saved: dict[int, dict[str, Any]] = {}
    answers: dict[int, Event] = {}
    # Hashes tell the values that all ranks share from those that each has of its own.
    digests = bool(cluster.dead)
    while alive := [r for r in range(cluster.num_processes) if r not in cluster.dead]:
        body = {"path": str(folder), "digests": digests}
        answers = cluster.link.gather(alive, "snapshot", body, timeout_s=SAVE_S)
        saved = {rank: event.body for rank, event in answers.items() if event.op == "reply"}
        if digests or len(saved) == len(alive):
            break
        digests = True  # one has died meanwhile, so now they are needed
    died = [rank for rank, event in answers.items() if event.op == "died"]
    if not saved and len(died) < len(alive):
        why = next((str(e.body.get("message", e.body)) for e in answers.values()), "none answered")
        raise RecoveryError(
            f"No rank's variables could be saved ({why}).",
            "%jaxcluster restart --clean gives the ranks new processes and keeps nothing.",
        )
    return saved


def _restore(cluster: Cluster, folder: Path, saved: dict[int, dict[str, Any]]) -> dict[str, str]:
    """Bind the names on all ranks; returns those that are lost, unbound everywhere."""
    ranks = range(cluster.num_processes)
    donor = min(saved)
    shared, own = _shared_names(saved) if len(saved) < len(ranks) else ([], [])
    bodies = {
        rank: {"path": str(folder)}
        if rank in saved
        else {"path": str(folder), "from_rank": donor, "names": shared}
        for rank in ranks
    }
    answers = cluster.ask(ranks, "restore", bodies=bodies, timeout_s=RESTORE_S)
    why_own = "each rank had its own, and one died with it"
    if len(saved) == 1:
        why_own = "it may have been the only survivor's own"
    lost = dict.fromkeys(own, why_own)
    for rank, event in answers.items():
        for name, why in event.body["lost"].items():
            only = "its only copy died with the rank" if rank not in saved else why
            lost.setdefault(name, only)
    if lost:
        # Half of an array is worse than none: a name is there on all ranks or on none.
        cluster.ask(ranks, "unbind", {"names": sorted(lost)}, timeout_s=10.0)
    return lost


def _shared_names(saved: dict[int, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The names that all survivors have with equal values, and those with values of their own.

    A single survivor has nobody to compare with: then none counts as shared but what spans
    processes or says nothing of its rank (imports, meshes, functions), since a rank's own value on
    another rank would be silently wrong.
    """
    first, *others = saved.values()
    everywhere = [n for n in first["kept"] if all(n in body["kept"] for body in others)]
    shared = [
        name
        for name in everywhere
        if (
            name in first["spanning"] or name in first["common"]
            if not others
            else all(name in body["digests"] for body in saved.values())
            and all(body["digests"][name] == first["digests"][name] for body in others)
        )
    ]
    return shared, [name for name in everywhere if name not in shared]
