"""A rank's socket and its thread, which answers even while the main thread is busy.

JAX releases the GIL while it waits in a collective. So this thread can report the main thread's
place, interrupt it, and send its output, even if it never returns.

A ``now`` handler answers on this thread, in microseconds. A ``side`` handler has a helper thread:
it may block, and must not need the main thread. A ``later`` handler has the request answered later.
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
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import zmq

from jaxcluster import wire
from jaxcluster.rank import log
from jaxcluster.rank.tracebacks import message_of
from jaxcluster.supervision import ends
from jaxcluster.wire import sockets
from jaxcluster.wire.ops import OPERATIONS, Operation

Q = TypeVar("Q", bound=Operation[Any])
Handler = Callable[["Request[Any]"], Any]
Buffer = bytes | memoryview

STREAM_PERIOD_S = 0.02  # printed text is gathered for this long: one message instead of hundreds
TICK_S = 0.05  # between looks at what C code has printed
STREAM_MAX_CHARS = 1 << 20  # text that is gathered at most
SEND_HWM = 32  # messages in zmq's own queue to a notebook; then they wait here
RETRY_S = 0.005  # between tries to send messages that found no room
FULL_PIECES = 1000  # that wait: they are sent, and print() waits for that, but not longer than
FULL_S = 5.0
CLOSE_MS = 1000  # that the notebook has to take the last messages


@dataclass(frozen=True)
class Text:
    """A piece of printed text. Pieces ``of`` one stream share a message."""

    of: tuple[str, int, int, str]  # the request's id, rank, seq, and the stream's name
    text: str
    at: float


Message = tuple[bytes, Sequence[Buffer]]


@dataclass
class Request(Generic[Q]):
    """One message from a notebook, and the way back to it."""

    control: ControlChannel
    ident: bytes
    id: str
    op: str
    body: Q
    buffers: Sequence[Buffer]
    is_answered: bool = False

    def answer(self, handler: Handler) -> Any:
        """Reply with what ``handler`` returns or raises; returns it, or None."""
        try:
            result = handler(self)
        except BaseException as error:  # code of the user's may exit
            if not hasattr(error, "hint"):  # nobody expected it
                log.error(error)
            self.fail(error)
            return None
        self.reply(*(result if isinstance(result, tuple) else (result,)))
        return result

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
        if not self.is_answered:
            self.is_answered = True
            self.control.post(self.ident, message, buffers)


class ControlChannel:
    """Serves one ROUTER socket on a thread, which alone sends and receives.

    Attributes:
      on_tick: called on the thread now and then while ``ticking`` is set.
      call_main: hands a function to the main thread, which sets it once it has a loop.
    """

    call_main: Callable[[Callable[[], None]], None]

    def __init__(self, address: str) -> None:
        self.address = address
        self.handlers: dict[str, tuple[str, Handler]] = {}
        self.on_tick: Callable[[], None] = lambda: None
        self.ticking = False
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="jaxcluster-side")
        self._thread = threading.Thread(target=self._serve, name="jaxcluster-control", daemon=True)
        self._closing = False
        # By notebook. Without a lock, as a finalizer or a signal's handler may print at any time.
        self._waiting: dict[bytes, deque[Message | Text]] = {}
        self._full: set[bytes] = set()  # notebooks that take less than they are sent
        self._tick_at, self._send_at = 0.0, math.inf
        self._bell = os.eventfd(0)
        self._watched: dict[int, Callable[[], object]] = {
            self._bell: lambda: os.eventfd_read(self._bell)
        }
        self._poller = select.poll()  # not zmq's, which touches the socket whenever it likes

    def handle(self, kind: type[Q], where: str, handler: Callable[[Request[Q]], Any]) -> None:
        """Have a handler for an operation.

        Args:
          where: ``now``, ``side`` or ``later``. The first two reply with what the handler returns:
            the reply, or a tuple of the reply and buffers.
        """
        self.handlers[kind.op] = (where, handler)

    def inbox(self, kind: type[Q]) -> wire.Inbox[Request[Q]]:
        """The queue of requests of this kind, which the main thread answers."""
        found: wire.Inbox[Request[Q]] = wire.Inbox()
        self.handle(kind, "later", found.put)
        return found

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
        """Listen, and serve who comes on the thread, which alone has the socket from then on."""
        # Another context: the main thread's may be stuck or torn down.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        # A queue without a bound would take all that a rank prints faster than it can be sent.
        socket.setsockopt(zmq.SNDHWM, SEND_HWM)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a full queue loses messages
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.bind(self.address)
        for descriptor in (socket.fileno(), self._bell):
            self._poller.register(descriptor, select.POLLIN)
        self._thread.start()

    def close(self) -> None:
        """End the thread, once all is sent: a script has no threads of ours."""
        self._closing = True
        self._wake()
        self._thread.join()
        self._pool.shutdown()
        os.close(self._bell)

    # ------------------------------------------------------------------ sending

    def post(self, ident: bytes, envelope: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message, after what waits already. Any thread."""
        try:
            self._waiting.setdefault(ident, deque()).append((envelope, buffers))
        finally:
            self._wake()

    def stream(self, request: Request[Any], rank: int, seq: int, name: str, text: str) -> None:
        """Send printed text; what follows within 20 ms shares its message. Any thread."""
        waiting = self._waiting.setdefault(request.ident, deque())
        waiting.append(Text((request.id, rank, seq, name), text, time.monotonic()))
        # Else the thread is awake already, and looks again within 20 ms.
        if not 1 < len(waiting) < FULL_PIECES:
            self._wake()
        if threading.get_ident() != self._thread.ident:
            for _ in ends.wait(FULL_S, lambda: self.is_behind(request.ident)):
                time.sleep(0.001)

    def is_behind(self, ident: bytes) -> bool:
        """Whether a notebook takes less than it is sent, or the thread has not got to it."""
        return ident in self._full or len(self._waiting.get(ident, ())) >= FULL_PIECES

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while any(list(self._waiting.values())) or not self._closing:
            try:
                self._turn()
            except Exception as error:  # a rank whose thread had ended would not be heard of again
                log.error(error)
                self._wake()  # the message that can't be sent is dropped: for what comes after it
        self._socket.close(CLOSE_MS)
        self._context.term()

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        due = min(self._send_at, self._tick_at if self.ticking else math.inf)
        wait_ms = math.ceil(1000 * max(0.0, due - time.monotonic())) if due < math.inf else None
        events = dict(self._poller.poll(wait_ms))
        for descriptor in self._watched.keys() & events.keys():
            self._watched[descriptor]()
        self._receive()
        now = time.monotonic()
        if self.ticking and now >= self._tick_at:
            self._tick_at = now + TICK_S
            self.on_tick()
        self._send_at = math.inf
        for ident, waiting in list(self._waiting.items()):
            self._send_out(ident, waiting, now)
        self._receive()  # to send has taken the news of it from the descriptor

    def _send_out(self, ident: bytes, waiting: deque[Message | Text], now: float) -> None:
        """Send what there is; what a notebook has no room for waits, and nobody else with it."""
        while waiting:
            first = waiting[0]
            if isinstance(first, Text):
                due = first.at + STREAM_PERIOD_S
                is_text = isinstance(waiting[-1], Text)  # to which more may come
                if is_text and now < due and len(waiting) < FULL_PIECES:
                    self._send_at = min(self._send_at, due)
                    return
            message = _next(waiting)  # one that can't be sent is tried once
            try:
                is_sent = sockets.send(self._socket, [ident, message[0], *message[1]])
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                is_sent = True  # there is nobody to send it to
            if not is_sent:
                waiting.appendleft(message)
                self._full.add(ident)
                self._send_at = min(self._send_at, now + RETRY_S)
                return
        self._full.discard(ident)

    def _receive(self) -> None:
        while sockets.has_come(self._socket):
            ident, data, *buffers = (frame.buffer for frame in sockets.receive(self._socket))
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
                    request.body = wire.parse(kind, request.body or {}, f"request {request.op!r}")
                where, handler = self.handlers.get(request.op, ("now", _refuse))
                if where == "side":
                    self._pool.submit(request.answer, handler)
                elif where == "later":
                    handler(request)
                else:
                    request.answer(handler)
            except Exception as error:
                request.fail(error)


def _refuse(request: Request[Any]) -> None:
    raise ValueError(f"this rank can't answer a {request.op!r} request yet")


def _next(waiting: deque[Message | Text]) -> Message:
    """The next message to send, or the joined text of one stream."""
    first = waiting.popleft()
    if not isinstance(first, Text):
        return first
    parts, size = [first.text], len(first.text)
    while waiting and size <= STREAM_MAX_CHARS:
        following = waiting[0]
        if not isinstance(following, Text) or following.of != first.of:
            break
        waiting.popleft()
        parts.append(following.text)
        size += len(following.text)
    id, rank, seq, name = first.of
    output = wire.RankOutput(rank, seq, "stream", {"name": name, "text": "".join(parts)})
    return wire.encode("output", id, output), ()
