"""What a world makes of the ends of its processes, as their parent tells them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from jaxcluster.cluster.world import World
from jaxcluster.model import notices
from jaxcluster.wire import forks


def world_of_another_process() -> Any:
    processes = MagicMock(is_ours=False)
    processes.fleet.losses.return_value = []
    record = SimpleNamespace(
        name="shared", facts=(), last_seq=0, spec=SimpleNamespace(num_processes=2)
    )
    world: Any = World(record, processes)  # type: ignore[arg-type]
    world.listen()
    return world


def coordinator_ends() -> forks.Exit:
    return forks.Exit("coordinator", None, -9)


def test_a_coordinator_that_dies_is_told() -> None:
    world = world_of_another_process()
    world.fleet.on_event(coordinator_ends())
    assert world.coordinator_died == "killed by SIGKILL"
    assert world.is_broken


def test_a_coordinator_that_is_ended_with_its_ranks_has_not_died() -> None:
    """Whichever of them is reaped first."""
    world = world_of_another_process()
    world.fleet.on_event(forks.Stopping(forks.RESTARTED))
    world.fleet.on_event(coordinator_ends())
    assert not world.coordinator_died
    for rank in range(2):
        world.fleet.on_event(forks.Exit("rank", rank, -9))
    assert notices.meant(death.why for death in world.dead.values()) == forks.RESTARTED
