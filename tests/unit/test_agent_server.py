"""What time and clients are to an agent: leases, places of processes. No sockets."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import zmq

from jaxcluster.hosts.agent.folder import Folder
from jaxcluster.hosts.agent.messages import ACK, HEAD, HELLO, VERSION, Session
from jaxcluster.hosts.agent.requests import Mkdir, Recall
from jaxcluster.hosts.agent.server import IDLE_S, Agent, Client
from jaxcluster.supervision.processes import process_token
from jaxcluster.wire.forks import Process


class NoFamily:
    """A fork server that is not there, with as many processes as a test says."""

    env = {"PATH": "/host"}  # noqa: RUF012
    members: dict[int, Any] = {}  # noqa: RUF012

    def reap_others(self) -> None:
        pass


class Made(Agent):
    """An agent of whose clients no packet is sent."""

    def __init__(
        self, folder: Path, lease: float = 20.0, first_lease: float = 60.0, owner: str = ""
    ) -> None:
        options = argparse.Namespace(
            lease=lease, first_lease=first_lease, limit=1 << 20, owner=owner
        )
        self.its = NoFamily()
        super().__init__(options, Folder(folder, folder), self.its)  # type: ignore[arg-type]
        self.endpoint = "tcp://10.0.0.2:1"
        self.now = self._looked_at

    def _transmit(self, client: Client) -> None:
        client.session.take()

    def comes(self, name: bytes) -> Client:
        client = self.clients[name] = Client(name, Session(asks=False))
        client.session.is_open = True
        return client

    def passes(self, seconds: float, step: float = 1.0) -> None:
        while seconds > 0:
            self.now += min(step, seconds)
            seconds -= step
            self.look_after(self.now)


@pytest.fixture
def agent(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_time_in_which_it_was_stopped_itself_is_no_absence(agent: Made) -> None:
    agent.alone_s = 0.0
    agent.passes(1000, step=1000)
    assert not agent.why
    agent._detach(True, [])  # nor is it one where nobody has to be there
    agent.passes(30)
    assert not agent.why
    agent._detach(False, [])
    agent.passes(30)
    assert agent.why


def test_its_owners_machine_has_no_lease_and_ends_it_idle(tmp_path: Path) -> None:
    agent = Made(tmp_path, owner=process_token(os.getpid()))
    agent.its.members = {1: None}
    agent.passes(10 * IDLE_S, step=2.0)
    assert not agent.why
    agent.its.members = {}
    agent.passes(IDLE_S - 1)
    assert not agent.why
    agent.passes(5)
    assert agent.why == "it has no processes"


def test_it_ends_with_an_owner_whose_child_holds_its_input_open(tmp_path: Path) -> None:
    agent = Made(tmp_path, owner="1:1")  # a process that has ended
    agent.passes(1)
    assert agent.why == "its owner has ended"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_detached_one_that_nobody_can_find_ends(tmp_path: Path, is_there: bool) -> None:
    agent = Made(tmp_path, owner="1:1")
    agent.its.members = {1: None}
    alive = tmp_path / "alive"
    if is_there:
        alive.touch()
    agent._detach(True, [str(alive)])
    agent.passes(1)
    assert not agent.why  # it may be changing
    agent.passes(10)
    assert bool(agent.why) is not is_there
    alive.unlink(missing_ok=True)
    agent.passes(10)
    assert agent.why == "its folder or socket was removed"
    agent._detach(False, [])


def test_a_process_is_started_where_there_is_a_folder(
    agent: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is given comes before the host's own environment."""
    (tmp_path / "home").mkdir()
    agent.its.env = {"PATH": "/host", "JAX_ENABLE_X64": "0"}
    for home, cwd, found in (
        ("/no/such/home", tmp_path, tmp_path),
        (tmp_path / "home", "/no/such", tmp_path / "home"),
        ("/no/such/home", "/no/such", agent.folder.path),
    ):
        monkeypatch.setenv("HOME", str(home))
        placed = agent._placed(Process("other", {"JAX_ENABLE_X64": "1"}, str(cwd), "log"))
        assert placed.cwd == str(found)
        assert placed.env == {"PATH": "/host", "JAX_ENABLE_X64": "1"}


def test_a_folder_of_a_client_that_was_killed_goes_with_it(agent: Made, tmp_path: Path) -> None:
    """What ranks have saved for a restart of its, in memory; a detached agent lives on."""
    client = agent.comes(b"killed")
    for name, own in (("state", True), ("ranks", False)):
        asyncio.run(agent._do(client, Mkdir(name, own), []))
        (tmp_path / name / "rank-0.state").touch()
    agent.passes(10)
    assert (tmp_path / "state").exists()
    client.session.is_open = False
    agent.detached = True
    agent.passes(30)
    assert not agent.why and not agent.clients
    assert not (tmp_path / "state").exists() and (tmp_path / "ranks").exists()


@pytest.mark.parametrize(
    ("head", "comes"),
    [
        (HEAD.pack(VERSION, HELLO, 0, 0), True),
        (HEAD.pack(VERSION, HELLO, 1, 0), False),  # of a session that the agent has forgotten
        (HEAD.pack(VERSION, ACK, 0, 0), False),
        (b"x", False),
    ],
)
def test_who_opens_no_session_is_nobody(agent: Made, head: bytes, comes: bool) -> None:
    agent._receive([zmq.Frame(b"jname"), zmq.Frame(head)])
    assert list(agent.clients) == [b"jname"] * comes


def test_it_reads_the_memory_of_its_own_processes_alone(agent: Made) -> None:
    held, me = ctypes.create_string_buffer(b"values"), os.getpid()
    asked = agent.comes(b"n"), Recall(me, ctypes.addressof(held), 6), []
    for members, found in (({me: None}, b"values"), ({}, b"")):
        agent.its.members = members
        assert asyncio.run(agent._do(*asked)) == (None, found)
