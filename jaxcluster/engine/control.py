"""A rank's own socket and the thread behind it, which answers whatever the main thread is doing.

JAX releases the GIL while it waits in a collective, so this thread can report where the main
thread sits, interrupt it, and send what it prints, also when the main thread never comes back.

Requests come in three kinds, by where they are handled:

- ``now``: on this thread; must take microseconds.
- ``side``: on a few helper threads; may block, must not need the main thread.
- ``main``: on the main thread, in order of arrival.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import zmq

from jaxcluster import wire
from jaxcluster.engine import log
from jaxcluster.engine.tracebacks import message_of
from jaxcluster.host import procfs
from jaxcluster.wire import sockets
from jaxcluster.wire.ops import OPERATIONS, Operation

Q = TypeVar("Q", bound=Operation[Any])
Handler = Callable[["Request[Any]"], Any]
Buffer = bytes | memoryview

STREAM_PERIOD_S = 0.02  # printed text is gathered for this long: one message instead of hundreds
TICK_S = 0.05  # between looks at what C code has printed
STREAM_MAX_CHARS = 1 << 20  # text that is gathered at most
SEND_HWM = 32  # messages in zmq's own queue to a notebook; then they wait here
RETRY_S = 0.005  # how soon it is tried again to send what found no room
FULL_MESSAGES = 8  # that wait for the socket: print() waits for it, but not longer than
FULL_S = 5.0
CLOSE_MS = 1000  # that the notebook has to take the last messages


@dataclass
class Request(Generic[Q]):
    """One message from a notebook, and the way back to it."""

    control: ControlChannel
    ident: bytes
    id: str
    op: str
    body: Q
    buffers: Sequence[Buffer]
    _unanswered: list[None] = field(default_factory=lambda: [None], repr=False)

    def reply(self, body: Any = None, buffers: Sequence[Buffer] = ()) -> None:
        """Answer it, unless it has been: the first answer is the one that there is."""
        self._answer("reply", body, buffers)

    def send(self, op: str, body: Any) -> None:
        """Send something that comes before the reply."""
        self.control.post(self.ident, wire.encode(op, self.id, body))

    def fail(self, error: BaseException) -> None:
        """Answer with an exception: of ours, with its message and hint, or anybody's."""
        message, hint = getattr(error, "message", ""), getattr(error, "hint", "")
        failure = wire.Failure(
            wire.type_name(type(error)),
            message if isinstance(message, str) and message else message_of(error),
            hint if isinstance(hint, str) else "",
        )
        self._answer("error", failure, ())

    def _answer(self, op: str, body: Any, buffers: Sequence[Buffer]) -> None:
        message = wire.encode(op, self.id, body)
        try:
            self._unanswered.pop()
        except IndexError:
            return
        self.control.post(self.ident, message, buffers)


class ControlChannel:
    """Serves one ROUTER socket on a thread of its own, which alone sends and receives.

    Attributes:
      on_tick: called on the thread now and then while ``ticking`` is set.
      call_main: hands a function to the main thread; the main thread sets it once it has a loop.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.handlers: dict[str, tuple[str, Handler]] = {}
        self.on_tick: Callable[[], None] = lambda: None
        self.ticking = False
        self._jobs: wire.Inbox[Callable[[], None]] = wire.Inbox()
        self.call_main: Callable[[Callable[[], None]], None] = self._jobs.put
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="jaxcluster-side")
        self._thread = threading.Thread(target=self._serve, name="jaxcluster-control", daemon=True)
        self._closing = False
        self._thread_id = 0
        self._waiting: dict[bytes, deque[tuple[bytes | _Stream, Sequence[Buffer]]]] = {}
        self._tick_at = 0.0
        self._send_s = RETRY_S  # until there is something to send, while something waits
        # A finalizer or a signal's handler may print while this thread holds it.
        self._lock = threading.RLock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._woken = False
        self._bound = threading.Event()
        self._watched: dict[int, Callable[[], None]] = {}
        self._poller = select.poll()

    def handle(self, kind: type[Q], where: str, handler: Callable[[Request[Q]], Any]) -> None:
        """Answer an operation with what ``handler`` returns.

        That is its reply, a tuple of its reply and buffers, or ``DEFERRED``.
        """
        self.handlers[kind.op] = (where, handler)

    def watch(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Have the thread call something, which takes microseconds, when this can be read."""
        self._watched[descriptor] = on_readable
        self._poller.register(descriptor, select.POLLIN)
        self._wake()

    def unwatch(self, descriptor: int) -> None:
        """No longer: on the thread."""
        self._poller.unregister(descriptor)
        del self._watched[descriptor]

    def start(self) -> None:
        self._thread.start()
        self._bound.wait(10)

    def close(self) -> None:
        """End the thread, once all is sent: a script has no threads of ours."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._pool.shutdown()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def run_jobs(self) -> None:
        """On the main thread, before it has an event loop: do ``main`` jobs until one says stop."""
        while True:
            try:
                self._jobs.get()()
            except StopJobs:
                return

    # ------------------------------------------------------------------ sending

    def post(self, ident: bytes, envelope: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message, after what waits already. Any thread."""
        with self._lock:
            self._waiting.setdefault(ident, deque()).append((envelope, buffers))
        self._wake()

    def stream(self, request: Request[Any], rank: int, seq: int, name: str, text: str) -> None:
        """Queue printed text; what follows within 20 ms shares its message. Any thread."""
        self.add_text(request, rank, seq, name, text)
        if self.is_behind(request.ident) and threading.get_ident() != self._thread_id:
            # Not with the lock: an interrupt may break off the wait, and nothing else.
            deadline = time.monotonic() + FULL_S
            while self.is_behind(request.ident) and time.monotonic() < deadline:
                time.sleep(0.001)

    def is_behind(self, ident: bytes) -> bool:
        """Whether a notebook takes less than it is sent, or the thread has not got to it."""
        return len(self._waiting.get(ident, ())) >= FULL_MESSAGES

    def add_text(self, request: Request[Any], rank: int, seq: int, name: str, text: str) -> None:
        with self._lock:
            waiting = self._waiting.setdefault(request.ident, deque())
            last = waiting[-1][0] if waiting else b""
            if isinstance(last, _Stream) and last.matches(request, seq, name):
                last.parts.append(text)
                last.size += len(text)
                return  # the thread is awake already and looks again within 20 ms
            made = _Stream(request, rank, seq, name, [text], len(text), time.monotonic())
            waiting.append((made, ()))
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                os.write(self._wake_write, b"x")
            except BlockingIOError:
                pass
            except BaseException:  # a signal's handler has raised
                self._woken = False
                raise

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._thread_id = threading.get_ident()
        # A context of its own: the main thread's may be stuck or torn down.
        context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        procfs.name_this_thread(procfs.CONTROL_COMM)
        # A queue without a bound would take all that a rank prints faster than it can be sent.
        socket.setsockopt(zmq.SNDHWM, SEND_HWM)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a full queue loses what is sent to it
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(self.address)
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        self.address = endpoint.decode() if isinstance(endpoint, bytes) else self.address
        # Not zmq's own poller, which touches the socket whenever it likes.
        poller = self._poller
        poller.register(socket.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        self._bound.set()
        while self._waiting or not self._closing:
            try:
                self._turn(socket, poller)
            except Exception as error:  # a rank whose thread had ended would not be heard of again
                log.error(error)
                self._wake()  # the message that can't be sent is dropped: for what comes after it
        socket.close(CLOSE_MS)
        context.term()

    def _turn(self, socket: zmq.Socket[bytes], poller: select.poll) -> None:
        """Wait for something to do, and do it."""
        wait_s = self._send_s if self._waiting else None
        if self.ticking:
            tick_s = max(0.0, self._tick_at - time.monotonic())
            wait_s = tick_s if wait_s is None else min(tick_s, wait_s)
        events = dict(poller.poll(None if wait_s is None else math.ceil(wait_s * 1000)))
        if self._wake_read in events:
            os.read(self._wake_read, 4096)
        for descriptor in self._watched.keys() & events.keys():
            self._watched[descriptor]()
        self._woken = False
        self._receive(socket)
        now = time.monotonic()
        if self.ticking and now >= self._tick_at:
            self._tick_at = now + TICK_S
            self.on_tick()
        if self._waiting:
            self._send_out(socket, now)
            if sockets.has_come(socket):  # to send has taken the news of it from the descriptor
                self._wake()

    def _send_out(self, socket: zmq.Socket[bytes], now: float) -> None:
        """Send what there is; what a notebook has no room for waits, and nobody else with it."""
        self._send_s = STREAM_PERIOD_S
        for ident, waiting in list(self._waiting.items()):
            while waiting:
                with self._lock:
                    made, buffers = message = waiting[0]
                    is_text = isinstance(made, _Stream) and len(waiting) == 1
                    if is_text and now - made.since < STREAM_PERIOD_S:  # type: ignore[union-attr]
                        break
                    waiting.popleft()  # one that can't be sent is tried once
                envelope = made.envelope() if isinstance(made, _Stream) else made
                if not self._is_sent(socket, ident, envelope, buffers):
                    waiting.appendleft(message)
                    self._send_s = RETRY_S
                    break
            with self._lock:
                if not waiting:
                    del self._waiting[ident]

    def _is_sent(
        self, socket: zmq.Socket[bytes], ident: bytes, envelope: bytes, buffers: Sequence[Buffer]
    ) -> bool:
        """Whether a message needs no more care: it is sent, or there is nobody to send it to."""
        # Big buffers are sent from where they lie; small ones are cheaper to copy.
        large = any(len(memoryview(b).cast("B")) > 1 << 16 for b in buffers)
        try:
            sockets.send(socket, [ident, envelope, *buffers], copy=not large)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        return True

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        while sockets.has_come(socket):
            ident, data, *buffers = (frame.buffer for frame in sockets.receive(socket))
            peer = bytes(ident)
            try:
                told = wire.decode(data)
            except ValueError as error:
                failure = wire.Failure("ValueError", str(error))
                self.post(peer, wire.encode("error", "", failure))
                continue
            request = Request[Any](self, peer, told["id"], told["op"], told.get("body"), buffers)
            try:
                if (kind := OPERATIONS.get(request.op)) is not None:
                    request.body = wire.read(kind, request.body or {}, f"request {request.op!r}")
                self._dispatch(request)
            except wire.WrongFields as error:
                request.fail(error)

    def _dispatch(self, request: Request[Any]) -> None:
        where, handler = self.handlers.get(request.op, ("", None))
        if handler is None:
            request.fail(ValueError(f"this rank can't answer a {request.op!r} request yet"))
        elif where == "now":
            self.answer(handler, request)
        elif where == "side":
            self._pool.submit(self.answer, handler, request)
        else:
            self.call_main(lambda: self.answer(handler, request))

    @staticmethod
    def answer(handler: Handler, request: Request[Any]) -> None:
        """Reply with what ``handler`` returns or raises."""
        try:
            result = handler(request)
        except StopJobs:
            raise
        except BaseException as error:  # code of the user's may exit
            if not hasattr(error, "hint"):  # nobody expected it
                log.error(error)
            request.fail(error)
            return
        if result is DEFERRED:
            return
        if isinstance(result, tuple):
            request.reply(*result)
        else:
            request.reply(result)


@dataclass
class _Stream:
    request: Request[Any]
    rank: int
    seq: int
    name: str
    parts: list[str]
    size: int
    since: float
    made: bytes = b""

    def matches(self, request: Request[Any], seq: int, name: str) -> bool:
        """Whether it takes more text of this stream."""
        is_same = self.request is request and self.seq == seq and self.name == name
        return is_same and not self.made and self.size <= STREAM_MAX_CHARS

    def envelope(self) -> bytes:
        """Made once: it may have to be sent often."""
        if not self.made:
            content = {"name": self.name, "text": "".join(self.parts)}
            output = wire.RankOutput(self.rank, self.seq, "stream", content)
            self.made = wire.encode("output", self.request.id, output)
            self.parts.clear()
        return self.made


class StopJobs(Exception):
    """A ``main`` handler raises it to end ``run_jobs``; it replies later, by itself."""


DEFERRED = object()  # a handler returns it when it will reply later, by itself
