"""Files on hosts, brought there and back by their agents: large values, and what ranks have saved.

A file travels in parts. Each is a request, and a few are on their way at once. One is encrypted
while another travels and a third is decrypted. Other messages, such as a cell's output or a rank's
answer, wait for those few at most.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent.client import Asked, answers
from jaxcluster.hosts.agent.requests import Get, Mkdir, Put, Recall, Remove
from jaxcluster.hosts.fleet import Fleet, Host
from jaxcluster.ranks import tell_each
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.saving import Saved, SavePlace

ASK_S = 10.0
LOOK_S = 3.0  # for a look whether files are there; a silent host may have lost them
PART_NBYTES = 1 << 20
WINDOW = 8  # parts on their way, for each host
PART_S = 600.0  # a slow connection takes its time; the stop button ends it sooner
FILE_S = 30.0  # for a part if it doesn't: a restart looks for a stop between its steps
R = TypeVar("R")


def _in_turn(
    asked: Iterable[Asked[R]], num_hosts: int = 1, timeout_s: float = PART_S
) -> Iterator[tuple[R, memoryview]]:
    """The answers of all, while the next ``WINDOW`` for each host are on their way."""
    under_way = deque[Asked[R]]()
    for one in asked:
        under_way.append(one)
        if len(under_way) > WINDOW * num_hosts:
            yield under_way.popleft().wait(timeout_s)
    for one in under_way:
        yield one.wait(timeout_s)


def _read(host: Host, path: str, nbytes: int, timeout_s: float) -> Iterator[tuple[int, memoryview]]:
    """(where it begins, data) of each part of a file; of an empty one there is one part."""
    begins = range(0, max(1, nbytes), PART_NBYTES)
    asked = (host.begin(Get(path, at, min(PART_NBYTES, nbytes - at))) for at in begins)
    parts = (data for _, data in _in_turn(asked, timeout_s=timeout_s))
    return zip(begins, parts, strict=True)


def _write(
    paths: Mapping[Host, str], parts: Iterable[tuple[int, Any]], timeout_s: float = PART_S
) -> None:
    """Write one file on each of these hosts; ``parts`` are where each begins, and what it has."""
    asked = (host.begin(Put(path, at), data) for at, data in parts for host, path in paths.items())
    for _ in _in_turn(asked, len(paths), timeout_s):
        pass


# --------------------------------------------------------------------------- values


def recall(host: Host, pid: int, at: int, nbytes: int) -> bytearray:
    """The bytes in a process's memory on a host, from an address on.

    Raises:
      PermissionError: the agent may not read it, or it is gone.
      LaunchError: the host does not answer.
    """
    ends, found = at + nbytes, bytearray()
    begins = range(at, ends, PART_NBYTES)
    asked = (host.begin(Recall(pid, one, min(PART_NBYTES, ends - one))) for one in begins)
    for _, data in _in_turn(asked):
        found += data
    if len(found) != nbytes:
        raise PermissionError(f"process {pid} on host {host.name} can't be read")
    return found


class NoRoom(Exception):
    """There is no memory on the way for so many bytes: they travel as frames."""


@contextlib.contextmanager
def in_memory(
    places: Mapping[int, Host], buffers: Mapping[int, memoryview]
) -> Iterator[dict[int, str]]:
    """A file in the memory of the hosts of ranks, while the ``with`` lasts: its path, by rank.

    Args:
      places: by rank.
      buffers: what is in it, by where it begins.

    Raises:
      NoRoom: a host has none, or it is this machine, which they share already.
      LaunchError: a host does not answer.
    """
    name = f"value-{secrets.token_hex(6)}"
    folders = {host: f"{host.memory}/{name}" for host in places.values()}
    if any(host.is_here for host in folders):
        raise NoRoom
    paths = {host: f"{folder}/value" for host, folder in folders.items()}
    parts = [(0, memoryview(b""))]
    for begin, buffer in buffers.items():
        for at in range(0, len(buffer), PART_NBYTES):
            parts.append((begin + at, buffer[at : at + PART_NBYTES]))
    with contextlib.ExitStack() as stack:
        for host, folder in folders.items():
            stack.callback(host.begin, Remove(folder))
        asked = [(host, host.begin(Mkdir(folder))) for host, folder in folders.items()]
        answers(asked, ASK_S, passed_over=())
        try:
            _write(paths, parts)
        except LaunchError as error:
            if os.strerror(errno.ENOSPC) in error.message:
                raise NoRoom from None
            raise
        yield {rank: paths[host] for rank, host in places.items()}


# --------------------------------------------------------------------------- saved variables


class Folder:
    """A folder that all ranks see, as a checkpoint's: what they have saved in it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        """The ranks whose files can't be read now, each with the reason."""
        return {}

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        """The paths of these ranks' files, brought to the host of ``rank`` if need be.

        Raises:
          LaunchError: a host does not answer, or has no room.
        """
        return {one: f"{self._path}/rank-{one}.state" for one in of}

    def remove(self) -> None:
        """Remove it, unless it is the user's. Ranks may still be writing into it."""


class HostStates(Folder):
    """A folder in the memory of each host, and one on its disk, until new processes have read them.

    Both are the agent's, and gone with it, or with the connection of this process to it. Files that
    a rank needs of another host are brought to its own, through the notebook.
    """

    hint = (
        "Free some space there, then: %jaxcluster restart\n"
        "For another disk, set TMPDIR=/path there before the cluster is started."
    )

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._name = fleet, f"state-{secrets.token_hex(4)}"
        # These ranks' folders: the next ranks may be on other hosts.
        self._homes = {rank: host for host in fleet.hosts for rank in host.ranks}
        self._brought: dict[tuple[int, Host], str] = {}  # (whose, to which host): its path
        self._rooms = self._each(lambda path: Mkdir(path, own=True))

    def _paths(self, host: Host) -> list[str]:
        """In memory where there is such a folder, and on disk."""
        return [f"{folder}/{self._name}" for folder in dict.fromkeys((host.memory, host.folder))]

    def places_for(self, rank: int) -> list[SavePlace]:
        """The folders that a rank may write to, the best one first; of memory, how much of it."""
        host = self._homes[rank]
        *memory, disk = self._paths(host)
        rooms = [(path, room) for path in memory if (room := self._rooms.get(path))]
        each = max(1, len(host.ranks))
        return [*(SavePlace(path, room // each) for path, room in rooms), SavePlace(disk)]

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        found, asked = {}, []
        for rank, report in reports.items():
            host = self._homes[rank]
            if host.lost:
                verb = "is" if host in self._fleet.hosts else "was"  # it has another agent
                found[rank] = f"host {host.name} {verb} lost: {host.lost}"
            else:
                asked.append((rank, host.begin(Get(report.path, nbytes=1))))
        deadline = time.monotonic() + LOOK_S  # for all: they may be cut off together
        for rank, one in asked:
            try:
                one.wait(max(0.0, deadline - time.monotonic()))
            except LaunchError as error:
                found[rank] = error.message.rstrip(".")
        return found

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        here, found = self._fleet.host_of(rank), {}
        for one in of:
            there, key = self._homes[one], (one, here)
            if there is not here and key not in self._brought:
                self._brought[key] = self._bring(there, reports[one], here)
            found[one] = reports[one].path if there is here else self._brought[key]
        return found

    def _bring(self, there: Host, report: Saved, here: Host) -> str:
        """Copy a rank's file to where another host has room for it; returns its path."""
        rooms = {root: here.ask(Mkdir(root, own=True), ASK_S) for root in self._paths(here)}
        *_, disk = rooms
        root = next((root for root, room in rooms.items() if report.nbytes <= room), disk)
        brought = f"{root}/brought-{len(self._brought)}/{os.path.basename(report.path)}"
        nbytes = there.ask(Get(report.path, nbytes=0), FILE_S)
        _write({here: brought}, _read(there, report.path, nbytes, FILE_S), FILE_S)
        return brought

    def remove(self) -> None:
        self._each(Remove)

    def _each(self, request: Callable[[str], Operation[R]]) -> dict[str, R]:
        """Ask it of all hosts that there are, for their folders; what they answer, by the path."""
        paths = [(host, path) for host in self._fleet.there for path in self._paths(host)]
        asked = [(path, host.begin(request(path))) for host, path in paths]
        return {path: answer for path, (answer, _) in answers(asked, ASK_S).items()}


@dataclass(frozen=True)
class Kept:
    """The saved variables of a cluster's ranks.

    Attributes:
      folder: where they are.
      reports: what each rank that could be saved says of its files.
      num_processes: how many ranks there were.
      had: the names, as far as they are known, of ranks that could not be saved.
      gone: why files that were saved can't be read any more, by rank.
    """

    folder: Folder
    reports: Mapping[int, Saved]
    num_processes: int
    had: Mapping[int, frozenset[str]] = field(default_factory=dict)
    gone: Mapping[int, str] = field(default_factory=dict)

    def looked_at(self) -> Kept:
        """The part that can be read now: a host may be lost since, with what it had."""
        gone = self.folder.lost(self.reports)
        left = {rank: report for rank, report in self.reports.items() if rank not in gone}
        had = {rank: frozenset(self.reports[rank].kept) for rank in gone}
        return replace(self, reports=left, had={**self.had, **had}, gone={**self.gone, **gone})

    @property
    def why_gone(self) -> str:
        """The ranks whose files can't be read any more, and why; "" where all can."""
        return tell_each(self.gone)
