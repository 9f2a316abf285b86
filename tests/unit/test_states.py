"""What ranks have saved on their hosts: where, how much of it, and what can still be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.agent.client import State
from jaxcluster.agent.requests import Mkdir
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet, Host
from jaxcluster.allocation.states import HostStates, Kept
from jaxcluster.errors import LaunchError
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.saving import Saved

ROOM = 1000


class Agent:
    """Answers as an agent that has the room, and the files, that it is told it has."""

    def __init__(self) -> None:
        self.asked: list[Operation[Any]] = []
        self.refuses = ""

    def begin(self, request: Operation[Any]) -> Any:
        def wait(timeout_s: float) -> tuple[Any, bytes]:
            self.asked.append(request)
            if self.refuses:
                raise LaunchError(self.refuses)
            return ROOM if isinstance(request, Mkdir) else None, b""

        return SimpleNamespace(wait=wait)


@pytest.fixture
def agent() -> Agent:
    return Agent()


def host(fleet: Fleet, agent: Any, folder: str, memory: str) -> Host:
    made = Host(fleet._agents, 0, "h1", StartedAgent(0, {"folder": folder, "memory": memory}))
    made.ranks, made.state = range(4), State.CONNECTED
    made.begin = agent.begin  # type: ignore[method-assign]
    return made


@pytest.fixture
def fleet(agent: Any) -> Iterator[Fleet]:
    """One host with 4 ranks."""
    made = Fleet(new_keys())
    made.hosts.append(host(made, agent, "/disk", "/memory"))
    yield made
    made.close()


def written(folder: HostStates, rank: int) -> Saved:
    """What a rank says of a file that it has written."""
    return Saved(folder.places_for(rank)[0][0], [f"rank-{rank}.state"], 10, ["a"], {"b": "why"})


def kept_of(folder: HostStates, reports: Mapping[int, Saved]) -> Kept:
    return Kept(folder, reports, 4, {3: frozenset("c")}, {3: "no answer"})


def test_what_can_not_be_read_any_more_is_left_out_with_the_reason(fleet: Fleet) -> None:
    folder = HostStates(fleet)
    reports = {rank: written(folder, rank) for rank in range(3)}
    saved = kept_of(folder, reports)
    assert saved.looked_at() == saved
    found = saved.without({1: "its disk has failed"})
    assert sorted(found.reports) == [0, 2]
    assert found.had == {1: frozenset(reports[1].kept), 3: frozenset("c")}
    assert found.gone == {1: "its disk has failed", 3: "no answer"}
    assert "rank 3: no answer" in found.why_gone
    assert found.looked_at() == found


def test_a_host_that_does_not_answer_has_lost_them(fleet: Fleet, agent: Agent) -> None:
    folder = HostStates(fleet)
    saved = kept_of(folder, {0: written(folder, 0)})
    agent.refuses = "Host h1 is lost: its agent has ended."
    assert saved.looked_at().gone[0] == "Host h1 is lost: its agent has ended"


def test_a_lost_hosts_are_gone_whatever_its_next_agent_has(fleet: Fleet, agent: Agent) -> None:
    folder = HostStates(fleet)
    saved = kept_of(folder, {0: written(folder, 0)})
    fleet.hosts[0].lost = "its agent was killed"
    fleet.hosts[0] = host(fleet, agent, "/another", "/another")
    assert saved.looked_at().gone[0] == "host h1 was lost: its agent was killed"
