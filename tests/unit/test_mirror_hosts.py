"""Which host has the copies of which ranks a second time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet
from jaxcluster.allocation.states import HostStates


class Agent:
    """One that answers."""

    key = "k"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, cmd: str, timeout_s: float, **fields: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append(cmd)
        return {"endpoint": f"tcp://{id(self)}"}, b""


@pytest.mark.parametrize(
    ("machines", "found"),
    [
        ("ab", {0: 1, 1: 0}),
        ("abc", {0: 1, 1: 2, 2: 0}),
        ("aabb", {0: 2, 1: 2, 2: 0, 3: 0}),  # two agents on each machine
        ("aa", {}),
        ("a", {}),
    ],
)
def test_a_copy_is_brought_to_the_next_machine(machines: str, found: dict[int, int]) -> None:
    places = [
        SimpleNamespace(
            number=number, name=f"h{number}", agent=Agent(), facts={"host_key": machine},
            ranks=range(number, number + 1), lost="", memory=f"/m{number}", folder=f"/f{number}",
        )
        for number, machine in enumerate(machines)
    ]  # fmt: skip
    states = HostStates.__new__(HostStates)
    states._fleet, states._name = cast(Fleet, SimpleNamespace(places=places)), "state-1"
    mirrors, told = states.open_mirrors(new_keys())
    assert {rank: mirror.host for rank, mirror in mirrors.items()} == found
    assert told.keys() == mirrors.keys()
    for rank, host in found.items():
        assert told[rank]["folder"] == f"/m{host}/state-1/mirrors"
        assert places[host].agent.asked == ["mkdir", "mirrors"]
