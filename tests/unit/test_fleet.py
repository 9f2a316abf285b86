"""What a cluster's connection to its hosts makes of what it sees of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import until

from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent.client import State
from jaxcluster.hosts.agent.requests import Ways
from jaxcluster.hosts.agent.transport import new_keys
from jaxcluster.hosts.allocation import Allocation
from jaxcluster.hosts.fleet import Fleet, Host
from jaxcluster.hosts.placing import share_out
from jaxcluster.hosts.ways import own_addresses
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.plan.shares import ranks_by_host
from jaxcluster.wire import forks

# --------------------------------------------------------------------------- events of hosts


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """One host, h1, whose agent says what a test has it say."""
    made = Fleet(new_keys())
    made.hosts.append(host(made, 0, range(2)))
    yield made
    made.close()


def host(fleet: Fleet, number: int, ranks: range, **facts: Any) -> Host:
    """One that is connected, but to nobody."""
    made = Host(fleet._agents, number, f"h{number + 1}", StartedAgent(None, facts))
    made.on_event = lambda event: fleet._events.put((made, event))
    made.ranks, made.state = ranks, State.CONNECTED
    made.ask = lambda *_, **__: None  # type: ignore[method-assign]
    return made


def say(host: Host, event: forks.Event) -> None:
    """What its agent says."""
    assert host.on_event is not None
    host.on_event(event)


@pytest.mark.parametrize(("lease_s", "is_lost"), [(20.0, True), (7200.0, False)])
def test_a_host_whose_way_is_cut_is_given_up_before_its_lease_is_over(
    lease_s: float, is_lost: bool
) -> None:
    fleet = Fleet(new_keys(), lease_s=lease_s)
    told = listen(fleet)
    fleet.hosts.append(host(fleet, 0, range(2)))
    fleet.hosts[0].state, fleet.hosts[0].since = State.CUT, time.monotonic() - 16.0
    fleet._look_at(fleet.hosts[0])
    assert [lost.lost for lost in told] == ["it has not been reached for 16 s"] * is_lost
    fleet.close()


def test_a_host_is_lost_soon_where_nothing_listens_any_more(tmp_path: Path) -> None:
    """Only an answer tells that: a stopped agent, or one that can't be reached, may live."""
    fleet, told = Fleet(new_keys(), owns=False), list[Any]()
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        socket.create_server(("127.0.0.1", 0)) as gone,
    ):
        ports = [one.getsockname()[1] for one in (there, gone)]
        gone.close()
        at = [f"tcp://127.0.0.1:{port}" for port in ports]
        at += ["tcp://host.invalid:9", f"ipc://{tmp_path}/ssh"]
        for number, endpoint in enumerate(at):
            one = host(fleet, number, range(1), endpoint=endpoint)
            one.state, one.since = State.CUT, time.monotonic() - 2.1
            fleet.hosts.append(one)
        fleet.on_event = told.append
        until(lambda: told, "one is lost", 5)
    assert told == [fleet.hosts[1]] and told[0].gone
    assert told[0].lost == "its agent has ended: nothing answers at its socket there"
    fleet.close()
    here = Fleet(new_keys(), owns=False, is_here=True)
    one = host(here, 0, range(1), endpoint=f"ipc://{tmp_path}/s")
    assert here.gone([one]) == [one]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/s")
        listening.listen(0)
        for _ in range(3):  # it is stopped, and takes no connection
            assert here.gone([one]) == []
    here.close()


def exit_of(rank: int, host: str = "") -> forks.Exit:
    return forks.Exit("rank", rank, -9, host=host)


def listen(fleet: Fleet) -> list[Any]:
    told: list[Any] = []
    fleet.on_event = told.append
    return told


def test_a_lost_host_is_told_once_and_nothing_of_it_afterwards(fleet: Fleet) -> None:
    """Its ranks are dead as it is; their exits would be told of those that come after them."""
    told = listen(fleet)
    lost = fleet.hosts[0]
    lost.why = "it was asked to end"
    for event in (exit_of(1), forks.Lost(), exit_of(0), forks.Lost(), exit_of(1)):
        say(lost, event)
    until(lambda: len(told) > 1 and fleet._events.empty(), "that it is lost", 10)
    fleet._take(lost, exit_of(1))
    assert told == [exit_of(1, "h1"), lost]
    assert (lost.lost, lost.gone) == ("it was asked to end", True)


def replaced(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The new one in the place of the first."""
    new = host(fleet, 0, range(0))
    monkeypatch.setattr(fleet, "_connect", lambda number, name, started: new)
    fleet.replace(fleet.hosts[0], StartedAgent(None, {}))
    assert fleet.hosts == [new] and new.ranks == range(2) and not new.lost
    return new


@pytest.mark.parametrize("is_taken", [True, False], ids=["before", "after"])
def test_what_a_replaced_agent_says_late_is_not_of_the_new_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """The new one ends what is left of it by SIGTERM, and that still tells us."""
    monkeypatch.setattr("jaxcluster.hosts.fleet.REASON_S", 0.0)
    told = listen(fleet)
    old = fleet.hosts[0]
    old.lost, old.why = "it was not reached", "SIGTERM"
    if is_taken:
        fleet._take(old, forks.Lost())
    new = replaced(fleet, monkeypatch)
    say(old, forks.Lost())
    say(old, exit_of(0))
    say(new, exit_of(1))
    until(lambda: told, "the new one's event", 10)
    assert told == [exit_of(1, "h1")] and not new.lost


# --------------------------------------------------------------------------- ways between them


def test_hosts_with_ranks_alone_have_to_reach_each_other(fleet: Fleet) -> None:
    why = "no answer"

    def begin(request: Any) -> Any:
        said = [("10.0.1.1", why) for _ in request.to] if isinstance(request, Ways) else 4000
        return SimpleNamespace(wait=lambda timeout_s: (said, b""))

    first, other = fleet.hosts[:] = [
        host(fleet, number, ranks, host_key=f"{number}", address=f"10.0.0.{number}")
        for number, ranks in enumerate(ranks_by_host([2, 0]))
    ]
    first.begin = other.begin = begin  # type: ignore[assignment,method-assign]
    assert own_addresses(fleet.hosts) == ["127.0.0.1"] * 2
    other.ranks = range(2, 3)
    told = r"Host h1 \(it listens at 10.0.0.0, port 4000\) can't be reached from host h2\."
    with pytest.raises(LaunchError, match=told):
        own_addresses(fleet.hosts)
    why = ""
    assert own_addresses(fleet.hosts) == ["10.0.0.0", "10.0.0.0", "10.0.1.1"]


# --------------------------------------------------------------------------- hosts left out


def hosts(fleet: Fleet, *counts: int) -> None:
    """Hosts h1, h2, ... with so many ranks."""
    fleet.hosts[:] = [
        host(fleet, number, ranks) for number, ranks in enumerate(ranks_by_host(counts))
    ]


def allocation_of(fleet: Fleet, platform: str = "cpu") -> Allocation:
    """One whose launcher can't replace a host."""
    claim: Any = SimpleNamespace(name="c", id="1")
    made = Allocation(claim)
    made._launch = SimpleNamespace(successor=lambda *_: None)  # type: ignore[assignment]
    made.fleet, made._platform = fleet, platform
    return made


def test_what_is_left_is_offered_where_some_hosts_are_lost(fleet: Fleet) -> None:
    hosts(fleet, 2, 2, 3)
    allocation = allocation_of(fleet)
    assert not allocation.offer
    fleet.hosts[0].lost = "gone"
    left = "%jaxcluster restart -n 5 goes on with what is left, hosts h2 and h3"
    assert allocation.offer == left
    for lost in fleet.hosts:
        lost.lost = "gone"
    allocation.leave_out_lost()
    assert not allocation.offer  # nothing is


@pytest.mark.parametrize(
    ("num_processes", "shares", "counts"),
    [
        (4, [2, 2], [2, 2]),
        (2, [2, 2], [1, 1]),
        (1, [2, 2, 2], [1, 0, 0]),
        (2, [1, 8, 8], [1, 1, 0]),
        (4, [3, 1], [3, 1]),
        (5, [8, 1, 1], [3, 1, 1]),
        (64, [8] * 8, [8] * 8),
    ],
)
def test_ranks_are_shared_out_as_at_the_start(
    num_processes: int, shares: list[int], counts: list[int]
) -> None:
    assert share_out(num_processes, shares) == counts


@pytest.mark.parametrize(("platform", "offered"), [("cpu", True), ("tpu", False)])
def test_a_lost_host_that_cant_be_replaced_leaves_the_others(
    fleet: Fleet, platform: str, offered: bool
) -> None:
    hosts(fleet, 2, 2)
    fleet.hosts[1].lost = "its agent has ended"
    allocation = allocation_of(fleet, platform)
    with pytest.raises(LaunchError) as caught:
        allocation.check_returns()
    assert caught.value.message == (
        "Host h2 is lost (its agent has ended), and its launcher can't replace it."
    )
    offer = "%jaxcluster restart -n 2 goes on with what is left, host h1. Or: "
    assert caught.value.hint == (
        f"{offer * offered}%jaxcluster stop, then start again with the hosts that are up."
    )
    allocation.leave_out_lost()
    allocation.check_returns()
    assert not allocation.offer
    hosts(fleet, 2, 0)
    fleet.hosts[1].lost = "its agent has ended"
    allocation.check_returns()  # nobody needs it
    assert [one.name for one in fleet.hosts] == ["h1"]
