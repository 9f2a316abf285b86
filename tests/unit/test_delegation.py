"""What a cluster's own process does when another one asks for a restart, without any rank."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import until

from jaxcluster.cluster.delegation import Delegate
from jaxcluster.wire.forks import Relay


class World:
    def __init__(self, said: list[Any]) -> None:
        self.fleet, self.said = self, said

    def command(self, command: Relay, timeout_s: float) -> None:
        self.said.append(command.message)


class Cell:
    """Stopped, it ends; ``recovers``: its end gives the cluster new processes."""

    def __init__(self, cluster: Fake, recovers: bool) -> None:
        self.cluster, self.recovers = cluster, recovers

    def stop(self) -> None:
        self.cluster.cells.remove(self)
        if self.recovers:
            self.cluster.world, self.cluster.recovered = World(self.cluster.said), "recovered"


class Fake:
    def __init__(self, recovers: bool) -> None:
        self.said: list[Any] = []
        self.world, self.can_restart, self.recovered = World(self.said), True, ""
        self.cells = [Cell(self, recovers)]
        self.restarts = 0

    def restart(self, *, clean: bool = False) -> str:
        self.restarts += 1
        return "restarted"


@pytest.mark.parametrize(
    "recovers, told, restarts", [(False, "restarted", 1), (True, "recovered", 0)]
)
def test_ranks_are_replaced_once_whoever_does_it(recovers: bool, told: str, restarts: int) -> None:
    cluster = Fake(recovers)
    delegate = Delegate(cluster)  # type: ignore[arg-type]
    for _ in range(2):  # each host passes the message on
        delegate.on_message({"restart": "a"})
    until(lambda: any(one["state"] == "done" for one in cluster.said), "the answer")
    done = cluster.said[-1]
    assert (done["answer"], done["told"], done["failed"]) == ("a", told, False)
    assert cluster.restarts == restarts
