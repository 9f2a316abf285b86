"""What ranks have saved, until new processes have it: a private folder and what is in it.

A folder's file ``alive`` is locked by the process that looks after it. The kernel lets go of the
lock when that ends, so the next start, of any process, can remove what it has left, in memory too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jaxcluster.records import claims, registry

SHARED_MEMORY = Path("/dev/shm")
SPARE_NBYTES = 1 << 30
PREFIX = "jaxcluster-state-"
ALIVE = "alive"


class StateFolder(Protocol):
    """Where ranks save their variables: one folder, or one on each host."""

    def path_of(self, rank: int) -> str:
        """The folder that a rank writes into and reads from."""

    def donor_for(self, rank: int, donor: int, saved: Sequence[int]) -> int:
        """Which rank's file ``rank`` is to take values from, where ``donor``'s would do."""

    def remove(self) -> None:
        """Remove all of it. Ranks may still be writing into it."""


class Folder:
    """A private folder of this process: in memory where there is room, else beside the clusters."""

    def __init__(self) -> None:
        parent = registry.runtime_root()
        with contextlib.suppress(OSError):
            room = os.statvfs(SHARED_MEMORY)
            if room.f_bavail * room.f_frsize > SPARE_NBYTES:
                parent = SHARED_MEMORY
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = os.open(self.path / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_SH)

    def path_of(self, rank: int) -> str:
        """The folder that a rank writes into and reads from."""
        return str(self.path)

    def donor_for(self, rank: int, donor: int, saved: Sequence[int]) -> int:
        """Which rank's file ``rank`` is to take values from: all see all files."""
        return donor

    def remove(self) -> None:
        """Remove it. Ranks may still be writing into it.

        It is renamed first: a rank opens its file by the folder's old name, and finds none any
        more.
        """
        gone = self.path.with_name(f"{self.path.name}.gone")
        with contextlib.suppress(OSError):
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@dataclass(frozen=True)
class Kept:
    """The saved variables of a cluster's ranks.

    Attributes:
      folder: where they are, a file a rank.
      reports: what each rank that could be saved says of its file (``Saved.report``).
      cell_is_undone: names that a cell has bound are to be what they were before it.
      dead_names: the names that a rank had which could not be saved; None where nobody knows.
    """

    folder: StateFolder
    reports: dict[int, dict[str, Any]]
    cell_is_undone: bool
    dead_names: dict[int, set[str] | None]

    def remove(self) -> None:
        self.folder.remove()


def sweep() -> None:
    """Remove what processes that have ended had saved."""
    for path in folders():
        if claims.is_locked(path / ALIVE) is False and claims.is_local(path):
            shutil.rmtree(path, ignore_errors=True)


def folders() -> Iterator[Path]:
    """This user's, of all processes."""
    for parent in (SHARED_MEMORY, registry.runtime_root()):
        for path in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode):
                    yield path
