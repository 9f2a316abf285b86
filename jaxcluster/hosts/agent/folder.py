"""An agent's folder on its host: private, with a record of who it is, and gone with it.

It lies in this user's folder of clusters. A host removes ``$XDG_RUNTIME_DIR`` at the user's last
logout, so it never lies there. Files that must be fast lie in a second folder, in memory.

The record names the agent's and the fork server's process. So a later agent can remove the remains
of a killed one. Two agents of one cluster on one host would share a GPU or TPU. So the later one
first ends the older one (the fence).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import JaxClusterError
from jaxcluster.hosts.records.runtimefolder import VARIABLE, runtime_root
from jaxcluster.supervision.ends import KILLED_S, end
from jaxcluster.supervision.processes import is_alive, pid_space

PREFIX = ".agent-"  # no cluster's name begins with a dot
RECORD = "agent.json"
MEMORY = Path("/dev/shm")
ENDED_S = 8.0  # until an older agent has ended
ROOM = 4 << 20  # bytes that logs and sockets need at least


@dataclass(frozen=True)
class Record:
    """Who an agent is. ``id`` names a cluster's place on a host; "" is no place of any."""

    id: str
    token: str
    fork_token: str
    pid_space: str
    memory: str


@dataclass(frozen=True)
class Folder:
    """The two folders of an agent. ``memory`` is the first one where there is none in memory."""

    path: Path
    memory: Path

    def inside(self, name: str) -> Path:
        """The path that a request names, if it lies in one of the two, links followed.

        Raises:
          PermissionError: it does not.
        """
        path = Path(os.path.realpath(self.path / name))
        if not {Path(os.path.realpath(p)) for p in (self.path, self.memory)} & {*path.parents}:
            raise PermissionError(f"{path} is not in the folder of this cluster on this host")
        return path

    def write(self, record: Record) -> None:
        draft = self.path / f"{RECORD}.part"
        draft.write_text(json.dumps(asdict(record)))
        draft.rename(self.path / RECORD)

    def remove(self) -> None:
        for path in (self.memory, self.path):
            shutil.rmtree(path, ignore_errors=True)


def root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of agents' folders on this host.

    Raises:
      JaxClusterError: there is no place for them.
    """
    return runtime_root({k: v for k, v in environ.items() if k == VARIABLE})


def make(place: Path, memory: Path = MEMORY) -> Folder:
    """A new folder, mode 0700, in ``place`` and one in memory.

    Raises:
      JaxClusterError: it can't be made, or there is no room.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    except OSError as error:
        raise JaxClusterError(
            f"{place} on {os.uname().nodename} can't be written to: {error.strerror}.",
            f"Name another folder on that host: --env {VARIABLE}=/path",
        ) from None
    if (free := shutil.disk_usage(path).free) < ROOM:
        path.rmdir()
        raise JaxClusterError(
            f"{place} on {os.uname().nodename} is full: {free >> 10} KiB are free there.",
            f"Free some space, or name another folder on that host: --env {VARIABLE}=/path",
        )
    inner = memory / f"jaxcluster-{os.getuid()}-{path.name.removeprefix(PREFIX)}"
    try:
        inner.mkdir(mode=0o700)
    except OSError:
        inner = path
    return Folder(path, inner)


def fence(place: Path, id: str) -> list[str]:
    """End every other agent of this id on this host. Returns the tokens of those that there were.

    Raises:
      JaxClusterError: one does not end, or may live where its processes can't be seen.
    """
    ended = []
    for path, record in records(place):
        if record.id != id or not id:
            continue
        if record.pid_space != pid_space():
            raise JaxClusterError(
                f"An older agent of this cluster ({path}) was started in another container. This "
                "one can't see whether it has ended.",
                f"If it has: rm -r {path}",
            )
        ended.append(record.token)
        end(record.token, signal.SIGTERM, ENDED_S)
        for token in (record.token, record.fork_token):
            if not end(token, signal.SIGKILL, KILLED_S):
                raise JaxClusterError(
                    f"An older agent of this cluster (process {token.partition(':')[0]} on "
                    f"{os.uname().nodename}) can't be ended."
                )
        _remove(path, record)
    return ended


def sweep(place: Path) -> None:
    """Remove the folders of agents that are known to have ended."""
    here = pid_space()
    for path, record in records(place):
        tokens = (record.token, record.fork_token)
        if record.pid_space == here and not any(map(is_alive, tokens)):
            _remove(path, record)


def records(place: Path) -> Iterator[tuple[Path, Record]]:
    """The folders of agents in ``place``, and who they are or were."""
    for path in sorted(place.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            yield path, wire.parse(Record, json.loads((path / RECORD).read_bytes()))


def _remove(path: Path, record: Record) -> None:
    """Remove an agent's folders; of what its record names, only what such a folder is called."""
    name = f"jaxcluster-{os.getuid()}-{path.name.removeprefix(PREFIX)}"
    memory = Path(record.memory)
    replace(Folder(path, path), memory=memory if memory.name == name else path).remove()
