"""Who has a cluster's name: taken before anything is started, given back when all has ended.

A cluster's folder holds a file ``alive``. It says who has made the folder, and it is locked by the
process that starts the cluster and by the agent that carries it. The kernel releases a lock
when its holder ends, however that ends; so a lock that is held is a sign of life, whatever
namespace or container its holder is in, and one that nobody holds is a sign of death, as far as
locks reach: over all processes of one kernel. A folder may be shared with other hosts (a home
directory), whose locks need not be seen here. What can't be judged is left alone.

A folder appears under its name in one step, with the locked file in it (``rename``), so of two
starts at the same moment one gets the name.
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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxcluster.errors import JaxClusterError, LaunchError
from jaxcluster.records import registry
from jaxcluster.records.runtimefolder import CHOOSE, inside, runtime_root
from jaxcluster.supervision import folders
from jaxcluster.supervision.processes import is_alive, pid_space, process_token

ALIVE = registry.ALIVE
LOCK_S = 10.0
DRAFT, DEAD = ".start-", ".dead-"  # no cluster's name begins with a dot

# What statfs says of file systems that one kernel alone has mounted: tmpfs, ext2 to 4, xfs, btrfs,
# overlayfs, zfs, f2fs, bcachefs, ramfs. A lock in any other may be another host's, unseen here.
LOCAL_FILE_SYSTEMS = frozenset(
    (
        0x01021994,
        0xEF53,
        0x58465342,
        0x9123683E,
        0x794C7630,
        0x2FC12FC1,
        0xF2F52010,
        0xCA451A4E,
        0x858458F6,
    )
)


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
    """A name that this process has, until ``let_go`` or its end."""

    def __init__(self, name: str, id: str, lock: int) -> None:
        self.name = name
        self.id = id
        self._lock = lock

    @property
    def descriptor(self) -> int:
        """The locked file's: a process that inherits it keeps the name alive."""
        return self._lock

    def let_go(self) -> None:
        """Take no part in it any more; others that hold it keep it alive."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove the folder, if it is still this claim's, and release the name."""
        remove(self.name, self.id)
        self.let_go()

    @property
    def is_held(self) -> bool:
        """Whether the name is this process's still."""
        if self._lock < 0:
            return False
        holder = read_holder(inside() / self.name)
        return holder is not None and holder.id == self.id

    def empty(self) -> None:
        """Remove the files that a cluster has left, for the next one of the same name.

        Other folders are its launcher's, which goes on, and the reports of what went wrong.
        """
        shutil.rmtree(inside() / self.name / registry.CONTROLLER, ignore_errors=True)
        for path in (inside() / self.name).iterdir():
            if path.name not in (ALIVE, registry.HELD) and not path.is_dir():
                path.unlink(missing_ok=True)


def claim(name: str) -> Claim | None:
    """The name, for this process; None if somebody else has it or may have it.

    What a dead cluster or start has left under it is removed.

    Raises:
      LaunchError: nothing can be written there.
    """
    try:
        return _claim(name)
    except OSError as error:
        raise LaunchError(
            f"Nothing can be started in {runtime_root()}: {error.strerror}.", CHOOSE
        ) from None


def _claim(name: str) -> Claim | None:
    root = inside()
    draft, id, lock = _draft(root)
    with _one_at_a_time(root):
        for _ in range(2):
            try:
                draft.rename(root / name)
            except OSError:  # it is there
                if judge(root / name) is not Life.DEAD:
                    break
                _discard(root / name)
            else:
                return Claim(name, id, lock)
    os.close(lock)
    shutil.rmtree(draft, ignore_errors=True)
    return None


def _draft(root: Path) -> tuple[Path, str, int]:
    """A folder of this process's own that has no cluster's name yet: (it, its id, its lock)."""
    id = secrets.token_hex(8)
    draft = root / f"{DRAFT}{id}"
    draft.mkdir(mode=0o700)
    holder = Holder(id, pid_space(), process_token(os.getpid()), socket.gethostname())
    lock = os.open(draft / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH)
    os.write(lock, json.dumps(asdict(holder)).encode())  # last: what can be read is locked
    return draft, id, lock


def is_free(name: str) -> bool:
    """Whether nobody has a name, as far as is known here."""
    folder = inside() / name
    with _one_at_a_time(inside()):
        return not os.path.lexists(folder) or judge(folder) is Life.DEAD


def lives(names: Iterable[str]) -> dict[str, Life]:
    """Of each of these clusters whether it lives."""
    root = inside()
    with _one_at_a_time(root):
        return {name: judge(root / name) for name in names}


def holds(name: str, id: str) -> bool:
    """Whether a name is a claim's still, as far as that is known: also while no ranks run."""
    root = inside()
    with _one_at_a_time(root):
        holder = read_holder(root / name)
        return holder is not None and holder.id == id and judge(root / name) is not Life.DEAD


def judge(folder: Path) -> Life:
    """Whether a cluster lives, or is being started, in a folder, as far as that is known here."""
    holder, record = read_holder(folder), registry.parse(folder)
    held = registry.is_locked(folder / ALIVE)
    here = pid_space()
    if holder is None:  # no claim: a folder of an older version, or not ours
        return Life.UNKNOWN
    # A cluster ends with its owner, whoever else has inherited the lock; a detached one has none.
    owner = holder.owner if record is None else record.owner
    if owner and holder.pid_space == here and not is_alive(owner):
        return Life.DEAD
    if held or (held is None and owner and holder.pid_space == here):
        return Life.ALIVE
    if held is False and (holder.pid_space == here or is_local(folder)):
        return Life.DEAD
    return Life.UNKNOWN


def listens(path: Path) -> bool:
    """Whether a process of this kernel listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # it has more connections than it can take at the moment
            return True
        except OSError:
            return False
    return True


def read_holder(folder: Path) -> Holder | None:
    try:
        found = json.loads((folder / ALIVE).read_bytes())
        return Holder(*(str(found[k]) for k in ("id", "pid_space", "owner", "hostname")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_local(path: Path) -> bool:
    """Whether a file system is mounted by this kernel alone, so that all its locks are seen."""
    buffer = ctypes.create_string_buffer(256)  # struct statfs: its first field is the type
    if ctypes.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return False
    width = ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder) & 0xFFFFFFFF in LOCAL_FILE_SYSTEMS


def remove(name: str, id: str) -> None:
    """Remove a cluster's folder, unless the name is somebody else's by now.

    Args:
      id: the claim's; "" of a cluster of an older version, which has none.
    """
    root = inside()
    with _one_at_a_time(root):
        holder = read_holder(root / registry.check_name(name))
        if (holder.id if holder is not None else "") == id:
            _discard(root / name)


def tidy() -> None:
    """Remove the folders of clusters, and of starts, that are known to be dead."""
    root = inside()
    with _one_at_a_time(root):
        for folder in root.iterdir():
            if folder.name.startswith(DEAD):
                shutil.rmtree(folder, ignore_errors=True)
            elif _is_ours(folder.name) and judge(folder) is Life.DEAD:
                _discard(folder)


def _is_ours(name: str) -> bool:
    return name.startswith(DRAFT) or registry.is_name(name)


def _discard(folder: Path) -> None:
    """Remove a folder: its name is free at once, and nobody sees half of it."""
    away = folder.with_name(f"{DEAD}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


@contextlib.contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """While a name changes hands: who has found it dead must not remove its next owner's folder.

    To look whether a lock is held takes it for a moment, which another one must not see either.
    """
    try:
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        hint = "ulimit -n 4096" if error.errno == errno.EMFILE else CHOOSE
        raise JaxClusterError(
            f"{runtime_root()}/.lock can't be opened: {error.strerror}.", hint
        ) from None
    try:
        if not folders.lock(lock, LOCK_S):
            raise JaxClusterError(
                f"A process has held {runtime_root()}/.lock for {LOCK_S:g} s, but needs it only "
                "for a moment. Is it stopped (Ctrl-Z)?",
                f"fuser {runtime_root()}/.lock shows which process it is.",
            )
        yield
    finally:
        os.close(lock)
