"""What ranks have saved, until new processes have it: private folders and what is in them.

A folder's file ``alive`` is locked by the process that looks after it. The kernel releases the
lock when that ends, so the next start, of any process, can remove what it has left, in memory too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from jaxcluster.errors import RecoveryError
from jaxcluster.host.free_space import memory_room
from jaxcluster.ranks import tell_each
from jaxcluster.records import claims, registry
from jaxcluster.wire.ops.saving import Saved

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "jaxcluster-state-"
ALIVE = "alive"


class StateFolder(Protocol):
    """Where ranks save their variables: folders on this machine, or on each host."""

    hint: str  # what to do where there is no room

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        """The folders that a rank may write to, the best one first; of memory, how much of it."""

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        """The ranks whose files can't be read now, each with the reason."""

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        """Where ``rank`` finds the files ``of`` these ranks, brought to its host if need be.

        Raises:
          LaunchError: a host does not answer, or has no room.
        """

    def remove(self) -> None:
        """Remove all of it. Ranks may still be writing into it."""


class LocalStates:
    """Private folders of this process: one in memory, and one on each disk that may have room.

    Args:
      num_ranks: how many will save at once, and share the memory.
      look_after: has the folders removed should this process be killed; returns what ends that.

    Raises:
      RecoveryError: no folder can be made.
    """

    hint = (
        "Free some space there, or name a folder on another disk: %env TMPDIR=/path   then "
        "%jaxcluster restart"
    )

    def __init__(
        self, num_ranks: int, look_after: Callable[[Sequence[Path]], Callable[[], None]]
    ) -> None:
        self.paths: list[Path] = []
        self._locks: list[int] = []
        self._rooms: list[int | None] = []
        whys = []
        for parent in _parents():
            try:
                self._make(parent, num_ranks)
            except OSError as error:
                whys.append(f"{parent}: {error.strerror}")
        if not self.paths:
            raise RecoveryError(
                f"There is no folder for the ranks' variables ({'; '.join(whys)}).", self.hint
            )
        self._leave = look_after(self.paths)

    def _make(self, parent: Path, num_ranks: int) -> None:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            path.chmod(0o700)  # whatever the umask
            lock = os.open(path / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        self.paths.append(path)
        self._locks.append(lock)
        self._rooms.append(memory_room(path) // num_ranks if parent == SHARED_MEMORY else None)

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        return [(str(path), room) for path, room in zip(self.paths, self._rooms, strict=True)]

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        return {
            rank: f"{report.folder} is gone"
            for rank, report in reports.items()
            if not os.path.isdir(report.folder)
        }

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        """All see all files."""
        return {one: reports[one].folder for one in of}

    def remove(self) -> None:
        """It is renamed first: a rank opens its file by the folder's old name, and finds none."""
        for path in self.paths:
            gone = path.with_name(f"{path.name}.gone")
            with contextlib.suppress(OSError):
                path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        while self._locks:
            os.close(self._locks.pop())
        leave, self._leave = self._leave, _nothing
        leave()


def _nothing() -> None:
    """Nobody looks after it any more."""


def _parents() -> list[Path]:
    """Where folders for saved variables may lie: in memory, beside the clusters, as one says."""
    found = [SHARED_MEMORY, registry.runtime_root()]
    if chosen := os.environ.get("TMPDIR"):
        found.append(Path(chosen).absolute())
    return [path for path in dict.fromkeys(found) if path.is_dir()]


@dataclass(frozen=True)
class Kept:
    """The saved variables of a cluster's ranks.

    Attributes:
      folder: where they are.
      reports: what each rank that could be saved says of its files.
      num_processes: how many ranks there were.
      had: the names, as far as they are known, of ranks that could not be saved.
      gone: why files that were saved can't be read any more, by rank.
      mesh: for another number of ranks: the sizes of the meshes' axes that were named.
    """

    folder: StateFolder
    reports: Mapping[int, Saved]
    num_processes: int
    had: Mapping[int, frozenset[str]] = field(default_factory=dict)
    gone: Mapping[int, str] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)

    def looked_at(self) -> Kept:
        """What of it can be read now: a host may be lost since, with what its ranks had saved."""
        return self.without(self.folder.lost(self.reports))

    def without(self, gone: Mapping[int, str]) -> Kept:
        """The same where the files of these ranks can't be read, each with the reason."""
        left = {rank: report for rank, report in self.reports.items() if rank not in gone}
        had = {rank: frozenset(self.reports[rank].kept) for rank in gone}
        return replace(self, reports=left, had={**self.had, **had}, gone={**self.gone, **gone})

    @property
    def why_gone(self) -> str:
        """The ranks whose files can't be read any more, and why; "" where all can."""
        return tell_each(self.gone)


def sweep() -> None:
    """Remove what processes that have ended had saved."""
    for path in folders():
        if registry.is_locked(path / ALIVE) is False and claims.is_local(path):
            shutil.rmtree(path, ignore_errors=True)


def folders() -> Iterator[Path]:
    """This user's, of all processes."""
    for parent in _parents():
        for path in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode):
                    yield path
