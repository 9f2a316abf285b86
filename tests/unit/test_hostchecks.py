"""What the doctor says of a cluster's hosts, and what an agent says of its own."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from jaxcluster.agent import report
from jaxcluster.allocation.fleet import Host
from jaxcluster.doctor.hosts import Row, judge, judge_ways, look, render
from jaxcluster.host.reachability import connection_errors


def facts(**changes: Any) -> report.HostFacts:
    said = report.HostFacts(
        versions={"python": "3.11.7", "jax": "0.10.2"},
        address="10.0.0.1",
        cpus=8,
        free_nbytes=3 << 30,
        shm_free_nbytes=1 << 30,
    )
    return replace(said, **changes)


def rows(*hosts: report.HostFacts | None) -> dict[str, Row]:
    return {row.name: row for row in judge(hosts)}


def test_equal_hosts_have_nothing_to_fix() -> None:
    found = rows(facts(), facts(address="10.0.0.2"))
    assert all(row.ok for row in found.values())
    assert found["address"].cells == ("10.0.0.1", "10.0.0.2")
    assert found["devices"].cells == ("8 CPU cores", "8 CPU cores")
    assert found["free memory"].cells[0] == "3.0 GiB"


def test_what_differs_or_is_short_is_marked() -> None:
    other = {"python": "3.11.9", "jax": "0.12.0"}
    found = rows(facts(), None, facts(versions=other, free_nbytes=1 << 20, shm_free_nbytes=None))
    assert found["python"].ok is True  # the patch level may differ
    assert found["jax"].ok is False
    assert found["jax"].cells == ("0.10.2", "", "0.12.0")
    assert "--python PATH" in found["jax"].fix
    assert found["free memory"].ok is None and found["/dev/shm"].ok is None
    assert found["/dev/shm"].cells[2] == "not known"
    assert rows(facts(gpus=["0", "1"]))["devices"].ok is None
    assert rows(facts(gpus=["0"], gpu_plugin=True))["devices"].cells == ("1 GPUs, 8 CPU cores",)


def test_a_jax_on_which_no_cluster_starts_is_marked_though_all_hosts_have_it() -> None:
    old = {"python": "3.11.7", "jax": "0.8.3"}
    jax = rows(facts(versions=old), facts(versions=old))["jax"]
    assert jax.ok is False
    assert "is older than 0.9.1" in jax.fix and 'pip install -U "jax>=0.9.1"' in jax.fix


def test_hosts_that_do_not_reach_each_other_are_named() -> None:
    ways = {"h1": ["refused", ""], "h2": ["no answer", ""], "h3": None}
    found = judge_ways(["h1", "h2", "h3"], ["h1", "h2"], ways)
    assert found.cells == ("all others", "not h1 (no answer)", "")
    assert found.ok is False and "(h2 to h1)" in found.fix
    assert judge_ways(["h1"], ["h1"], {"h1": [""]}).cells == ("no other",)


def test_the_table() -> None:
    shown = render(["h1", "h2"], [Row("jax", ("1", "2"), False, "fix it"), Row("x", ("", "y"))])
    assert shown == "       h1  h2\n✗ jax  1   2\n       fix: fix it\n✓ x        y"


def test_a_lost_host_and_a_silent_one_are_told_with_the_reason() -> None:
    class Silent(SimpleNamespace):
        condition = ": there has been no connection to it for 9 s"

        def ask(self, request: Any, timeout_s: float) -> Any:
            from jaxcluster.errors import LaunchError

            raise LaunchError("no answer")

    def place(name: str, lost: str) -> Host:
        return cast(Host, Silent(name=name, lost=lost, ranks=range(2)))

    shown = look([place("h1", "its agent was killed"), place("h2", "")])
    assert "! h1: its agent was killed" in shown
    assert "! h2: there has been no connection to it for 9 s" in shown


def test_ways_are_tried_and_doors_opened() -> None:
    doors = report.Doors()
    port = doors.open("127.0.0.1")
    assert connection_errors([("127.0.0.1", port)]) == [""]
    doors.open("")
    assert connection_errors([("127.0.0.1", port), ("no address", 1)])[0] == "Connection refused"
    assert connection_errors([]) == []


def test_nobody_answers_within_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            assert connection_errors([address] * 3, 0.1)[-1] == "no answer"


def test_this_host_has_room() -> None:
    room = report.host_report()
    assert room.cpus >= 1 and room.free_nbytes and room.shm_free_nbytes is not None
