"""The notebook's end of its agents: one thread, with an asyncio loop, that has all sockets.

    agents = Agents(keys)
    host = Connection(agents, endpoint, key, "h1")     an agent, as its own line says where it is
    host.open()
    host.ask(Mkdir("code"))                            requests to the agent
    host.rank(3, on_message).send([envelope, buffer])  rank 3, for ``wire.link.Link``

A cut connection is made again, and messages sent meanwhile arrive then. Code that waits for an
answer need not know. Whoever wants to know asks for ``host.state``. How long is too long is for the
owner of the hosts to decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent import transport
from jaxcluster.hosts.agent.messages import Session, new_name
from jaxcluster.hosts.agent.requests import AGENT
from jaxcluster.hosts.agent.transport import Keys, Listener
from jaxcluster.wire import forks
from jaxcluster.wire.codec import Buffer
from jaxcluster.wire.link import Channel
from jaxcluster.wire.ops import EVENTS, Operation
from jaxcluster.wire.sockets import has_come

CLOSE_S = 2.0
LINGER_MS = 200  # for what a connection that ends still has to send
IO_THREADS = 2  # zmq's, which encrypt and send; a connection uses one of them
MOST_SOCKETS = 1 << 14  # of zmq's; a host has three, and 1023 were the default
WAIT_LONGER = "Wait longer: %jaxcluster start --timeout 120"
BEAT_S = 1.0  # between looks at a session
LEFT = "this notebook has disconnected from it"
NEWS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH

Heard = tuple[Mapping[str, Any], list[memoryview]] | None  # None: the host is lost
OnMessage = Callable[[Sequence[Any]], None]
K = TypeVar("K")
R = TypeVar("R")


class State(enum.Enum):
    """The state of the connection to an agent."""

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
        self._hosts: dict[Connection | RankSocket, None] = {}  # in the order in which they came
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="jaxcluster-agents", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections and the thread. The agents hear of it at once."""
        self._do(self._leave)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def _do(self, job: Callable[..., object], *args: Any) -> None:
        """Have the thread do something, in the order of the calls; nothing after ``close``."""
        with contextlib.suppress(RuntimeError):
            try:
                self._loop.call_soon_threadsafe(job, *args)
            except BaseException:  # the stop button: the job may wait for a thread that sleeps
                self._loop.call_soon_threadsafe(bool)
                raise

    def _leave(self) -> None:
        for host in list(self._hosts):
            self._loop.call_soon(host._leave)
        self._loop.call_soon(self._loop.stop)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()
        # BYE is to go out; a connection that is cut is not waited for.
        self._context.destroy(linger=LINGER_MS)


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
        self._session = Session(asks=True)
        self._waiting: deque[list[Any]] = deque()  # until the session has room
        self._ids = itertools.count(1)
        self._asked: dict[str, Asked[Any]] = {}
        self._ranks: dict[int, OnMessage] = {}

    # ------------------------------------------------------------------ for its owner

    def open(self) -> None:
        """Begin to connect; returns at once. ``on_event`` is set before."""
        self._agents._do(self._open)

    def ask(self, request: Operation[R], timeout_s: float = 10.0, data: Buffer | None = None) -> R:
        """A request to the agent; returns its answer.

        Raises:
          LaunchError: it refuses, has ended, or does not answer within ``timeout_s``.
        """
        return self.begin(request, data).wait(timeout_s)[0]

    def begin(self, request: Operation[R], data: Buffer | None = None) -> Asked[R]:
        """A request whose answer is waited for later, so that several are on their way at once."""
        id, asked = str(next(self._ids)), Asked(self, request)
        self._asked[id] = asked
        if self.state is State.ENDED:
            asked.answer.put(None)
        message = wire.encode(request.op, id, request)
        self._agents._do(self._send, [AGENT, message, *([] if data is None else [data])])
        return asked

    def rank(self, rank: int, on_message: OnMessage, address: str = "") -> Channel:
        """A way to a rank there; another one for the same rank takes its place.

        Args:
          on_message: gets the frames of what it sends, on the thread.
          address: the rank's own socket, where that is reached without the agent.
        """
        if address:
            return RankSocket(self._agents, address, on_message)
        self._ranks[rank] = on_message
        to = b"%d" % rank
        return RankChannel(
            lambda frames: self._agents._do(self._send, [to, *frames]),
            partial(self._leave_rank, rank, on_message),
        )

    def _leave_rank(self, rank: int, on_message: OnMessage) -> None:
        """Drop what the rank still sends, unless somebody else listens by now."""
        if self._ranks.get(rank) is on_message:
            del self._ranks[rank]

    def close(self, why: str = LEFT) -> None:
        """Close the connection; the agent may live on. Open requests fail with ``why``."""
        self._agents._do(self._leave, why)

    @property
    def cut_s(self) -> float:
        """For how many seconds there has been no connection; 0 while there is one."""
        return 0.0 if self.state is State.CONNECTED else time.monotonic() - self.since

    @property
    def condition(self) -> str:
        """The cause of its silence, as the end of a sentence; "" if it is not known."""
        told = {
            State.CONNECTED: "",
            State.CUT: f": there has been no connection to it for {self.cut_s:.0f} s",
            State.CONNECTING: f": no connection could be made to {self.endpoint}",
        }
        return told.get(self.state, f": {self.why}")

    # ------------------------------------------------------------------ on the thread

    def _open(self) -> None:
        agents = self._agents
        socket = transport.open_dealer(agents._context, self._own, self.key, agents.keys)
        self._news = Listener(socket.get_monitor_socket(NEWS), self._hear_of)
        self._listener = Listener(socket, self._receive)
        agents._hosts[self] = None
        socket.connect(self.endpoint)
        self._beat()

    def _leave(self, why: str = LEFT) -> None:
        if self not in self._agents._hosts:
            return
        del self._agents._hosts[self]
        self._session.bye()
        self._transmit()
        self._end(why)
        self._listener.socket.disable_monitor()
        self._news.close()
        self._listener.close(LINGER_MS)

    def _become(self, state: State, why: str = "") -> None:
        if self.state not in (state, State.ENDED):
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
            self.on_event(forks.Lost(why))

    def _beat(self) -> None:
        if self in self._agents._hosts:
            self._session.beat()
            self._transmit()
            self._agents._loop.call_later(BEAT_S, self._beat)

    def _hear_of(self, news: Any) -> None:
        """Take a change of the connection's state."""
        event = parse_monitor_message([bytes(frame) for frame in news])["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._session.opened()
            self._transmit()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._become(State.REFUSED, "it does not accept this notebook's key")
        elif self.state is State.CONNECTED:
            self._session.closed()
            self._become(State.CUT)

    def _send(self, frames: list[Any]) -> None:
        self._waiting.append(frames)
        self._transmit()

    def _transmit(self) -> None:
        session = self._session
        while self._waiting and not session.is_full:
            session.send(self._waiting.popleft())
        for packet in session.take():
            if not self._listener.send(packet):
                break  # the news will say that it is gone; all is kept

    def _receive(self, packet: list[Any]) -> None:
        head, *frames = packet
        message = self._session.feed(head.buffer, frames)
        if self._session.is_open:
            self._become(State.CONNECTED)
        self._transmit()
        if self._session.is_over:
            self._end("its agent has given up waiting for this notebook")
        if message:
            self._deliver(message[0].bytes, message[1:])

    def _deliver(self, to: bytes, frames: Sequence[Any]) -> None:
        if to != AGENT:
            if (on_message := self._ranks.get(int(to))) is not None:
                on_message(frames)
            return
        envelope = wire.decode(frames[0].buffer)
        if envelope["op"] in ("reply", "error"):
            if (asked := self._asked.pop(envelope["id"], None)) is not None:
                asked.answer.put((envelope, [frame.buffer for frame in frames[1:]]))
            return
        kind = envelope["op"]
        event = wire.parse(EVENTS[kind], envelope["body"], f"message {kind!r}")
        if isinstance(event, forks.Lost):
            self._end(f"its agent has ended because {event.why}")
        elif self.on_event is not None:
            self.on_event(event)


class Ended(LaunchError):
    """There is nobody any more who could answer."""


class Asked(Generic[R]):
    """A request to an agent, once it is sent."""

    def __init__(self, host: Connection, request: Operation[R]) -> None:
        self.host, self.request = host, request
        self.answer: wire.Inbox[Heard] = wire.Inbox()

    def wait(self, timeout_s: float) -> tuple[R, memoryview]:
        """Its answer and the data in it. To be called once.

        Raises:
          Ended: the host has.
          LaunchError: it refuses, or does not answer within ``timeout_s``.
        """
        host, op = self.host, self.request.op
        try:
            heard = self.answer.get(timeout=timeout_s)
        except queue.Empty:
            raise LaunchError(
                f"Host {host.name} did not answer {op!r} within {timeout_s:.3g} s{host.condition}.",
                WAIT_LONGER if isinstance(self.request, forks.Spawn) else "",
            ) from None
        if heard is None:
            raise Ended(f"Host {host.name} is lost: {host.why}.")
        envelope, buffers = heard
        if envelope["op"] == "error":
            why = wire.parse(wire.Failure, envelope["body"]).message
            raise LaunchError(f"Host {host.name} can't {op}: {why}.")
        found: R = wire.parse(self.request.reply, envelope["body"], f"answer to {op!r}")
        return found, buffers[0] if buffers else memoryview(b"")


def answers(
    asked: Iterable[tuple[K, Asked[R]]],
    timeout_s: float,
    passed_over: tuple[type[Exception], ...] = (LaunchError,),
) -> dict[K, tuple[R, memoryview]]:
    """The answers of agents that were asked at once, within one time limit.

    Args:
      passed_over: exceptions of hosts that refuse, are lost or answer late, which are not raised.
    """
    deadline = time.monotonic() + timeout_s
    found = {}
    for key, one in asked:
        with contextlib.suppress(*passed_over):
            found[key] = one.wait(max(0.0, deadline - time.monotonic()))
    return found


@dataclass(frozen=True)
class RankChannel:
    """A way to one rank through its host's agent."""

    send: Callable[[Sequence[Any]], None]
    close: Callable[[], None]


class RankSocket:
    """The way to a rank of this machine: its own socket.

    Whoever asks sends at once: the thread would cost each cell two changes of threads before any
    rank has it. The thread sends messages with buffers. If the stop button broke one off between
    two parts, it would look like a whole message.

    Args:
      address: a rank that does not listen there yet is tried for ever.
    """

    def __init__(self, agents: Agents, address: str, on_message: OnMessage) -> None:
        self._agents, self._on_message, self._pid = agents, on_message, os.getpid()
        self._using = threading.Lock()  # held by whoever touches the socket
        self._left = deque[None]()  # of messages that the thread is to send
        self._socket = transport.open_rank(agents._context, address)
        self._send_part = super(zmq.Socket, self._socket).send  # the one of C
        agents._do(self._open)

    def send(self, frames: Sequence[Any]) -> None:
        sent, is_done = list[None](), False
        try:
            # A process that the user has forked has no such socket.
            if len(frames) == 1 and os.getpid() == self._pid:
                with self._using:
                    if not self._left and not self._socket.closed:
                        # In C: no stop button comes between sending it and noting that.
                        sent.extend(map(self._send_part, frames))
                        is_done = not has_come(self._socket)
        finally:
            if not sent:
                self._left.append(None)
                self._agents._do(self._send, frames)
            elif not is_done:  # what is done to a socket takes the news from its file
                self._agents._do(self._look)

    def close(self) -> None:
        self._agents._do(self._leave)

    # ------------------------------------------------------------------ on the thread

    def _open(self) -> None:
        self._listener = Listener(self._socket, self._on_message, self._using)
        self._agents._hosts[self] = None

    def _look(self) -> None:
        self._listener.look()

    def _send(self, frames: Sequence[Any]) -> None:
        if self in self._agents._hosts:
            self._listener.send(list(frames))
        self._left.pop()

    def _leave(self) -> None:
        if self._agents._hosts.pop(self, self) is None:
            self._listener.close()
