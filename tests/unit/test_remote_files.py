"""A saved file of another host, read from there: what is asked for, or nothing counts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import zmq

from jaxcluster.agent import transport
from jaxcluster.agent.folder import Folder
from jaxcluster.agent.given_out import GivenOut
from jaxcluster.engine.state import remote_files
from jaxcluster.engine.state.remote_files import Hosts, NotBrought
from jaxcluster.engine.state.saved import (
    CannotRestore,
    Glance,
    Saved,
    SavedArray,
    read,
    state_path,
    write,
)

BIG = np.random.default_rng(0).integers(0, 255, 3 * remote_files.PART + 5, dtype=np.uint8)


class Agent:
    """One that gives out what ranks have saved."""

    def __init__(self, path: Path) -> None:
        self.path = path / "agent"
        self.states = self.path / "state-1"
        self.states.mkdir(parents=True, mode=0o700)
        self.keys, self.readers = transport.new_keys(), transport.new_keys()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.authenticator = transport.Authenticator(self.context, transport.new_keys().public)
        folder = Folder(self.path, self.path)
        self.given_out = GivenOut(self.context, folder, self.keys, "tcp://127.0.0.1:*")
        self.given_out.give_out(self.readers.public, [str(self.states)])
        self.authenticator.readers = self.given_out.readers
        self.sent = 0
        self.is_deaf = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        give = self.given_out._give

        def count(request: Any, roots: Any) -> Any:
            answer, data = give(request, roots)
            self.sent += sum(map(len, data))
            return answer, data

        self.given_out._give = count  # type: ignore[method-assign]
        poller = zmq.Poller()
        for socket in (self.authenticator.socket, self.given_out.socket):
            poller.register(socket, zmq.POLLIN)
        while not self._over.is_set():
            events = dict(poller.poll(10))
            if self.authenticator.socket in events:
                self.authenticator.answer()
            if self.given_out.socket in events and not self.is_deaf:
                self.given_out.receive(4)

    def where(
        self, keys: transport.Keys | None = None, folder: Path | None = None
    ) -> remote_files.Where:
        keys = keys or self.readers
        return {
            "endpoint": self.given_out.endpoint, "server": self.keys.public, "host": "h2",
            "public": keys.public, "secret": keys.secret, "folder": str(folder or self.states),
        }  # fmt: skip

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.context.destroy(0)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    saved = Saved(0, 2, 2, {})
    saved.sections = [b"first", BIG, b"", b"a shard"]
    saved.arrays = [SavedArray([7], "uint8", 0, False, True, [([[0, 7]], 3)])]
    write(saved, state_path(made.states, 0))
    yield made
    made.close()


def test_what_is_asked_for_comes_and_nothing_else(agent: Agent) -> None:
    with Hosts() as hosts:
        glance = Glance(hosts.state(agent.where(), 0))
        assert bytes(glance.section(0)) == b"first"
        assert agent.sent < 4096
        assert glance.section(0) is glance.section(0)
        assert not glance.section(2)
        assert bytes(glance.section(1)) == BIG.tobytes()
        parts = glance.all_but_arrays()
        assert [bytes(one) for one in parts.sections[:2]] == [b"first", BIG.tobytes()]
        assert not parts.sections[3]
        glance.hold(3)
        glance.let_go()
        whole = read(hosts.state(agent.where(), 0))
        assert [bytes(one) for one in whole.sections] == [
            b"first", BIG.tobytes(), b"", b"a shard"
        ]  # fmt: skip
    assert bytes(glance.section(3)) == b"a shard"  # when its host is out of reach
    with pytest.raises((NotBrought, zmq.ZMQError)):
        glance.section(0)


@pytest.mark.parametrize("how", ["truncated", "damaged", "gone"])
def test_a_file_that_is_not_whole_is_refused_and_nothing_counts(agent: Agent, how: str) -> None:
    """Also where whoever reads it goes on without it."""
    path = state_path(agent.states, 0)
    said = r"^h2:.*(is damaged|truncated|can't be read)"
    with pytest.raises(NotBrought, match=said), Hosts() as hosts:
        glance = Glance(hosts.state(agent.where(), 0))
        data = bytearray(path.read_bytes())
        if how == "gone":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(data[: remote_files.PART])
        else:
            data[remote_files.PART] ^= 1
            path.write_bytes(data)
        with contextlib.suppress(NotBrought):
            glance.section(1)


def test_a_file_here_that_is_not_whole_is_said_as_ever(tmp_path: Path) -> None:
    with pytest.raises(CannotRestore, match="can't be read"), Hosts() as hosts:
        read(hosts.state(str(tmp_path), 0))


def test_a_host_that_is_silent_is_waited_for_once(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "SILENT_S", 0.3)
    agent.is_deaf = True
    with pytest.raises(NotBrought, match=r"^h2 does not answer at tcp://127"), Hosts() as hosts:
        for _ in range(100):
            with pytest.raises(NotBrought):
                Glance(hosts.state(agent.where(), 0))


def test_a_key_opens_what_it_is_for(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers write nothing, and read nothing else; nobody else comes in."""
    monkeypatch.setattr(remote_files, "SILENT_S", 1.0)
    (agent.path / "agent.json").write_text("not theirs")
    (agent.states / "link.state").symlink_to(agent.path / "agent.json")

    def ask(keys: transport.Keys, request: dict[str, Any]) -> str:
        with pytest.raises(NotBrought) as caught, Hosts() as hosts:
            socket = hosts.socket_to(cast(Any, agent.where(keys)))
            socket.send_json({"id": 0, **request})
            path = cast(remote_files.FarPath, hosts.state(agent.where(keys), 0))
            path._hear(socket, 0)
        return str(caught.value)

    for name in ("agent.json", "state-1/link.state", "state-1/../agent.json", "../x"):
        said = ask(agent.readers, {"cmd": "get", "path": str(agent.path / name)})
        assert said.endswith("it is not given out") or "is not in the folder" in said, name
    for command in ("put", "remove", "mkdir", "link", "mark", "tail", "write", "move"):
        there = str(state_path(agent.states, 0))
        said = ask(agent.readers, {"cmd": command, "path": there, "to": there})
        assert said.endswith("it is not given out")
    state = str(state_path(agent.states, 0))
    assert "does not answer" in ask(transport.new_keys(), {"cmd": "get", "path": state})
    assert state_path(agent.states, 0).exists()


def test_a_key_goes_with_its_folders(agent: Agent, tmp_path: Path) -> None:
    agent.states.rename(agent.path / "gone")
    (agent.path / "state-2").mkdir()
    agent.given_out.give_out("ab" * 32, [str(agent.path / "state-2")])
    assert list(agent.given_out.readers) == ["ab" * 32]
