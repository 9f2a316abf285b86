"""What ranks have saved: it stays on each host until new processes have it.

What a rank needs of another host's is brought to its host, through the notebook.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from jaxcluster.agent.client import answers
from jaxcluster.agent.requests import Get, Mkdir, Put, Remove
from jaxcluster.allocation.fleet import Fleet, Host
from jaxcluster.errors import LaunchError
from jaxcluster.ranks import tell_each
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.saving import Saved

ASK_S = 10.0
LOOK_S = 3.0  # whether files are still there; a host that says nothing may have lost them
FILE_S = 30.0  # for a part of a file
R = TypeVar("R")


class StateFolder(Protocol):
    """Where ranks save their variables: on their hosts, or a checkpoint's folder."""

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        """The ranks whose files can't be read now, each with the reason."""

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        """Where ``rank`` finds the files ``of`` these ranks, brought to its host if need be.

        Raises:
          LaunchError: a host does not answer, or has no room.
        """

    def remove(self) -> None:
        """Remove all of it. Ranks may still be writing into it."""


class HostStates:
    """A folder in the memory of each host, and one on its disk.

    Both are the agent's, and gone with it, or with the connection of this process to it.
    """

    hint = (
        "Free some space there, then: %jaxcluster restart\n"
        "For another disk, set TMPDIR=/path there before the cluster is started."
    )

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._name = f"state-{secrets.token_hex(4)}"
        # Of these ranks: the next ones may be on other hosts.
        self._homes = {rank: host for host in fleet.hosts for rank in host.ranks}
        self._brought: dict[tuple[int, str], str] = {}  # (whose, to which agent): its folder
        self._rooms = self._each(lambda path: Mkdir(path, own=True))

    def _paths(self, where: Host) -> list[str]:
        """In memory where there is such a folder, and on disk."""
        return [f"{folder}/{self._name}" for folder in dict.fromkeys((where.memory, where.folder))]

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        """The folders that a rank may write to, the best one first; of memory, how much of it."""
        where = self._homes[rank]
        paths = self._paths(where)
        if len(paths) == 1:
            return [(paths[0], None)]
        memory, disk = paths
        room = self._rooms.get(memory)
        found: list[tuple[str, int | None]] = [(disk, None)]
        return found if room is None else [(memory, room // max(1, len(where.ranks))), *found]

    def lost(self, reports: Mapping[int, Saved]) -> dict[int, str]:
        found, asked = {}, []
        for rank, report in reports.items():
            where = self._homes[rank]
            if where.lost:
                verb = "is" if where in self._fleet.hosts else "was"  # it has another agent
                found[rank] = f"host {where.name} {verb} lost: {where.lost}"
            else:
                ask = where.begin(Get(f"{report.folder}/{report.files[0]}", nbytes=1))
                asked.append((rank, ask))
        deadline = time.monotonic() + LOOK_S  # for all: they may be cut off together
        for rank, ask in asked:
            try:
                ask.wait(max(0.0, deadline - time.monotonic()))
            except LaunchError as error:
                found[rank] = error.message.rstrip(".")
        return found

    def bring(self, rank: int, of: Iterable[int], reports: Mapping[int, Saved]) -> dict[int, str]:
        return {one: self._bring_to(self._fleet.host_of(rank), one, reports[one]) for one in of}

    def _bring_to(self, here: Host, rank: int, report: Saved) -> str:
        """Where ranks of a host find a rank's files; they are brought there if need be."""
        there, key = self._homes[rank], (rank, here.folder)
        if there is here:
            return report.folder
        if key not in self._brought:
            self._brought[key] = self._bring(there, report, here)
        return self._brought[key]

    def _bring(self, there: Host, report: Saved, here: Host) -> str:
        """Copy a rank's files to where another host has room for them; returns the folder."""
        refused: LaunchError | None = None
        for root in self._paths(here):
            folder = f"{root}/brought-{len(self._brought)}"
            try:
                here.ask(Mkdir(root, own=True), ASK_S)
                room = here.ask(Mkdir(folder), ASK_S)
                if room is not None and report.nbytes > room and root != self._paths(here)[-1]:
                    continue
                for name in report.files:
                    for at, data in there.chunks(f"{report.folder}/{name}"):
                        here.ask(Put(f"{folder}/{name}", at), FILE_S, data)
            except LaunchError as error:
                refused = error
                with contextlib.suppress(LaunchError):
                    here.ask(Remove(folder), ASK_S)
            else:
                return folder
        assert refused is not None
        raise refused

    def remove(self) -> None:
        self._each(Remove)

    def _each(self, request: Callable[[str], Operation[R]]) -> dict[str, R]:
        """Ask it of all hosts that there are, for their folders; what they answer, by the path."""
        paths = [(where, path) for where in self._fleet.there for path in self._paths(where)]
        asked = [(path, where.begin(request(path))) for where, path in paths]
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

    folder: StateFolder
    reports: Mapping[int, Saved]
    num_processes: int
    had: Mapping[int, frozenset[str]] = field(default_factory=dict)
    gone: Mapping[int, str] = field(default_factory=dict)

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
