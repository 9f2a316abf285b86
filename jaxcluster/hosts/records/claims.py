"""Who has a cluster's name: taken before anything is started, given back when all has ended.

A cluster's folder holds a file ``alive``. It says who has made the folder. The process that starts
the cluster locks it, and so does the agent that carries it. The kernel releases a lock when its
holder ends. So a lock that is held is a sign of life. One that nobody holds is a sign of death
where this host made the folder. Another host may share it, and have a lock that is not seen here.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxcluster.errors import JaxClusterError, LaunchError
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.records.registry import ALIVE, HELD, is_locked
from jaxcluster.hosts.records.runtimefolder import CHOOSE, runtime_root
from jaxcluster.supervision import folders
from jaxcluster.supervision.processes import is_alive, pid_space, process_token

LOCK_S = 10.0
DEAD = ".dead-"  # no cluster's name begins with a dot


class Life(enum.Enum):
    """Whether the cluster of a folder lives, as far as that is known here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"  # on another host, or of another version: it is left alone


class Holder(NamedTuple):
    """The maker of the folder, as ``alive`` names it."""

    id: str
    pid_space: str
    owner: str
    hostname: str


class Claim:
    """A name that this process has, until ``let_go`` or its end.

    Attributes:
      descriptor: the locked file's: a process that inherits it keeps the name alive.
    """

    def __init__(self, name: str, id: str, lock: int) -> None:
        self.name, self.id, self.descriptor = name, id, lock

    def let_go(self) -> None:
        """Take no part in it any more; others that hold it keep it alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def remove(self) -> None:
        """Remove the folder, if it is still this claim's, and release the name."""
        remove(self.name, self.id)
        self.let_go()

    @property
    def is_held(self) -> bool:
        """Whether the name is this process's still."""
        return self.descriptor >= 0 and _id_of(registry.folder(self.name)) == self.id

    def empty(self) -> None:
        """Remove what a cluster has left, for the next one of the same name.

        Other folders are its launcher's, which goes on, and the reports of what went wrong.
        """
        for path in registry.folder(self.name).iterdir():
            if path.name not in (ALIVE, HELD) and not path.is_dir():
                path.unlink(missing_ok=True)


def claim(name: str) -> Claim | None:
    """The name, for this process; None if somebody else has it or may have it.

    Remains of a dead cluster or start under this name are removed.

    Raises:
      LaunchError: nothing can be written there.
    """
    try:
        with _one_at_a_time() as root:
            if judge(root / name) is not Life.DEAD:
                return None
            _discard(root / name)
            return _take(root, name)
    except OSError as error:
        raise LaunchError(
            f"Nothing can be started in {runtime_root()}: {error.strerror}.", CHOOSE
        ) from None


def _take(root: Path, name: str) -> Claim:
    """The folder appears under its name in one step, with the locked file in it."""
    id = secrets.token_hex(8)
    draft = root / f"{DEAD}{id}"
    draft.mkdir(mode=0o700)
    lock = os.open(draft / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        holder = Holder(id, pid_space(), process_token(os.getpid()), socket.gethostname())
        os.write(lock, json.dumps(holder._asdict()).encode())
        draft.rename(root / name)
    except BaseException:
        os.close(lock)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Claim(name, id, lock)


def life(name: str) -> Life:
    """Whether a cluster lives; one that is not there is dead."""
    with _one_at_a_time() as root:
        return judge(root / name)


def holds(name: str, id: str) -> bool:
    """Whether a name is a claim's still, as far as that is known: also while no ranks run."""
    with _one_at_a_time() as root:
        return _id_of(root / name) == id and judge(root / name) is not Life.DEAD


def judge(folder: Path) -> Life:
    if not os.path.lexists(folder):
        return Life.DEAD
    holder, record = read_holder(folder), registry.parse(folder)
    if holder is None:
        return Life.UNKNOWN
    # A cluster ends with its owner, whoever else has inherited the lock; a detached one has none.
    owner = holder.owner if record is None else record.owner
    if owner and holder.pid_space == pid_space() and not is_alive(owner):
        return Life.DEAD
    if is_locked(folder / ALIVE):
        return Life.ALIVE
    # By this kernel, for another container too; or by this host, before it was booted again.
    was_here = holder.pid_space.split()[:1] == pid_space().split()[:1]
    was_here = was_here or holder.hostname == socket.gethostname()
    return Life.DEAD if was_here else Life.UNKNOWN


def read_holder(folder: Path) -> Holder | None:
    """Who has made a folder; None of one that is no cluster's."""
    try:
        found = json.loads((folder / ALIVE).read_bytes())
        return Holder(*(str(found[name]) for name in Holder._fields))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _id_of(folder: Path) -> str:
    holder = read_holder(folder)
    return holder.id if holder is not None else ""


def remove(name: str, id: str) -> None:
    """Remove a cluster's folder, unless the name is another claim's by now."""
    with _one_at_a_time() as root:
        if _id_of(root / registry.check_name(name)) == id:
            _discard(root / name)


def tidy() -> None:
    """Remove the folders of clusters that are known to be dead."""
    with _one_at_a_time() as root:
        for folder in root.iterdir():
            if folder.name.startswith(DEAD):
                shutil.rmtree(folder, ignore_errors=True)
            elif registry.is_name(folder.name) and judge(folder) is Life.DEAD:
                _discard(folder)


def _discard(folder: Path) -> None:
    """Remove a folder: its name is free at once, and nobody sees half of it."""
    away = folder.with_name(f"{DEAD}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[Path]:
    """The folder of clusters, while nobody else takes, looks at or gives back a name."""
    root = runtime_root()
    try:
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JaxClusterError(f"{root}/.lock can't be opened: {error.strerror}.", CHOOSE) from None
    try:
        if not folders.lock(lock, LOCK_S):
            raise JaxClusterError(
                f"A process has held {root}/.lock for {LOCK_S:g} s. Is it stopped (Ctrl-Z)?",
                f"fuser {root}/.lock shows which process it is.",
            )
        yield root
    finally:
        os.close(lock)
