"""The clusters of this user on this machine: a folder each, with a record that others can read.

    <runtime>/<name>/alive            who has claimed the name; locked while it lives (see claims)
                     cluster.json     the record (ClusterRecord), with the keys to its agents
                     launch-1a2b3c/   what its launcher needs
                     held             locked by all processes that are connected to it
                     ipyparallel.json how clients of its controller connect

Only the user can enter the folder (0700), and so talk to the ranks. A record of
another shape, or whose name is not its folder's, belongs to no cluster, and is left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.host.facts import AgentFacts
from jaxcluster.hosts.records.runtimefolder import runtime_root
from jaxcluster.supervision.processes import is_alive, pid_space

ALIVE, HELD = "alive", "held"


@dataclass(frozen=True)
class HostRecord(AgentFacts):
    """One host: what its agent has said, its ``endpoint`` from here, its name and ranks."""

    name: str = ""
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ClusterRecord:
    """All that another process needs to connect to a running cluster."""

    name: str
    spec: wire.ClusterSpec
    owner: str  # the token (pid:start) of the process that it ends with; "" if detached
    created_ns: int
    hostname: str
    pids: list[int] = field(default_factory=list)  # by rank; their hosts' own
    facts: list[wire.EngineFacts] = field(default_factory=list)
    devices: list[wire.InitializeReply] = field(default_factory=list)
    notebook: str = ""
    coordinator_pid: int = 0
    claim: str = ""  # the id of the claim on its name
    pid_space: str = ""  # where its owner's pid means something
    protocol: int = wire.PROTOCOL_VERSION
    hosts: list[HostRecord] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict, repr=False)  # the owner's, to the agents

    @property
    def has_owner(self) -> bool:
        """Whether the process that it ends with still runs; elsewhere it is taken to."""
        return bool(self.owner) and (self.pid_space != pid_space() or is_alive(self.owner))


def check_name(
    name: str, what: str = "a cluster's name", example: str = "%jaxcluster start --name exp1"
) -> str:
    """``name``, if a cluster (or ``what``) may be called so; raises UsageError if not."""
    if not is_name(name):
        raise UsageError(
            f"{name!r} can't be {what}: it takes at most 31 letters, digits, '-', '_' and '.'.",
            f"For example: {example}",
        )
    return name


def is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", name) is not None


def folder(name: str) -> Path:
    """A cluster's folder, for sockets, other processes and people."""
    return runtime_root() / check_name(name)


def write(record: ClusterRecord) -> None:
    """Save the record, so that no reader ever sees half of it."""
    path = runtime_root() / check_name(record.name) / "cluster.json"
    draft = path.with_suffix(".tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(dataclasses.asdict(record), file, indent=1)
    draft.replace(path)


def read(name: str, command: str = "attach") -> ClusterRecord:
    """The record of a cluster.

    Raises:
      NoCluster: there is none of that name; it says to type ``command`` with one that there is.
    """
    found = parse(runtime_root() / name) if is_name(name) else None
    if found is not None:
        return found
    told, hint = "; none is running.", "Start one: %jaxcluster start -n 4"
    if others := [record.name for record in records()]:
        told = f" (running: {', '.join(others)})."
        hint = f"Type %jaxcluster {command} {others[0]}"
    raise NoCluster(f"There is no cluster {name!r} here{told}", hint)


def records() -> list[ClusterRecord]:
    """All clusters that have a record, oldest first."""
    found = map(parse, filter(lambda path: is_name(path.name), runtime_root().iterdir()))
    return sorted(filter(None, found), key=lambda record: record.created_ns)


def parse(folder: Path) -> ClusterRecord | None:
    """The record in a folder, if it is that folder's, and one that this version can read."""
    try:
        record = wire.parse(ClusterRecord, json.loads((folder / "cluster.json").read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None
    counts = {len(record.pids), len(record.facts), len(record.devices)}
    is_whole = counts == {record.spec.num_processes}
    return record if is_whole and record.name == record.spec.name == folder.name else None


def client_file(name: str) -> Path:
    """How a client of ipyparallel's connects to the cluster of this name."""
    return folder(name) / "ipyparallel.json"


def hold(name: str) -> Callable[[], None]:
    """Show that somebody is connected, until what it returns is called or this process ends."""
    try:
        held = open(runtime_root() / name / HELD, "ab")  # noqa: SIM115 - until it is let go
    except OSError:  # its folder is gone
        return lambda: None
    with contextlib.suppress(OSError):  # no locks there any more
        fcntl.flock(held, fcntl.LOCK_SH)
    return held.close


def is_held(name: str) -> bool:
    """Whether any process is connected to a cluster."""
    return is_locked(runtime_root() / name / HELD)


def is_locked(path: Path) -> bool:
    """Whether any process holds a lock on a file, or may: that can't always be known."""
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held; or there are no locks, or this process has too many files open
        return True
    return False
