"""Who has a cluster's name: taken before anything is started, given back when all has ended.

A cluster's folder holds a file ``alive``. It says who has made the folder, and it is locked by the
process that starts the cluster and by the agent that carries it. The kernel releases a lock when
its holder ends, however that ends. So a lock that is held is a sign of life. One that nobody holds
is a sign of death where all locks are seen: of processes of this pid namespace, and on a file
system that one kernel alone has mounted. Elsewhere another host or container may share the folder
(a home directory), and have a lock that is not seen here. What can't be judged is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxcluster.errors import JaxClusterError, LaunchError
from jaxcluster.records import registry
from jaxcluster.records.registry import ALIVE, CONTROLLER, HELD, is_locked
from jaxcluster.records.runtimefolder import CHOOSE, runtime_root
from jaxcluster.supervision import folders
from jaxcluster.supervision.processes import is_alive, pid_space, process_token

LOCK_S = 10.0
DRAFT, DEAD = ".start-", ".dead-"  # no cluster's name begins with a dot

# What statfs says of file systems that one kernel alone has mounted.
LOCAL_FILE_SYSTEMS = {
    0x01021994: "tmpfs",
    0xEF53: "ext2 to 4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x794C7630: "overlayfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x858458F6: "ramfs",
}


class Life(enum.Enum):
    """What can be said of a folder's cluster from here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"  # on another host, or of another version: it is left alone


@dataclass(frozen=True)
class Holder:
    """What ``alive`` says of who has made the folder."""

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
        folder = registry.folder(self.name)
        shutil.rmtree(folder / CONTROLLER, ignore_errors=True)
        for path in folder.iterdir():
            if path.name not in (ALIVE, HELD) and not path.is_dir():
                path.unlink(missing_ok=True)


def claim(name: str) -> Claim | None:
    """The name, for this process; None if somebody else has it or may have it.

    What a dead cluster or start has left under it is removed.

    Raises:
      LaunchError: nothing can be written there.
    """
    try:
        with _one_at_a_time() as root:
            folder = root / name
            if os.path.lexists(folder):
                if judge(folder) is not Life.DEAD:
                    return None
                _discard(folder)
            return _take(root, name)
    except OSError as error:
        raise LaunchError(
            f"Nothing can be started in {runtime_root()}: {error.strerror}.", CHOOSE
        ) from None


def _take(root: Path, name: str) -> Claim:
    """The folder appears under its name in one step, with the locked file in it."""
    id = secrets.token_hex(8)
    draft = root / f"{DRAFT}{id}"
    draft.mkdir(mode=0o700)
    lock = os.open(draft / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        holder = Holder(id, pid_space(), process_token(os.getpid()), socket.gethostname())
        os.write(lock, json.dumps(asdict(holder)).encode())
        draft.rename(root / name)
    except BaseException:
        os.close(lock)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Claim(name, id, lock)


def life(name: str) -> Life:
    """Whether a cluster lives."""
    with _one_at_a_time() as root:
        return judge(root / name)


def is_free(name: str) -> bool:
    """Whether nobody has a name, as far as is known here."""
    with _one_at_a_time() as root:
        return not os.path.lexists(root / name) or judge(root / name) is Life.DEAD


def holds(name: str, id: str) -> bool:
    """Whether a name is a claim's still, as far as that is known: also while no ranks run."""
    with _one_at_a_time() as root:
        return _id_of(root / name) == id and judge(root / name) is not Life.DEAD


def judge(folder: Path) -> Life:
    """Whether a cluster lives, or is being started, in a folder, as far as that is known here."""
    holder, record = read_holder(folder), registry.parse(folder)
    if holder is None:
        return Life.UNKNOWN
    is_near = holder.pid_space == pid_space()
    # A cluster ends with its owner, whoever else has inherited the lock; a detached one has none.
    owner = holder.owner if record is None else record.owner
    if owner and is_near and not is_alive(owner):
        return Life.DEAD
    held = is_locked(folder / ALIVE)
    if held or (held is None and owner and is_near):
        return Life.ALIVE
    return Life.DEAD if held is False and (is_near or is_local(folder)) else Life.UNKNOWN


def is_local(path: Path) -> bool:
    """Whether a file system is mounted by this kernel alone, so that all its locks are seen."""
    buffer = ctypes.create_string_buffer(256)  # struct statfs: its first field is the type
    if ctypes.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return False
    width = ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder) & 0xFFFFFFFF in LOCAL_FILE_SYSTEMS


def read_holder(folder: Path) -> Holder | None:
    """Who has made a folder; None of one that is no cluster's."""
    try:
        found = json.loads((folder / ALIVE).read_bytes())
        return Holder(*(str(found[k]) for k in ("id", "pid_space", "owner", "hostname")))
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
    """Remove the folders of clusters, and of starts, that are known to be dead."""
    with _one_at_a_time() as root:
        for folder in root.iterdir():
            is_draft = folder.name.startswith(DRAFT)  # another host's may be on its way
            if folder.name.startswith(DEAD):
                shutil.rmtree(folder, ignore_errors=True)
            elif (is_draft or registry.is_name(folder.name)) and judge(folder) is Life.DEAD:
                _discard(folder)


def _discard(folder: Path) -> None:
    """Remove a folder: its name is free at once, and nobody sees half of it."""
    away = folder.with_name(f"{DEAD}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[Path]:
    """The folder of clusters, while nobody else takes or gives back a name.

    Who has found a name dead must not remove its next owner's folder. To look whether a lock is
    held takes it for a moment, which another one must not see either.
    """
    root = runtime_root()
    try:
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        hint = "ulimit -n 4096" if error.errno == errno.EMFILE else CHOOSE
        raise JaxClusterError(f"{root}/.lock can't be opened: {error.strerror}.", hint) from None
    try:
        if not folders.lock(lock, LOCK_S):
            raise JaxClusterError(
                f"A process has held {root}/.lock for {LOCK_S:g} s, but needs it only "
                "for a moment. Is it stopped (Ctrl-Z)?",
                f"fuser {root}/.lock shows which process it is.",
            )
        yield root
    finally:
        os.close(lock)
