"""What ranks have saved on their hosts: where, how much of it, and what can still be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.agent.client import State
from jaxcluster.agent.report import AgentFacts
from jaxcluster.agent.requests import Mkdir, Remove
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet, Place
from jaxcluster.allocation.states import HostStates, Kept
from jaxcluster.errors import LaunchError
from jaxcluster.wire.ops.saving import Saved
from jaxcluster.wire.requests import Request

ROOM = 1000


class Agent:
    """Answers as an agent that has the room, and the files, that it is told it has."""

    def __init__(self) -> None:
        self.asked: list[Request[Any]] = []
        self.refuses, self.state = "", State.CONNECTED

    def begin(self, request: Request[Any]) -> Any:
        def wait(timeout_s: float) -> tuple[Any, bytes]:
            self.asked.append(request)
            if self.refuses:
                raise LaunchError(self.refuses)
            return ROOM if isinstance(request, Mkdir) else None, b""

        return SimpleNamespace(wait=wait)


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def fleet(agent: Any) -> Iterator[Fleet]:
    """One host with 4 ranks."""
    made = Fleet(new_keys())
    made.places.append(
        Place(0, "h1", agent, AgentFacts(folder="/disk", memory="/memory"), range(4))
    )
    yield made
    made.close()


def written(folder: HostStates, rank: int) -> Saved:
    """What a rank says of a file that it has written."""
    return Saved(folder.places_for(rank)[0][0], [f"rank-{rank}.state"], 10, ["a"], {"b": "why"})


def test_memory_is_shared_out_and_a_disk_is_not(fleet: Fleet) -> None:
    (memory, room), (disk, unlimited) = HostStates(fleet).places_for(0)
    assert memory.startswith("/memory/state-") and room == ROOM // 4
    assert disk.startswith("/disk/state-") and unlimited is None


def test_where_there_is_no_memory_there_is_the_disk(fleet: Fleet) -> None:
    fleet.places[0].facts = AgentFacts(folder="/disk", memory="/disk")
    ((disk, unlimited),) = HostStates(fleet).places_for(0)
    assert disk.startswith("/disk/") and unlimited is None


def test_its_folders_go_with_this_process_and_are_removed(fleet: Fleet, agent: Agent) -> None:
    folder = HostStates(fleet)
    assert all(isinstance(one, Mkdir) and one.own for one in agent.asked)
    made = {one.path for one in agent.asked if isinstance(one, Mkdir)}
    folder.remove()
    assert {one.path for one in agent.asked if isinstance(one, Remove)} == made


def test_it_is_on_the_agents_of_its_hosts_and_on_no_later_ones(fleet: Fleet) -> None:
    folder = HostStates(fleet)
    assert folder.is_on(fleet)
    fleet.places[0].facts = AgentFacts(folder="/another", memory="/another")
    assert not folder.is_on(fleet)


def kept_of(folder: HostStates, reports: Mapping[int, Saved]) -> Kept:
    return Kept(folder, reports, 4, {3: frozenset("c")}, {3: "no answer"})


def test_what_can_not_be_read_any_more_is_left_out_with_the_reason(fleet: Fleet) -> None:
    folder = HostStates(fleet)
    reports = {rank: written(folder, rank) for rank in range(3)}
    saved = kept_of(folder, reports)
    assert saved.looked_at() == saved
    gone = replace(reports[1], folder="/nowhere")
    found = replace(saved, reports={**reports, 1: gone}).looked_at()
    assert sorted(found.reports) == [0, 2]
    assert found.had == {1: frozenset(reports[1].kept), 3: frozenset("c")}
    assert found.gone == {1: "host h1 was lost, and has another agent now", 3: "no answer"}
    assert "rank 3: no answer" in found.why_gone
    assert found.looked_at() == found


def test_a_host_that_does_not_answer_has_lost_them(fleet: Fleet, agent: Agent) -> None:
    folder = HostStates(fleet)
    saved = kept_of(folder, {0: written(folder, 0)})
    agent.refuses = "Host h1 is lost: its agent has ended."
    assert saved.looked_at().gone[0] == "Host h1 is lost: its agent has ended"
