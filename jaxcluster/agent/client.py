"""The notebook's end of its agents: one thread that owns the sockets to all of them.

    agents = Agents(keys)
    host = Connection(agents, endpoint, key, "h1")     an agent, as its own line says where it is
    host.open()
    host.ask(Mkdir("code"))                            requests to the agent
    host.rank(3, on_message).send([envelope, buffer])  rank 3, for ``wire.link.Link``

A cut connection is made again by itself, and what was sent meanwhile arrives then: nobody who
waits for an answer needs to know. Whoever wants to know asks for ``host.state``. How long is too
long is for the owner of the hosts to decide.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import os
import queue
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from jaxcluster import wire
from jaxcluster.agent import transport
from jaxcluster.agent.messages import Session, new_name
from jaxcluster.agent.requests import Get
from jaxcluster.agent.transport import Keys
from jaxcluster.errors import LaunchError
from jaxcluster.wire import forks
from jaxcluster.wire.link import Channel
from jaxcluster.wire.requests import AGENT, EVENT, Reply, Request
from jaxcluster.wire.sockets import Buffer, has_come, receive

CLOSE_S = 2.0
LINGER_MS = 200  # for what a connection that ends still has to send
IO_THREADS = 2  # of zmq's, that encrypt and send; one connection is on one of them
MOST_SOCKETS = 1 << 14  # of zmq's; a host has three, and 1023 were the default
WAIT_LONGER = "Wait longer: %jaxcluster start --timeout 120"
AT_A_LOOK = 100  # messages of one host, before the others are looked at
TICK_S = 0.1  # between looks at what sessions have to do
LEFT = "this notebook has disconnected from it"

Heard = tuple[Reply, list[memoryview]] | None  # None: the host is lost
OnMessage = Callable[[Sequence[Any]], None]
K = TypeVar("K")
R = TypeVar("R")


class State(enum.Enum):
    """Of the connection to an agent."""

    CONNECTING = "connecting"  # never been there yet
    CONNECTED = "connected"
    CUT = "cut"  # it was there, and is made again
    REFUSED = "refused"  # the agent does not let this key in
    ENDED = "ended"  # permanently: the agent has ended, or another one has taken its place


class Agents:
    """Connections to any number of agents.

    Args:
      keys: the owner's; each agent has been started with the public one.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self._context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._woken = self._closed = False
        # In the order in which they came: all; those that may have something now; those whose
        # sessions have something to do later.
        self._hosts: dict[Connection | RankSocket, None] = {}
        self._touched: dict[Connection | RankSocket, None] = {}
        self._due: dict[Connection, None] = {}
        # Not zmq's poller: it looks at all sockets at each turn, and each host has two.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="jaxcluster-agents", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections and the thread. The agents hear of it at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    # ------------------------------------------------------------------ the thread

    def _do(self, job: Callable[[], None]) -> None:
        """Have the thread do something, in the order of the calls; nothing after ``close``."""
        with self._lock:
            if self._closed:
                return
            self._jobs.append(job)
            if not self._woken:
                self._woken = True
                os.eventfd_write(self._wake, 1)

    def _serve(self) -> None:
        ticked_at = 0.0
        while not self._closed:
            timeout_s = 0.0 if self._touched else TICK_S if self._due else None
            for key, _ in self._selector.select(timeout_s):
                if key.data is None:
                    os.eventfd_read(self._wake)
                else:
                    self._touched[key.data] = None
            self._woken = False
            while self._jobs:
                self._try(self._jobs.popleft())
            now = time.monotonic()
            if now - ticked_at >= TICK_S:
                ticked_at = now
                for due in list(self._due):
                    self._try(due._tick)
            # One look at each: who sends all the time keeps neither jobs nor other hosts waiting.
            touched, self._touched = self._touched, {}
            for host in touched:
                if host in self._hosts:
                    self._try(host._look)
        for host in list(self._hosts):
            self._try(host._leave)
        self._selector.close()
        # BYE is to go out; a connection that is cut is not waited for.
        self._context.destroy(linger=LINGER_MS)
        with self._lock:  # whoever closes it may be about to wake this thread
            os.close(self._wake)

    def _try(self, job: Callable[[], None]) -> None:
        """A callback of somebody's must not end the thread for all hosts."""
        try:
            job()
        except Exception:
            traceback.print_exc()


class Connection:
    """One agent, from the notebook. Thread-safe.

    Args:
      endpoint: where it listens, or the end of a tunnel to there.
      key: its public key.
      name: what messages call it.

    Attributes:
      state: of the connection.
      since: when it became that, by ``time.monotonic``.
      why: why it has ended or was refused.
      on_event: called on the thread with each event of the agent; at last with ``forks.Lost``.
    """

    def __init__(self, agents: Agents, endpoint: str, key: str, name: str) -> None:
        self.endpoint, self.key, self.name = endpoint, key, name
        self.state, self.since, self.why = State.CONNECTING, time.monotonic(), ""
        self.on_event: Callable[[forks.Event], None] | None = None
        self._agents = agents
        self._own = new_name()
        self._session = Session(self._own)
        self._waiting: deque[list[Any]] = deque()  # until the session has room
        self._ids = itertools.count(1)
        self._asked: dict[int, Asked[Any]] = {}
        self._ranks: dict[int, OnMessage] = {}

    # ------------------------------------------------------------------ for its owner

    def open(self) -> None:
        """Begin to connect; returns at once. ``on_event`` is set before."""
        self._agents._do(self._open)

    def ask(self, request: Request[R], timeout_s: float = 10.0, data: Buffer | None = None) -> R:
        """A request to the agent; returns its answer.

        Raises:
          LaunchError: it refuses, has ended, or does not answer within ``timeout_s``.
        """
        return self.begin(request, data).wait(timeout_s)[0]

    def begin(self, request: Request[R], data: Buffer | None = None) -> Asked[R]:
        """A request whose answer is waited for later, so that several are on their way at once."""
        id, asked = next(self._ids), Asked(self, request)
        self._asked[id] = asked
        if self.state is State.ENDED:
            asked.answer.put(None)
        self._send([AGENT, request.told(id), *([] if data is None else [data])])
        return asked

    def get(self, path: str, timeout_s: float = 30.0) -> bytes:
        """A whole file of the agent's folder. ``timeout_s`` is for each 4 MiB of it.

        Raises:
          LaunchError: as ``ask``.
        """
        return b"".join(data for _, data in self.chunks(path, timeout_s))

    def chunks(self, path: str, timeout_s: float = 30.0) -> Iterator[tuple[int, memoryview]]:
        """(where it begins, data) of each 4 MiB of a file of the agent's folder.

        Raises:
          LaunchError: as ``ask``.
        """
        at = 0
        while True:
            size, data = self.begin(Get(path, at)).wait(timeout_s)
            yield at, data
            at += len(data)
            if at >= size or not data:
                return

    def rank(self, rank: int, on_message: OnMessage, address: str = "") -> Channel:
        """A way to a rank there; another one for the same rank takes its place.

        Args:
          on_message: gets the frames of what it sends, on the thread.
          address: the rank's own socket, where that is reached without the agent.
        """
        if address:
            return RankSocket(self._agents, address, on_message)
        self._ranks[rank] = on_message
        return RankChannel(self, rank, on_message)

    def close(self, why: str = LEFT) -> None:
        """Close the connection; the agent may live on. Open requests fail with ``why``."""
        self._agents._do(partial(self._leave, why))

    @property
    def cut_s(self) -> float:
        """For how many seconds there has been no connection; 0 while there is one."""
        return 0.0 if self.state is State.CONNECTED else time.monotonic() - self.since

    @property
    def condition(self) -> str:
        """What its silence may come from, as the end of a sentence; "" if that is not known."""
        told = {
            State.CONNECTED: "",
            State.CUT: f": there has been no connection to it for {self.cut_s:.0f} s",
            State.CONNECTING: f": no connection could be made to {self.endpoint}",
        }
        return told.get(self.state, f": {self.why}")

    # ------------------------------------------------------------------ on the thread

    def _open(self) -> None:
        agents = self._agents
        self._socket = transport.open_dealer(agents._context, self._own, self.key, agents.keys)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        for source in (self._socket, self._monitor):
            agents._selector.register(source.fileno(), selectors.EVENT_READ, self)
        agents._hosts[self] = None
        self._socket.connect(self.endpoint)
        agents._touched[self] = None

    def _leave(self, why: str = LEFT) -> None:
        agents = self._agents
        if self not in agents._hosts:
            return
        del agents._hosts[self]
        agents._due.pop(self, None)
        self._session.bye()
        self._transmit()
        self._end(why)
        for source in (self._socket, self._monitor):
            agents._selector.unregister(source.fileno())
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(LINGER_MS)

    def _become(self, state: State, why: str = "") -> None:
        if self.state in (state, State.ENDED):
            return
        self.state, self.since, self.why = state, time.monotonic(), why

    def _end(self, why: str) -> None:
        """It is permanently lost: all that waits for it hears so."""
        if self.state is State.ENDED:
            return
        self._waiting.clear()
        self._become(State.ENDED, why)
        for asked in list(self._asked.values()):  # it has no answer any more
            asked.answer.put(None)
        if self.on_event is not None:
            self.on_event(forks.Lost())

    def _look(self) -> None:
        """Take in what has come, and be looked at again if there was anything.

        A descriptor tells of a message once. What is done with its socket may take that in and not
        say so, and what is left here when something fails is not told again: only a socket that has
        been asked and has nothing (ZMQ_FD in zmq_getsockopt(3)) tells of the next one.
        """
        agents = self._agents
        while has_come(self._monitor):
            agents._touched[self] = None
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._session.opened(time.monotonic())
                self._transmit()
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._become(State.REFUSED, "it does not accept this notebook's key")
            elif self.state is State.CONNECTED:
                self._session.closed()
                self._become(State.CUT)
        if has_come(self._socket):
            agents._touched[self] = None
            self._receive()
        if self._session.due is not None:
            agents._due[self] = None
        else:
            agents._due.pop(self, None)

    def _tick(self) -> None:
        self._session.tick(time.monotonic())
        self._transmit()

    def _send(self, frames: list[Any]) -> None:
        """Any thread."""

        def take_on() -> None:
            self._waiting.append(frames)
            self._transmit()

        self._agents._do(take_on)

    def _transmit(self) -> None:
        session = self._session
        self._agents._touched[self] = None
        while True:
            while self._waiting and not session.is_full:
                session.send(self._waiting.popleft())
            if not (packets := session.take()):
                return
            for packet in packets:
                if not transport.send(self._socket, packet):
                    break  # the monitor will say that it is gone; all is kept

    def _receive(self) -> None:
        session = self._session
        now = time.monotonic()
        for _ in range(AT_A_LOOK):
            try:
                head, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            message = session.feed(head.buffer, frames, now)
            if session.is_open:
                self._become(State.CONNECTED)
            if message:
                to, *rest = message
                self._agents._try(lambda to=to, rest=rest: self._deliver(to.bytes, rest))  # type: ignore[misc]
            if session.is_replaced:
                self._end("another agent has taken its place")
            self._transmit()

    def _deliver(self, to: bytes, frames: list[Any]) -> None:
        if to == EVENT:
            if self.on_event is not None:
                self.on_event(forks.event_in(frames[0].bytes))
        elif to == AGENT:
            reply = wire.parse(Reply, json.loads(frames[0].bytes))
            if reply.ending:
                self._end(f"its agent has ended because {reply.ending}")
            elif (asked := self._asked.pop(reply.id, None)) is not None:
                asked.answer.put((reply, [frame.buffer for frame in frames[1:]]))
        elif (on_message := self._ranks.get(int(to))) is not None:
            on_message(frames)


class Ended(LaunchError):
    """There is nobody any more who could answer."""


class Asked(Generic[R]):
    """A request to an agent, once it is sent."""

    def __init__(self, host: Connection, request: Request[R]) -> None:
        self.host, self.request = host, request
        self.answer: wire.Inbox[Heard] = wire.Inbox()

    def wait(self, timeout_s: float) -> tuple[R, memoryview]:
        """Its answer and the data in it. To be called once.

        Raises:
          Ended: the host has.
          LaunchError: it refuses, or does not answer within ``timeout_s``.
        """
        host, cmd = self.host, self.request.cmd
        try:
            heard = self.answer.get(timeout=timeout_s)
        except queue.Empty:
            raise LaunchError(
                f"Host {host.name} did not answer {cmd!r} within {timeout_s:.3g} s"
                f"{host.condition}.",
                WAIT_LONGER if isinstance(self.request, forks.Spawn) else "",
            ) from None
        if heard is None:
            raise Ended(f"Host {host.name} is lost: {host.why}.")
        reply, buffers = heard
        if reply.error:
            raise LaunchError(f"Host {host.name} can't {cmd}: {reply.error}.")
        return self.request.read(reply.answer), buffers[0] if buffers else memoryview(b"")


def wait_all(asked: Iterable[Asked[Any]], timeout_s: float, *passed_over: type[Exception]) -> None:
    """Wait until all have answered that were asked at once.

    Args:
      passed_over: what is not raised: ``LaunchError`` where a host may refuse, or be lost.

    Raises:
      LaunchError: of the first that does not answer within ``timeout_s``, or refuses.
    """
    deadline = time.monotonic() + timeout_s
    for one in asked:
        with contextlib.suppress(*passed_over):
            one.wait(max(0.0, deadline - time.monotonic()))


def answers(asked: Iterable[tuple[K, Asked[R]]], timeout_s: float) -> dict[K, tuple[R, memoryview]]:
    """What agents answer that were asked at once, of those that do so within ``timeout_s``.

    It is for all: they may be cut off together.
    """
    deadline = time.monotonic() + timeout_s
    found = {}
    for key, one in asked:
        with contextlib.suppress(LaunchError):
            found[key] = one.wait(max(0.0, deadline - time.monotonic()))
    return found


class RankChannel:
    """A way to one rank through its host's agent."""

    def __init__(self, host: Connection, rank: int, on_message: OnMessage) -> None:
        self.host = host
        self._to = b"%d" % rank
        self._rank, self._on_message = rank, on_message

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message: frames that must not change until the rank has answered."""
        self.host._send([self._to, *frames])

    def close(self) -> None:
        """What the rank still sends is dropped, unless somebody else listens by now."""
        if self.host._ranks.get(self._rank) is self._on_message:
            del self.host._ranks[self._rank]


class RankSocket:
    """The way to a rank of this machine: its own socket.

    Whoever asks sends by itself: to have the thread do it would cost each cell two changes of
    threads before any rank has it. The thread sends what has buffers: a message that the stop
    button has broken off between two parts would look like a whole one.

    Args:
      address: a rank that does not listen there yet is tried for ever.
    """

    def __init__(self, agents: Agents, address: str, on_message: OnMessage) -> None:
        self._agents, self._on_message, self._pid = agents, on_message, os.getpid()
        self._waiting: deque[Sequence[Any]] = deque()
        self._using = threading.Lock()  # whoever touches the socket
        self._socket = agents._context.socket(zmq.DEALER)
        for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 100)
        self._socket.connect(address)
        agents._do(self._open)

    def send(self, frames: Sequence[Any]) -> None:
        self._waiting.append(frames)
        is_done = False
        try:
            # A process that the user has forked has no such socket, and the same way to wake.
            if os.getpid() == self._pid:
                with self._using:
                    is_done = self._send_small()
        finally:  # also where the stop button was pressed meanwhile
            if not is_done:
                self._agents._do(self._look)

    def close(self) -> None:
        self._agents._do(self._leave)

    def _send_small(self) -> bool:
        """Send messages of one part; returns whether none is left and nothing came meanwhile."""
        if self._socket.closed:
            return True
        while self._waiting:
            frames = self._waiting[0]  # it stays there until it is sent
            if len(frames) > 1:
                return False
            self._socket.send(frames[0])
            self._waiting.popleft()
        return not has_come(self._socket)  # what is done to a socket takes the news from its file

    # ------------------------------------------------------------------ on the thread

    def _open(self) -> None:
        self._agents._selector.register(self._socket.fileno(), selectors.EVENT_READ, self)
        self._agents._hosts[self] = self._agents._touched[self] = None

    def _leave(self) -> None:
        if self in self._agents._hosts:
            del self._agents._hosts[self]
            with self._using:
                self._agents._selector.unregister(self._socket.fileno())
                self._socket.close(0)

    def _look(self) -> None:
        """Send what others have left, and take in what has come."""
        for _ in range(AT_A_LOOK):
            with self._using:
                if self._socket.closed:
                    return
                while self._waiting:
                    frames = self._waiting.popleft()
                    self._socket.send_multipart(frames, copy=len(frames) == 1)
                if not has_come(self._socket):
                    return
                found = receive(self._socket)
            self._agents._try(partial(self._on_message, found))
        self._agents._touched[self] = None
