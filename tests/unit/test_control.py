"""A rank's own socket: who answers where, and how printed text is sent."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq
from helpers import until

from jaxcluster import wire
from jaxcluster.engine.control import (
    DEFERRED,
    TICK_S,
    ControlChannel,
    Request,
    StopJobs,
)
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

    def until_reply_to(self, id: str) -> dict[str, Any]:
        """The reply to this, past all else that comes; what is no message is dropped."""
        while True:
            assert self.socket.poll(ANSWER_S * 1000), "no answer"
            with contextlib.suppress(ValueError):
                envelope = wire.decode(self.socket.recv_multipart()[0])
                if envelope["id"] == id:
                    return envelope

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
def control() -> ControlChannel:
    """It lives on a thread as long as the process, as in a rank."""
    made = ControlChannel("tcp://127.0.0.1:*")
    made.start()
    return made


@pytest.fixture
def peer(control: ControlChannel) -> Iterator[Peer]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.rcvhwm = 0
        socket.connect(control.address)
        yield Peer(socket)


def texts(envelopes: list[dict[str, Any]], name: str | None = None) -> str:
    return "".join(
        e["body"]["content"]["text"]
        for e in envelopes
        if e["op"] == "output"
        and e["body"]["kind"] == "stream"
        and name in (None, e["body"]["content"]["name"])
    )


def printing(
    control: ControlChannel, write: Callable[[Callable[..., None], Request], None]
) -> None:
    """Handle ``print`` as a cell would: on another thread, with a reply at its end."""

    def handler(request: Request) -> Any:
        def put(text: str, name: str = "stdout") -> None:
            control.stream(request, 0, 1, name, text)

        def run() -> None:
            write(put, request)
            request.reply("done")

        threading.Thread(target=run, daemon=True).start()
        return DEFERRED

    handle(control, "print", "now", handler)


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
    done = []

    def stop(request: Request) -> Any:
        raise StopJobs

    handle(control, "work", "main", lambda request: done.append(request.body))
    handle(control, "stop", "main", stop)
    handle(control, "here?", "now", lambda request: list(done))
    for k in range(5):
        peer.send("work", k)
    peer.send("stop")
    assert peer.ask("here?")["body"] == []  # the main thread is busy: the control channel answers
    control.run_jobs()
    assert done == [0, 1, 2, 3, 4]


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


def test_a_request_is_answered_once(control: ControlChannel, peer: Peer) -> None:
    def answer(request: Request) -> None:
        request.reply("first")
        request.reply("second")
        request.fail(ValueError("third"))

    handle(control, "twice", "now", answer)  # and a fourth: what the handler returns
    assert peer.ask("twice")["body"] == "first"
    handle(control, "next", "now", lambda request: "next")
    assert peer.ask("next")["body"] == "next"


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


def test_its_thread_outlives_errors_of_ours(control: ControlChannel, peer: Peer) -> None:
    class Broken:
        def __iter__(self) -> None:
            raise RuntimeError("of ours")

    def answer(request: Request) -> str:
        control.post(b"nobody", b"x", Broken())  # type: ignore[arg-type]
        control.post(request.ident, wire.encode("push", "", None), Broken())  # type: ignore[arg-type]
        return "next"

    handle(control, "next", "now", answer)
    assert peer.ask("next")["body"] == "next"


# --------------------------------------------------------------------------- printed text

LINES = 100_000


def test_100_000_lines_arrive_in_order_and_share_messages(
    control: ControlChannel, peer: Peer
) -> None:
    expected = "".join(f"line {k} é\n" for k in range(LINES))

    def write(put: Callable[..., None], request: Request) -> None:
        for k in range(LINES):  # print() writes a line in two pieces
            put(f"line {k} é")
            put("\n")

    printing(control, write)
    peer.send("print")
    envelopes = peer.until_reply()
    assert texts(envelopes) == expected
    assert envelopes[-1]["body"] == "done"
    assert len(envelopes) < LINES / 10  # what is printed within 20 ms shares a message


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


def test_whoever_prints_faster_than_the_socket_waits_for_it(
    control: ControlChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a loop which only prints does not fill the rank's memory."""
    monkeypatch.setattr("jaxcluster.engine.control.FULL_PIECES", 10)
    waiting = []

    def write(put: Callable[..., None], request: Request) -> None:
        for _ in range(300):
            put("x" * 1001)
            waiting.append(len(control._waiting.get(request.ident, ())))

    printing(control, write)
    peer.send("print")
    assert len(texts(peer.until_reply())) == 300 * 1001
    assert max(waiting) <= 10


def test_the_tick_comes_while_a_cell_runs_and_not_after(
    control: ControlChannel, peer: Peer
) -> None:
    ticks = threading.Semaphore(0)
    control.on_tick = ticks.release
    handle(control, "tick", "now", lambda request: setattr(control, "ticking", request.body))
    peer.ask("tick", True)
    assert all(ticks.acquire(timeout=ANSWER_S) for _ in range(3))
    peer.ask("tick", False)
    while ticks.acquire(blocking=False):
        pass
    assert not ticks.acquire(timeout=3 * TICK_S)


def test_the_thread_that_sends_never_waits_for_a_full_socket(
    control: ControlChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what C code prints, too: it would wait for itself."""
    monkeypatch.setattr("jaxcluster.engine.control.FULL_S", 3600.0)
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


class Alarm(BaseException):
    """What a handler of the user's for SIGALRM raises, wherever the signal finds the program."""


def test_alarms_that_raise_anywhere_cost_no_message_but_the_callers(
    control: ControlChannel, peer: Peer
) -> None:
    asked: list[Request] = []
    handle(control, "ask", "now", lambda request: asked.append(request) or DEFERRED)
    handle(control, "hello", "now", lambda request: "hello")
    peer.send("ask")
    until(lambda: asked, "a request")
    request, posted, printed = asked[0], [], []
    envelopes = [wire.encode("push", "", number) for number in range(3000)]
    armed, raised = [False], []

    def on_alarm(*args: Any) -> None:
        if armed[0]:
            armed[0] = False
            raised.append(True)
            raise Alarm

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for number, envelope in enumerate(envelopes):
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 50))
            with contextlib.suppress(Alarm):
                armed[0] = True
                control.stream(request, 0, 1, "stdout", f"<{number}>")
                printed.append(number)
                control.post(request.ident, envelope)
                posted.append(number)
                armed[0] = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised
    request.reply("done")
    pushes, text = [], ""
    while True:
        assert peer.socket.poll(ANSWER_S * 1000), "a message is lost"
        with contextlib.suppress(ValueError):  # what was broken off
            envelope = wire.decode(peer.socket.recv_multipart()[0])
            if envelope["op"] == "reply":
                break
            if envelope["op"] == "push":
                pushes.append(envelope["body"])
            else:
                text += texts([envelope])
    assert set(posted) <= set(pushes)
    assert list(dict.fromkeys(pushes)) == sorted(set(pushes))
    assert {f"<{number}>" for number in printed} <= set(re.findall(r"<\d+>", text))
    assert peer.until_reply_to(peer.send("hello"))["body"] == "hello"
