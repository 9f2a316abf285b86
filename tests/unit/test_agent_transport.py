"""Who is let in to an agent's socket: its owner, and nobody else, whatever they try."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from helpers import until

from jaxcluster.hosts.agent import transport
from jaxcluster.hosts.agent.transport import (
    Authenticator,
    Keys,
    Listener,
    new_keys,
    open_dealer,
    open_router,
)

ANSWER_MS = 20_000
NOT_LET_IN_MS = 300


class Server:
    """An agent's socket: echoes, and keeps what has come."""

    def __init__(self, bind: str) -> None:
        self.owner, self.keys = new_keys(), new_keys()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.authenticator = Authenticator(self.context, self.owner.public)
        self.router, self.endpoint = open_router(self.context, bind, self.keys)
        self.came: list[list[bytes]] = []
        self.questions = 0
        self._loop = asyncio.new_event_loop()
        self._loop.call_soon(self._listen)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        Listener(self.authenticator.socket, self._answer)
        self._listener = Listener(self.router, self._echo)

    def _answer(self, question: list[Any]) -> None:
        self.authenticator.answer(question)
        self.questions += 1

    def _echo(self, packet: list[Any]) -> None:
        self.came.append([bytes(frame) for frame in packet])
        self._listener.send(packet)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.context.destroy(0)


@pytest.fixture(params=["tcp", "ipc"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    bind = "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/s"
    made = Server(bind)
    yield made
    made.close()


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context whose sockets live until the test's end: pyzmq warns of one that was not closed."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    kept = []
    create = zmq.Context.socket

    def socket(self: zmq.Context[zmq.Socket[bytes]], *args: Any) -> zmq.Socket[bytes]:
        kept.append(create(self, *args))
        return kept[-1]

    monkeypatch.setattr(zmq.Context, "socket", socket)
    yield made
    made.destroy(0)


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], server: Server, keys: Keys, name: bytes = b"jname"
) -> zmq.Socket[bytes]:
    made = open_dealer(context, name, server.keys.public, keys)
    made.setsockopt(zmq.IMMEDIATE, 0)  # queue what is sent before there is a connection
    made.connect(server.endpoint)
    return made


def assert_serves_its_owner(context: zmq.Context[zmq.Socket[bytes]], server: Server) -> None:
    ours = dealer(context, server, server.owner, b"jowner")
    ours.send_multipart([b"mine", b"x" * 100_000])
    assert ours.poll(ANSWER_MS)
    assert ours.recv_multipart() == [b"mine", b"x" * 100_000]
    assert {name for name, *_ in server.came} == {b"jowner"}
    ours.close(0)


@pytest.mark.parametrize("with_owners_public", [False, True])
def test_a_foreign_key_is_not_let_in(
    context: zmq.Context[zmq.Socket[bytes]], server: Server, with_owners_public: bool
) -> None:
    """It knows the server's public key: CURVE alone would let it in."""
    theirs = new_keys()
    if with_owners_public:
        theirs = Keys(server.owner.public, theirs.secret)
    stranger = dealer(context, server, theirs)
    stranger.send(b"stop")
    if not with_owners_public:
        until(lambda: server.questions, "it is refused", 20)
    assert not stranger.poll(NOT_LET_IN_MS)
    assert_serves_its_owner(context, server)


def test_an_owner_takes_no_other_server_for_its_own(
    context: zmq.Context[zmq.Socket[bytes]], server: Server
) -> None:
    """Nothing is sent to whoever listens there in its place."""
    ours = open_dealer(context, b"jname", new_keys().public, server.owner)
    ours.setsockopt(zmq.IMMEDIATE, 0)
    ours.connect(server.endpoint)
    ours.send(b"secret")
    assert not ours.poll(NOT_LET_IN_MS)
    assert server.came == []


def test_plain_sockets_are_not_let_in(
    context: zmq.Context[zmq.Socket[bytes]], server: Server
) -> None:
    for kind in (zmq.DEALER, zmq.REQ, zmq.ROUTER):
        with context.socket(kind) as theirs:
            theirs.linger = 0
            theirs.connect(server.endpoint)
            if kind != zmq.ROUTER:
                theirs.send(b"stop")
            assert not theirs.poll(NOT_LET_IN_MS, zmq.POLLIN)
    assert_serves_its_owner(context, server)


@pytest.mark.parametrize(
    ("version", "mechanism", "owner_keys", "status"),
    [
        (b"1.0", b"CURVE", 1, b"200"),
        (b"2.0", b"CURVE", 1, b"400"),
        (b"1.0", b"GSSAPI", 1, b"400"),  # a principal, which may be called anything
        (b"1.0", b"CURVE", 2, b"400"),
        (b"1.0", b"NULL", 0, b"400"),
    ],
)
def test_the_owner_is_known_by_one_key_of_curve_alone(
    version: bytes, mechanism: bytes, owner_keys: int, status: bytes
) -> None:
    """As zmq would ask; the answer is for the question."""
    with zmq.Context() as context, contextlib.ExitStack() as opened:
        authenticator = Authenticator(context, new_keys().public)
        opened.enter_context(authenticator.socket)
        asks = opened.enter_context(context.socket(zmq.REQ))
        asks.linger = 0
        asks.connect(transport.ZAP)
        keys = [authenticator.owner] * owner_keys
        asks.send_multipart([version, b"7", b"jaxcluster", b"", b"", mechanism, *keys])
        assert authenticator.socket.poll(ANSWER_MS)
        authenticator.answer(authenticator.socket.recv_multipart())
        assert asks.recv_multipart()[1:3] == [b"7", status]


def test_public_keys_pass_through_any_shell_and_parser_and_secrets_are_not_shown() -> None:
    """One of 85 keys in zmq's own spelling begins with a hyphen, and was taken for an option."""
    for keys in (new_keys() for _ in range(300)):
        assert re.fullmatch("[0-9a-f]{64}", keys.public)
        assert keys.secret not in repr(keys)
