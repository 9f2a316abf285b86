"""Which host has the copies of which ranks a second time."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster.agent.report import AgentFacts
from jaxcluster.agent.requests import Request
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet, Place
from jaxcluster.allocation.states import HostStates
from jaxcluster.errors import LaunchError
from jaxcluster.records.saved_states import Mirror
from jaxcluster.wire.ops.state import SaveReport


class Agent:
    """One that answers."""

    key = "k"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, request: Request[Any], timeout_s: float) -> str:
        self.asked.append(request.cmd)
        return f"tcp://{id(self)}"


def place(number: int, agent: Any, ranks: range, host_key: str = "") -> Place:
    facts = AgentFacts(host_key=host_key, folder=f"/f{number}", memory=f"/m{number}")
    return Place(number, f"h{number}", agent, facts, ranks)


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
        place(number, cast(Any, Agent()), range(number, number + 1), host_key=machine)
        for number, machine in enumerate(machines)
    ]
    states = HostStates.__new__(HostStates)
    states._fleet, states._name = cast(Fleet, SimpleNamespace(places=places)), "state-1"
    mirrors, told = states.open_mirrors()
    assert {rank: mirror.host for rank, mirror in mirrors.items()} == found
    assert told.keys() == mirrors.keys()
    for rank, host in found.items():
        assert told[rank]["folder"] == f"/m{host}/state-1/mirrors"
        assert cast(Agent, places[host].agent).asked == ["mkdir", "mirrors"]


def test_a_host_that_has_others_copies_too_has_less_room_for_each() -> None:
    """Two ranks on h0, one on h1; the memory of both is as large."""
    states = HostStates.__new__(HostStates)
    two, one = (place(n, None, ranks) for n, ranks in enumerate((range(2), range(2, 3))))
    states._homes, states._name = {0: two, 1: two, 2: one}, "s"
    states._rooms = {"/m0/s": 600, "/m1/s": 600}
    assert states.room_for_each({}) == 300
    mirrors = {rank: Mirror(host, "", "") for rank, host in {0: 1, 1: 1, 2: 0}.items()}
    assert states.room_for_each(mirrors) == 200  # three copies on each


class Door:
    """An agent's, which says what it is to say to each request, and how often it was asked."""

    def __init__(self, name: str, **says: Any) -> None:
        self.key, self.says, self.asked = f"key of {name}", says, list[str]()

    def begin(self, request: Request[Any]) -> Any:
        self.asked.append(request.cmd)

        def wait(timeout_s: float) -> tuple[Any, bytes]:
            if request.cmd not in self.says:
                raise LaunchError("it refuses")
            return self.says[request.cmd], b""

        return SimpleNamespace(wait=wait)


def test_ranks_read_from_hosts_that_theirs_reach() -> None:
    """Others' files are brought to them; so is all once a rank could not read."""
    agents = [
        Door("h0", give_out="tcp://10.0.0.1:5", ways=["", "", "no"]),
        Door("h1", give_out="tcp://[::1]:6", ways=["", "", ""]),
        Door("h2", give_out="tcp://10.0.0.3:7"),
        Door("h3", ways=["", "", ""]),
    ]
    places = [place(n, agent, range(0)) for n, agent in enumerate(agents)]
    fleet = SimpleNamespace(places=places, homes=lambda: dict(enumerate(places)))
    states = HostStates.__new__(HostStates)
    states._fleet, states._name, states._keys = cast(Fleet, fleet), "state-1", new_keys()
    states._ways, states._asked_ways, states._is_direct = {}, set(), True
    states._homes, states._brought = dict(enumerate(places)), {}
    states._bring = lambda *at: "brought"  # type: ignore[method-assign]
    found: dict[tuple[int, int], str] = {}
    for here, there in itertools.product(range(4), range(4)):
        report = SaveReport(folder=f"/m{there}/state-1")
        where = states._bring_to(places[here], there, report)
        if isinstance(where, str):
            found[here, there] = where
        else:
            assert where["server"] == f"key of h{there}"
            assert where["folder"] == report.folder
            found[here, there] = where["endpoint"]
    at = ["tcp://10.0.0.1:5", "tcp://[::1]:6", "tcp://10.0.0.3:7"]
    here_and = {0: at[:2], 1: at, 2: [], 3: at}  # of the third nobody knows whom it reaches
    for (here, there), where in found.items():
        own = f"/m{here}/state-1"
        assert where == (own if here == there else [*here_and[here], *["brought"] * 4][there])
    assert all(agent.asked == ["give_out", "ways"] for agent in agents)
    states.bring_all()
    report = SaveReport(folder="/m1/state-1")
    assert states._bring_to(places[0], 1, report) == "brought"
