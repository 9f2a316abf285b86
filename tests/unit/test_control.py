"""A rank's own socket: who answers where, and how printed text is sent."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

from jaxcluster import wire
from jaxcluster.rank.control import ControlChannel, Request
from jaxcluster.wire.ops.saving import Drop

ANSWER_S = 30.0


@dataclass
class Peer:
    """A notebook's end of one control channel."""

    socket: zmq.Socket[bytes]
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def send(self, op: str, body: Any = None, *buffers: bytes) -> str:
        id = str(next(self.ids))
        self.socket.send_multipart([wire.encode(op, id, body), *buffers])
        return id

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        assert self.socket.poll(ANSWER_S * 1000), "no answer"
        data, *buffers = self.socket.recv_multipart()
        return wire.decode(data), buffers

    def ask(self, op: str, body: Any = None, *buffers: bytes) -> dict[str, Any]:
        self.send(op, body, *buffers)
        return self.receive()[0]

    def until_reply(self) -> list[dict[str, Any]]:
        """All that comes, up to the reply."""
        envelopes = [self.receive()[0]]
        while envelopes[-1]["op"] not in ("reply", "error"):
            envelopes.append(self.receive()[0])
        return envelopes


def handle(control: ControlChannel, op: str, where: str, handler: Callable[[Any], Any]) -> None:
    """As ``ControlChannel.handle``, of an operation that has no types."""
    control.handlers[op] = (where, handler)


@pytest.fixture
def control(tmp_path: Path) -> ControlChannel:
    """It lives on a thread as long as the process, as in a rank."""
    made = ControlChannel(f"ipc://{tmp_path}/0.sock")
    made.start()
    return made


@pytest.fixture
def peer(control: ControlChannel) -> Iterator[Peer]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvhwm = 0
        socket.connect(control.address)
        yield Peer(socket)


def printing(
    control: ControlChannel, write: Callable[[Callable[..., None], Request], None]
) -> None:
    """Handle ``print`` as a cell would: on another thread, with a reply at its end."""

    def handler(request: Request) -> None:
        def put(text: str, name: str = "stdout") -> None:
            control.stream(request, 0, 1, name, text)

        def run() -> None:
            write(put, request)
            request.reply("done")

        threading.Thread(target=run, daemon=True).start()

    handle(control, "print", "later", handler)


# --------------------------------------------------------------------------- requests


@pytest.mark.parametrize("where", ["now", "side"])
def test_a_request_is_answered_by_its_handler(
    control: ControlChannel, peer: Peer, where: str
) -> None:
    handle(
        control, "swap", where, lambda request: (request.body * 2, [*map(bytes, request.buffers)])
    )
    peer.send("swap", "ab", b"one", b"x" * 200_000)
    envelope, buffers = peer.receive()
    assert envelope == {"v": wire.PROTOCOL_VERSION, "op": "reply", "id": "0", "body": "abab"}
    assert buffers == [b"one", b"x" * 200_000]


def test_the_main_threads_requests_wait_for_it_and_keep_their_order(
    control: ControlChannel, peer: Peer
) -> None:
    inbox = control.inbox(Drop)
    handle(control, "here?", "now", lambda request: "yes")
    for token in "abc":
        peer.send("drop", {"token": token})
    assert peer.ask("here?")["body"] == "yes"  # the main thread is busy
    for token in "abc":
        inbox.get(timeout=ANSWER_S).answer(lambda request: request.body.token)
        assert peer.receive()[0]["body"] == token


def test_a_slow_request_holds_up_no_other(control: ControlChannel, peer: Peer) -> None:
    go_on = threading.Event()
    handle(control, "slow", "side", lambda request: go_on.wait(ANSWER_S))
    handle(control, "quick", "now", lambda request: "quick")
    slow = peer.send("slow")
    assert peer.ask("quick")["body"] == "quick"
    go_on.set()
    assert peer.receive()[0]["id"] == slow


class Hinted(Exception):
    hint = "Type this."


@pytest.mark.parametrize("where", ["now", "side"])
def test_what_a_handler_raises_is_told_and_the_control_channel_lives_on(
    control: ControlChannel, peer: Peer, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(request: Request) -> Any:
        raise Hinted("no such thing")

    handle(control, "fail", where, fail)
    told = {"ename": "Hinted", "message": "no such thing", "hint": "Type this."}
    for _ in range(2):
        answer = peer.ask("fail")
        assert (answer["op"], answer["body"]) == ("error", told)
    assert "Traceback" not in capfd.readouterr().err
    handle(control, "unexpected", where, lambda request: 1 / 0)
    assert peer.ask("unexpected")["body"]["ename"] == "ZeroDivisionError"
    assert "Traceback" in capfd.readouterr().err  # its log


def test_a_request_with_other_fields_or_of_another_version_is_refused(
    control: ControlChannel, peer: Peer
) -> None:
    control.handle(Drop, "now", lambda request: request.body.token)
    assert peer.ask("drop", {"token": "x"})["body"] == "x"
    refused = peer.ask("drop")["body"]
    assert refused["ename"] == "WrongFields"
    assert "the request 'drop': Object missing" in refused["message"]
    peer.socket.send_multipart([b'{"v": 99, "op": "double", "id": "x"}'])
    answer, _ = peer.receive()
    assert answer["op"] == "error"
    assert "install the same jaxcluster version" in answer["body"]["message"]


# --------------------------------------------------------------------------- printed text


def test_streams_and_displays_keep_their_order(control: ControlChannel, peer: Peer) -> None:
    def write(put: Callable[..., None], request: Request) -> None:
        for k in range(50):
            put(f"text {k}", "stdout" if k % 2 else "stderr")
            request.send("output", wire.RankOutput(0, 1, "display_data", {"k": k}))
            put(f"a {k}")
            put(f"b {k}", "stderr")

    printing(control, write)
    peer.send("print")
    contents = [e["body"]["content"] for e in peer.until_reply()[:-1]]
    seen = [piece.get("text", piece.get("k")) for piece in contents]
    assert "".join(map(str, seen)) == "".join(f"text {k}{k}a {k}b {k}" for k in range(50))


def test_the_thread_that_sends_never_waits_for_a_full_socket(
    control: ControlChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what C code prints, too: it would wait for itself."""
    monkeypatch.setattr("jaxcluster.rank.control.FULL_S", 3600.0)
    monkeypatch.setattr(control, "is_behind", lambda ident: True)

    def show(request: Request) -> None:
        control.stream(request, 0, 1, "stdout", "from C\n")

    handle(control, "show", "now", show)
    peer.send("show")
    assert [message["op"] for message in peer.until_reply()] == ["output", "reply"]


# --------------------------------------------------------------------------- what comes between


def test_no_request_is_missed_while_others_are_answered(
    control: ControlChannel, peer: Peer
) -> None:
    """To send on a zmq socket takes the news of a message from its descriptor."""

    def write(put: Callable[..., None], request: Request) -> None:
        for number in range(2000):
            control.post(request.ident, wire.encode("push", "", number))

    printing(control, write)
    handle(control, "next", "now", lambda request: "next")
    ids = [peer.send("print"), *(peer.send("next") for _ in range(500))]
    left = set(ids)
    while left:
        left.discard(peer.receive()[0]["id"])
