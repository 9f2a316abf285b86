"""What a world makes of the ends of its processes, as their parent tells them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from jaxcluster.allocation.fleet import Host
from jaxcluster.cluster.handle import Cluster
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.model import notices
from jaxcluster.wire import forks


def world(is_started: bool = True) -> Any:
    processes = MagicMock(is_ours=False)
    processes.spec = SimpleNamespace(num_processes=2)
    processes.fleet.lost = []
    record: Any = SimpleNamespace(name="shared", facts=(), spec=processes.spec)
    made = World(processes, record=record if is_started else None)
    made.listen()
    return made


def coordinator_ends() -> forks.Exit:
    return forks.Exit("coordinator", None, -9)


def test_a_coordinator_that_dies_is_told() -> None:
    one = world()
    one.fleet.on_event(coordinator_ends())
    assert one.coordinator_died == "killed by SIGKILL"
    assert one.is_broken


def test_a_coordinator_that_is_ended_with_its_ranks_has_not_died() -> None:
    """Whichever of them is reaped first."""
    one = world()
    one.fleet.on_event(forks.Stopping(forks.RESTARTED))
    one.fleet.on_event(coordinator_ends())
    assert not one.coordinator_died
    for rank in range(2):
        one.fleet.on_event(forks.Exit("rank", rank, -9))
    assert notices.meant(death.why for death in one.dead.values()) == forks.RESTARTED


def test_a_host_that_is_lost_before_there_is_a_way_to_its_ranks_takes_them_along() -> None:
    one = world(is_started=False)
    agents: Any = None
    lost = Host(agents, 0, "h1", StartedAgent(0, {}))
    lost.ranks, lost.lost, lost.gone = range(1), "no power", True
    one.fleet.hosts = [lost]
    one.fleet.on_event(lost)
    assert one.dead[0].why == one.coordinator_died == "host h1 is lost: no power"
    one.link.mark_dead.assert_called_once_with(0, one.dead[0])


# --------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("ranks", [[1, 0], (0, 1), {1, 0}, range(2), np.arange(2), iter([0, 1])])
def test_ranks_are_any_whole_numbers(ranks: Any) -> None:
    named = world().check_ranks(ranks)
    assert named == [0, 1]
    assert {type(rank) for rank in named} == {int}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: c.run("1", ranks=0), "ranks must be a list of numbers, not 0."),
        (lambda c: c.run("1", ranks="0,1"), "ranks must be a list of numbers, not '0,1'."),
        (lambda c: c.run("1", ranks=[0.0]), "ranks must be a list of numbers, not [0.0]."),
        (lambda c: c.submit("1", shown_ranks=[True, False]), "ranks must be a list of numbers"),
        (lambda c: c.push({"x": 1}, "0"), "ranks must be a list of numbers, not '0'."),
    ],
)
def test_what_are_no_ranks_is_told_with_an_example(call: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        call(Cluster(world()))
    assert told in raised.value.message
    assert raised.value.hint.startswith("For example: ")
