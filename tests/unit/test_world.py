"""What a world makes of the ends of its processes, as their parent tells them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from jaxcluster.cluster.handle import Cluster
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError


def world(is_started: bool = True) -> Any:
    processes = MagicMock(is_ours=False)
    processes.spec = SimpleNamespace(num_processes=2)
    processes.fleet.lost = []
    record: Any = SimpleNamespace(name="shared", facts=(), spec=processes.spec)
    made = World(processes, record=record if is_started else None)
    made.listen()
    return made


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


# --------------------------------------------------------------------------- the end


def test_an_end_that_was_interrupted_is_carried_through_by_the_next() -> None:
    processes, allocation = MagicMock(is_ours=True), MagicMock()
    processes.spec = SimpleNamespace(num_processes=2)
    processes.stop.side_effect = KeyboardInterrupt
    stopped = World(processes, allocation)
    with pytest.raises(KeyboardInterrupt):
        stopped.end()
    allocation.end.assert_not_called()
    stopped.end()
    stopped.end()
    allocation.end.assert_called_once_with()  # its name is free
