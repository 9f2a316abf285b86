"""What ranks on hosts have saved: it stays on each host until new processes have it.

These read what they need from the host that has it, where theirs reaches that one. Else whole files
are brought through the notebook.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from jaxcluster.agent.client import answers, wait_all
from jaxcluster.agent.requests import Get, GiveOut, Mkdir, Remove, TakeMirrors, Ways
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet, Place, address_of, copy_file
from jaxcluster.errors import LaunchError
from jaxcluster.records.saved_states import Mirror, StateFolder
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
        # Of these ranks: the next ones may be on other hosts, and on fewer.
        self._hosts = {place.number: place for place in fleet.places}
        self._homes = fleet.homes()
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
            where = self._place(rank, report.host)
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
        near = [r for r, report in reports.items() if self._place(r, report.host) is here]
        if near:
            donor = min(near)
        return donor, self._bring_to(here, donor, reports[donor])

    def folders_for(self, rank: int, reports: Mapping[int, SaveReport]) -> dict[int, Where]:
        here = self._fleet.place_of(rank)
        return {one: self._bring_to(here, one, report) for one, report in reports.items()}

    def bring(self, rank: int, report: SaveReport) -> Where:
        return self._bring_to(self._fleet.place_of(rank), rank, report)

    def is_gone(self, rank: int) -> bool:
        return bool(self._homes[rank].lost)

    def _place(self, rank: int, host: int | None) -> Place:
        """Where a rank's files are: on the host of this number, or on its own."""
        return self._homes[rank] if host is None else self._hosts[host]

    def bring_all(self) -> None:
        self._is_direct = False

    def _bring_to(self, here: Place, rank: int, report: SaveReport) -> Where:
        """Where ranks of a host find a rank's files; they are brought there if need be."""
        there, source = self._place(rank, report.host), report.folder
        if there is here:
            return source
        if self._is_direct and (way := self._way(here, there)):
            return {**way, "folder": source, "host": there.name}
        key = there.folder, rank, source, here.folder
        if key not in self._brought:
            names = [f"rank-{rank}.state", *sorted(report.parts)]  # a copy has several
            nbytes = max(report.file_nbytes, report.nbytes)
            self._brought[key] = self._bring(there, source, names, here, nbytes)
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

    def _bring(
        self, there: Place, source: str, names: Sequence[str], here: Place, nbytes: int
    ) -> str:
        """Copy a folder's files to where another host has room for them; returns the folder."""
        refused: LaunchError | None = None
        for root in self._paths(here):
            folder = f"{root}/{BROUGHT}-{len(self._brought)}"
            try:
                here.agent.ask(Mkdir(root, own=True), ASK_S)
                room = here.agent.ask(Mkdir(folder), ASK_S)
                if room is not None and nbytes > room and root != self._paths(here)[-1]:
                    continue
                for name in names:
                    copy_file(there, f"{source}/{name}", here, f"{folder}/{name}")
            except LaunchError as error:
                refused = error
                with contextlib.suppress(LaunchError):
                    here.agent.ask(Remove(folder), ASK_S)
            else:
                return folder
        assert refused is not None
        raise refused

    def open_mirrors(self) -> tuple[dict[int, Mirror], dict[int, dict[str, str]]]:
        """Who has the keys of those ranks may write copies there, and nothing else."""
        keys = new_keys()
        places = [where for where in self._fleet.places if len(where.ranks)]
        mirrors: dict[int, Mirror] = {}
        told: dict[int, dict[str, str]] = {}
        endpoints: dict[int, str] = {}
        for number, where in enumerate(places):
            ring = [*places[number + 1 :], *places[:number]]
            key = where.facts.host_key  # several agents may be on one machine
            there = next((one for one in ring if one.facts.host_key != key), None)
            if there is None:
                continue
            folder = f"{self._paths(there)[0]}/mirrors"
            if there.number not in endpoints:
                endpoints[there.number] = self._open_mirrors(there, folder, keys.public)
            for rank in where.ranks:
                mirrors[rank] = Mirror(there.number, there.name, folder)
                told[rank] = {
                    "endpoint": endpoints[there.number],
                    "server": there.agent.key,
                    "public": keys.public,
                    "secret": keys.secret,
                    "folder": folder,
                    "host": there.name,
                }
        return mirrors, told

    def room_for_each(self, mirrors: Mapping[int, Mirror]) -> int:
        held = [mirror.host for mirror in mirrors.values()]
        found = []
        for rank, where in self._homes.items():
            own, room = len(where.ranks), self.places_for(rank)[0][1]
            if room is not None:
                found.append(room * own // (own + held.count(where.number)))
        return min(found)

    @staticmethod
    def _open_mirrors(there: Place, folder: str, key: str) -> str:
        """Have a host take in copies from now on; returns where they come."""
        there.agent.ask(Mkdir(folder), ASK_S)
        return there.agent.ask(TakeMirrors(key, folder), ASK_S)

    def read(self, rank: int, path: str, host: int | None = None) -> bytes:
        where = self._place(rank, host)
        if where.lost:
            raise OSError(where.lost)
        try:
            return bytes(where.agent.begin(Get(path)).wait(LOOK_S)[1])
        except LaunchError as error:
            raise OSError(error.message) from None

    def check(
        self, rank: int, folder: str, sums: Mapping[str, int], host: int | None = None
    ) -> None:
        """Whether they are there.

        Their numbers don't cross the network for it: the rank that takes them looks at them.
        """
        where = self._place(rank, host)
        if where.lost:
            raise OSError(where.lost)
        asked = [where.agent.begin(Get(f"{folder}/{name}", nbytes=1)) for name in sums]
        try:
            wait_all(asked, LOOK_S)
        except LaunchError as error:
            raise OSError(error.message) from None

    def remove(self) -> None:
        self._each(Remove)

    def _each(self, request: Callable[[str], Request[R]]) -> dict[str, R]:
        """Ask it of all hosts that there are, for their folders; what they answer, by the path."""
        there = [where for where in self._fleet.places if not where.lost]
        paths = [(where, path) for where in there for path in self._paths(where)]
        asked = [(path, where.agent.begin(request(path))) for where, path in paths]
        return {path: answer for path, (answer, _) in answers(asked, ASK_S).items()}
