"""The clusters of this user on this machine: a folder each, with a record that others can read.

    <runtime>/<name>/cluster.json     the record (ClusterRecord)
                     rank-0.sock      the ranks' own sockets
                     rank-0.log       what they wrote to file descriptors 1 and 2
                     lock             held while a cell is handed out; holds the last cells' seqs
                     held             locked by all processes that are connected to it
                     fork.sock        the fork server's socket

The folder belongs to the user alone (0700): whoever can't enter it can't talk to the ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import JaxClusterError, NoCluster, UsageError

MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, and rank-1234.sock must fit behind the folder


@dataclass(frozen=True)
class ClusterRecord:
    """What it takes to find a running cluster again.

    ``owner`` is the token (pid:start) of the process that the cluster ends with; "" if detached.
    ``addresses``, ``pids`` and ``logs`` are indexed by rank. ``coordinator_pid`` is the one that
    hosts JAX's coordination service; 0: rank 0 does, and all others end with it.
    """

    name: str
    spec: wire.ClusterSpec
    owner: str
    created_ns: int
    host_key: str
    hostname: str
    supervisor: str
    addresses: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    facts: list[wire.EngineFacts] = field(default_factory=list)
    devices: list[wire.InitializeReply] = field(default_factory=list)
    cluster_file: str = ""
    notebook: str = ""
    coordinator_pid: int = 0


def runtime_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all clusters of this user, made if need be.

    Raises:
      JaxClusterError: it is there and belongs to somebody else.
    """
    if chosen := environ.get("JAXCLUSTER_RUNTIME_DIR"):
        root = Path(chosen)
    elif xdg := environ.get("XDG_RUNTIME_DIR"):
        root = Path(xdg) / "jaxcluster"
    else:
        root = Path(tempfile.gettempdir()) / f"jaxcluster-{os.getuid()}"
    if len(str(root)) > MAX_SOCKET_PATH - 40:
        root = Path("/tmp") / f"jaxcluster-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.stat()
    if found.st_uid != os.getuid():
        raise JaxClusterError(
            f"{root} belongs to another user.",
            "Set JAXCLUSTER_RUNTIME_DIR to a folder of your own with a short path.",
        )
    if found.st_mode & 0o077:
        root.chmod(0o700)
    return root


def check_name(name: str) -> str:
    """``name``, if a cluster may be called so.

    Raises:
      UsageError: it may not.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", name):
        raise UsageError(
            f"{name!r} can't be a cluster's name: it takes letters, digits, '-', '_' and '.', "
            "31 at most.",
            "For example: %jaxcluster start --name exp1",
        )
    return name


def folder(name: str) -> Path:
    return runtime_root() / name


def write(record: ClusterRecord) -> None:
    """Save the record, so that no reader ever sees half of it."""
    path = folder(record.name) / "cluster.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(dataclasses.asdict(record), indent=1))
    draft.replace(path)


def read(name: str) -> ClusterRecord:
    """The record of a cluster.

    Raises:
      NoCluster: there is none of that name.
    """
    try:
        text = (folder(name) / "cluster.json").read_text()
        return wire.parse(ClusterRecord, json.loads(text))
    except (OSError, ValueError):
        others = ", ".join(r.name for r in records())
        raise NoCluster(
            f"There is no cluster {name!r} here"
            + (f" (running: {others})." if others else "; none is running."),
            f"Type %jaxcluster attach {others.split(',')[0]}"
            if others
            else "Start one: %jaxcluster start -n 4",
        ) from None


def records() -> list[ClusterRecord]:
    """All clusters that have a record, oldest first."""
    found = []
    for path in runtime_root().glob("*/cluster.json"):
        with contextlib.suppress(OSError, ValueError):
            found.append(wire.parse(ClusterRecord, json.loads(path.read_text())))
    return sorted(found, key=lambda record: record.created_ns)


def remove(name: str) -> None:
    shutil.rmtree(folder(name), ignore_errors=True)


def hold(name: str) -> Callable[[], None]:
    """Show that somebody is connected, until what it returns is called or this process ends."""
    try:
        held = os.open(folder(name) / "held", os.O_RDONLY | os.O_CREAT, 0o600)
    except OSError:  # its folder is gone
        return lambda: None
    fcntl.flock(held, fcntl.LOCK_SH)

    def let_go() -> None:
        nonlocal held
        if held >= 0:
            os.close(held)
            held = -1

    return let_go


def is_held(name: str) -> bool:
    """Whether any process is connected to a cluster."""
    try:
        held = os.open(folder(name) / "held", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(held)


@contextlib.contextmanager
def turn(name: str, ranks: Iterable[int] = ()) -> Iterator[Turn]:
    """Hold the cluster's lock and get the next cell's seq.

    Two notebooks on one cluster must hand out their cells in one order for all ranks: else rank 0
    runs A, B and rank 1 runs B, A, and both hang in each other's collectives. The lock alone does
    not make that sure, since their sockets are not one: each of ``ranks`` is told which cell comes
    before this one, and waits for it.
    """
    lock = os.open(folder(name) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = json.loads(os.read(lock, 1 << 20) or b"{}")
        last = {int(rank): seq for rank, seq in before.get("last", {}).items()}
        seq = Turn(before.get("seq", 0) + 1)
        seq.after = {rank: last.get(rank, 0) for rank in ranks}
        # It never gets shorter. Truncated and written anew, ext4 would flush it at each close.
        text = json.dumps({"seq": seq, "last": last | dict.fromkeys(seq.after, seq)})
        os.pwrite(lock, text.encode(), 0)
        yield seq
    finally:
        os.close(lock)


class Turn(int):
    """A cell's seq; ``after`` is, for each rank that runs it, the seq of its cell before."""

    after: Mapping[int, int]
