"""What ranks on hosts have saved: it stays in each host's memory until new processes have it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Sequence

from jaxcluster.allocation.fleet import Fleet, Place
from jaxcluster.errors import LaunchError

ASK_S = 10.0
FILE_S = 30.0  # for the controller to say how engines reach it


class HostStates:
    """What ranks have saved: a folder in the memory of each host, gone with its agent."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._name = f"state-{secrets.token_hex(4)}"
        self._brought: set[tuple[int, str]] = set()
        self._each("mkdir")

    def _path(self, where: Place) -> str:
        return f"{where.memory}/{self._name}"

    def _make(self, where: Place) -> None:
        if not where.lost:
            with contextlib.suppress(LaunchError):
                where.agent.ask("mkdir", ASK_S, path=self._path(where))

    def path_of(self, rank: int) -> str:
        """The folder of the rank's host."""
        return self._path(self._fleet.place_of(rank))

    def donor_for(self, rank: int, donor: int, saved: Sequence[int]) -> int:
        """Which rank's file ``rank`` is to take values from: one on its host, or brought there.

        Raises:
          LaunchError: a host does not answer.
        """
        here, there = self._fleet.place_of(rank), self._fleet.place_of(donor)
        near = [r for r in saved if r in here.ranks]
        if near:
            return min(near)
        if (donor, here.folder) not in self._brought:
            name = f"rank-{donor}.state"
            self._make(here)
            for at, data in there.agent.chunks(f"{self._path(there)}/{name}"):
                here.agent.ask("put", FILE_S, path=f"{self._path(here)}/{name}", at=at, data=data)
            self._brought.add((donor, here.folder))
        return donor

    def remove(self) -> None:
        """Remove all of it."""
        self._each("remove")

    def _each(self, cmd: str) -> None:
        """On all hosts that there are; a host's folder has a path of its own."""
        there = [where for where in self._fleet.places if not where.lost]
        deadline = time.monotonic() + ASK_S  # for all: they may be cut off together
        for asked in [where.agent.begin(cmd, path=self._path(where)) for where in there]:
            with contextlib.suppress(LaunchError):
                asked.wait(max(0.0, deadline - time.monotonic()))
