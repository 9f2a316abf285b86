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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from jaxcluster.errors import RecoveryError
from jaxcluster.host.free_space import memory_room
from jaxcluster.model.lineage import Makers
from jaxcluster.ranks import tell_each
from jaxcluster.records import claims, registry
from jaxcluster.wire.ops.state import SaveReport, Where

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "jaxcluster-state-"
ALIVE = "alive"


class StateFolder(Protocol):
    """Where ranks save their variables: folders on this machine, or on each host.

    What has a body here is so where all ranks see all files.
    """

    hint: str  # what to do where there is no room

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        """The folders that a rank may write to, the best one first; of memory, how much of it."""

    def lost(self, reports: Mapping[int, SaveReport]) -> dict[int, str]:
        """The ranks whose files can't be read now, each with the reason."""

    def donor_for(
        self, rank: int, donor: int, reports: Mapping[int, SaveReport]
    ) -> tuple[int, Where]:
        """Whose file ``rank`` is to take values from, where ``donor``'s would do; its folder.

        Raises:
          LaunchError: a host does not answer, or has no room.
        """
        return donor, reports[donor].folder

    def bring(self, rank: int, report: SaveReport) -> Where:
        """The folder in which ``rank`` finds the files that it has saved itself.

        Raises:
          LaunchError: as ``donor_for``.
        """
        return report.folder

    def folders_for(self, rank: int, reports: Mapping[int, SaveReport]) -> dict[int, Where]:
        """Where ``rank`` finds the file of each of these ranks, brought to its host if need be.

        Raises:
          LaunchError: as ``donor_for``.
        """
        return {one: report.folder for one, report in reports.items()}

    def bring_all(self) -> None:
        """Have ranks read nothing from other hosts: all that they need is brought to theirs."""

    def remove(self) -> None:
        """Remove all of it. Ranks may still be writing into it."""


class LocalStates(StateFolder):
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
        self,
        num_ranks: int = 1,
        look_after: Callable[[Sequence[Path]], Callable[[], None]] | None = None,
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
        self._leave = look_after(self.paths) if look_after is not None else _nothing

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

    def lost(self, reports: Mapping[int, SaveReport]) -> dict[int, str]:
        found = {}
        for rank, report in reports.items():
            path = Path(report.folder, f"rank-{rank}.state")
            try:
                size = path.stat().st_size
            except OSError as error:
                found[rank] = f"{path}: {error.strerror}"
            else:
                if size != report.file_nbytes:
                    found[rank] = f"{path}: another file"
        return found

    def bring_all(self) -> None:
        """All see all files."""

    def remove(self) -> None:
        """Remove it. Ranks may still be writing into it.

        It is renamed first: a rank opens its file by the folder's old name, and finds none any
        more.
        """
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
    """Where nobody looks after it."""


def _parents() -> list[Path]:
    """Where folders for saved variables may lie: in memory, beside the clusters, as one says."""
    found = [SHARED_MEMORY, registry.runtime_root()]
    if chosen := os.environ.get("TMPDIR"):
        found.append(Path(chosen).absolute())
    return [path for path in dict.fromkeys(found) if path.is_dir()]


@dataclass(frozen=True)
class Dead:
    """What is known of a rank that could not be saved.

    Attributes:
      names: those that it had, or may have bound since it told them; None where nobody knows.
      is_current: it had no others: all cells that it has run since are in ``names``.
      values: what they were when it told them last (``wire.NameChanges``), where that is known.
      others: what each rank that was saved had told by then, and has told no change of since.
      maybe: those of ``names`` that its last cell may have bound; it had not ended.
      unheard: the last cell that it has told of, where another notebook has sent it more.
    """

    names: frozenset[str] | None = None
    is_current: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    maybe: frozenset[str] = frozenset()
    unheard: int | None = None


def _texts(report: SaveReport, cell_is_undone: bool) -> dict[str, str]:
    """What the values are that a rank has saved (``wire.NameChanges``)."""
    texts, before = report.texts, report.before
    if cell_is_undone:
        texts = {n: t for n, t in texts.items() if n not in before.absent} | before.texts
    return {name: text for name, text in texts.items() if text}


@dataclass(frozen=True)
class Kept:
    """The saved variables of a cluster's ranks.

    Attributes:
      folder: where they are, a file a rank.
      reports: what each rank that could be saved says of its file.
      cell_is_undone: names that a cell has bound are to be what they were before it.
      dead: the ranks that could not be saved.
      num_processes: how many ranks there were.
      gone: why files that were saved can't be read any more, by rank.
      mesh: for another number of ranks: the sizes of the meshes' axes that were named.
      undone: the cells that are taken back.
      is_resized: it is for other ranks than have saved it: others in number, or on other hosts.
      notes: what is to be said of it when it is back.
      when: when names were lost that are lost, as in "in cell [3]".
      made_by: the cells that have made names.
    """

    folder: StateFolder
    reports: dict[int, SaveReport]
    cell_is_undone: bool
    dead: dict[int, Dead]
    num_processes: int
    gone: Mapping[int, str] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    undone: frozenset[int] = frozenset()
    is_resized: bool = False
    notes: str = ""
    when: str = "in a restart"
    made_by: Makers = field(default_factory=dict)

    def looked_at(self) -> Kept:
        """What of it can be read now: a host may be lost since, with what its ranks had saved.

        Those ranks are as if they had died before.
        """
        return self.without(self.folder.lost(self.reports))

    def without(self, gone: Mapping[int, str]) -> Kept:
        """The same where the files of these ranks can't be read, each with the reason."""
        left = {rank: report for rank, report in self.reports.items() if rank not in gone}
        texts = {r: _texts(report, self.cell_is_undone) for r, report in self.reports.items()}
        dead = dict(self.dead)
        for rank in gone.keys() & self.reports.keys():
            names = frozenset(self.reports[rank].names)
            dead[rank] = Dead(names, True, texts[rank], {r: texts[r] for r in left})
        return replace(self, reports=left, dead=dead, gone={**self.gone, **gone})

    @property
    def all_undone(self) -> frozenset[int]:
        """Those of ``undone`` of which nothing is left: all ranks know what was before them."""
        is_known = all(report.before.known for report in self.reports.values())
        return self.undone if is_known else frozenset()

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
