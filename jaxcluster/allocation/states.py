"""What ranks on hosts have saved: it stays on each host until new processes have it.

These read what they need from the host that has it, where theirs reaches that one. Else whole files
are brought through the notebook.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from jaxcluster.agent.client import answers
from jaxcluster.agent.requests import Get, GiveOut, Mkdir, Remove, Ways
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet, Place, address_of, copy_file
from jaxcluster.errors import LaunchError
from jaxcluster.records.saved_states import StateFolder
from jaxcluster.wire.ops.state import SaveReport, Where
from jaxcluster.wire.requests import Request

ASK_S = 10.0
LOOK_S = 3.0  # whether files are still there; a host that says nothing may have lost them
BROUGHT = "brought"
R = TypeVar("R")


class HostStates(StateFolder):
    """What ranks have saved: a folder in the memory of each host, and one on its disk.

    Both are the agent's, and gone with it.
    """

    hint = "Free some space there, then: %jaxcluster restart"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._name = f"state-{secrets.token_hex(4)}"
        self._homes = fleet.homes()  # of these ranks: the next ones may be on other hosts
        # What was brought: from which agent, whose, from where there, to which agent; its folder.
        self._brought: dict[tuple[str, int, str, str], str] = {}
        self._keys = new_keys()  # who has them may read it
        # From one agent to another: what ranks of the one need to read from the other.
        self._ways: dict[tuple[str, str], dict[str, str]] = {}
        self._asked_ways: set[str] = set()  # of which agents' hosts it is known
        self._is_direct = True
        self._rooms = self._each(lambda path: Mkdir(path, own=True))

    def _paths(self, where: Place) -> list[str]:
        """In memory where there is such a folder, and on disk."""
        return [f"{folder}/{self._name}" for folder in dict.fromkeys((where.memory, where.folder))]

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        where = self._homes[rank]
        paths = self._paths(where)
        if len(paths) == 1:
            return [(paths[0], None)]
        memory, disk = paths
        room = self._rooms.get(memory)
        found: list[tuple[str, int | None]] = [(disk, None)]
        return found if room is None else [(memory, room // max(1, len(where.ranks))), *found]

    def lost(self, reports: Mapping[int, SaveReport]) -> dict[int, str]:
        found, asked = {}, []
        for rank, report in reports.items():
            where = self._homes[rank]
            path = f"{report.folder}/rank-{rank}.state"
            if where.lost:
                found[rank] = f"host {where.name} is lost: {where.lost}"
            elif not path.startswith((f"{where.memory}/", f"{where.folder}/")):
                found[rank] = f"host {where.name} was lost, and has another agent now"
            else:
                ask = where.agent.begin(Get(path, nbytes=1))
                asked.append((rank, where, report.file_nbytes, ask))
        deadline = time.monotonic() + LOOK_S  # for all: they may be cut off together
        for rank, where, nbytes, ask in asked:
            try:
                size, _ = ask.wait(max(0.0, deadline - time.monotonic()))
            except LaunchError as error:
                found[rank] = error.message.rstrip(".")
            else:
                if size != nbytes:
                    found[rank] = f"host {where.name} has a different file there"
        return found

    def donor_for(
        self, rank: int, donor: int, reports: Mapping[int, SaveReport]
    ) -> tuple[int, Where]:
        """One on its host, or brought there."""
        here = self._fleet.place_of(rank)
        near = [r for r in reports if self._homes[r] is here]
        if near:
            donor = min(near)
        return donor, self._bring_to(here, donor, reports[donor])

    def folders_for(self, rank: int, reports: Mapping[int, SaveReport]) -> dict[int, Where]:
        here = self._fleet.place_of(rank)
        return {one: self._bring_to(here, one, report) for one, report in reports.items()}

    def bring(self, rank: int, report: SaveReport) -> Where:
        return self._bring_to(self._fleet.place_of(rank), rank, report)

    def bring_all(self) -> None:
        self._is_direct = False

    def _bring_to(self, here: Place, rank: int, report: SaveReport) -> Where:
        """Where ranks of a host find a rank's files; they are brought there if need be."""
        there, source = self._homes[rank], report.folder
        if there is here:
            return source
        if self._is_direct and (way := self._way(here, there)):
            return {**way, "folder": source, "host": there.name}
        key = there.folder, rank, source, here.folder
        if key not in self._brought:
            self._brought[key] = self._bring(there, here, rank, report)
        return self._brought[key]

    def _way(self, here: Place, there: Place) -> dict[str, str]:
        """How ranks of a host read from another one; {} where they don't reach it."""
        if not self._asked_ways.issuperset((here.folder, there.folder)):
            self._find_ways()
        return self._ways.get((here.folder, there.folder), {})

    def _find_ways(self) -> None:
        """Have all hosts give out what they have, and see which of the others reach them."""
        places = [where for where in self._fleet.places if not where.lost]
        self._asked_ways = {where.folder for where in places}
        public, secret = self._keys.public, self._keys.secret
        asked = [(p, p.agent.begin(GiveOut(public, self._paths(p)))) for p in places]
        doors = {
            where.folder: {
                "endpoint": endpoint,
                "server": where.agent.key,
                "public": public,
                "secret": secret,
            }
            for where, (endpoint, _) in answers(asked, ASK_S).items()
        }
        targets = [address_of(door["endpoint"]) for door in doors.values()]
        looks = answers([(p, p.agent.begin(Ways(targets))) for p in places], ASK_S)
        for where, (whys, _) in looks.items():
            for (folder, door), why in zip(doors.items(), whys, strict=True):
                if not why:
                    self._ways[where.folder, folder] = door

    def _bring(self, there: Place, here: Place, rank: int, report: SaveReport) -> str:
        """Copy a rank's file to where another host has room for it; returns the folder."""
        name = f"rank-{rank}.state"
        refused: LaunchError | None = None
        for root in self._paths(here):
            folder = f"{root}/{BROUGHT}-{len(self._brought)}"
            try:
                here.agent.ask(Mkdir(root, own=True), ASK_S)
                room = here.agent.ask(Mkdir(folder), ASK_S)
                if room is not None and report.file_nbytes > room and root != self._paths(here)[-1]:
                    continue
                copy_file(there, f"{report.folder}/{name}", here, f"{folder}/{name}")
            except LaunchError as error:
                refused = error
                with contextlib.suppress(LaunchError):
                    here.agent.ask(Remove(folder), ASK_S)
            else:
                return folder
        assert refused is not None
        raise refused

    def remove(self) -> None:
        self._each(Remove)

    def _each(self, request: Callable[[str], Request[R]]) -> dict[str, R]:
        """Ask it of all hosts that there are, for their folders; what they answer, by the path."""
        there = [where for where in self._fleet.places if not where.lost]
        paths = [(where, path) for where in there for path in self._paths(where)]
        asked = [(path, where.agent.begin(request(path))) for where, path in paths]
        return {path: answer for path, (answer, _) in answers(asked, ASK_S).items()}
