"""Frames between ranks and the referee.

A frame is one message. A rank sends a word with its arguments. The referee sends an ``Answer``.

    hello     its rank, lane, name, seq
    site      the next number, program and place
    arrive, end, withdraw, unmade, stop, look: see ``Referee``

A launch is a frame of ``LAUNCH``: b"L", its site, given, folded. A "go" is b"g" and its number, if
it has one.

Ranks connect to a Unix socket. On other hosts than the referee's that is a ``Relay``'s, which sends
what the ranks of its host say together as one message over TCP.
"""

from __future__ import annotations

import contextlib
import io
import marshal
import os
import pickle
import select
import socket
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

from jaxcluster.agreement import refusals
from jaxcluster.agreement.cells import Answer, CellSpec, End, Skipped

KEY = "JAXCLUSTER_REFEREE_KEY"  # in the environment: what relays of other hosts have to know
BUFFER = 120_000  # bytes of a frame, at most; for 128 KiB malloc would ask the kernel each time
LONG = 1 << 14  # bytes from which on a frame is compressed: hundreds of ranks do much the same
LAUNCH = struct.Struct("<cIQQ")
LENGTH = struct.Struct("<I")  # of what a stream sends at once
Thread = tuple[int, str]  # of a rank: its number, and the thread's lane
Send = Callable[[Thread, bytes], None]
Said = tuple[Thread, bytes]
RECORDS = {one.__name__: one for one in (Answer, CellSpec, End, Skipped, *refusals.RECORDS)}


def pack(message: Any) -> bytes:
    """A frame of a message."""
    frame = pickle.dumps(message)
    return frame if len(frame) < LONG else b"z" + zlib.compress(frame, 1)


def unpack(frame: bytes) -> Any:
    """What ``pack`` was given."""
    return _Records(io.BytesIO(zlib.decompress(frame[1:]) if frame[:1] == b"z" else frame)).load()


class _Records(pickle.Unpickler):
    """Makes the records of messages and nothing else: a frame can't have code run."""

    def find_class(self, module: str, name: str) -> Any:
        return RECORDS[name]


def receive(peer: socket.socket) -> bytes:
    """A frame; b"" once the peer is gone."""
    try:
        return peer.recv(BUFFER)
    except OSError:
        return b""


class Hub:
    """Hears the threads of this host's ranks, which connect to a Unix socket.

    It waits for none that takes no more, such as a rank that is suspended while hundreds of its
    cells are skipped: the rest is sent later.

    Args:
      path: of the socket. Whoever can open it is trusted.

    Attributes:
      sends: what sends frames to each thread that is connected.
    """

    def __init__(self, path: str) -> None:
        self.sends: dict[Thread, Send] = {}
        self._epoll = select.epoll()
        self._ready: dict[int, tuple[Any, Callable[[int], None]]] = {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(512)
        self.watch(self._listener, self._accept)

    def hear(self, thread: Thread, frame: bytes) -> None:
        """Take what a thread has said; b"" is its end, and its first frame is ``hello``."""
        raise NotImplementedError

    def take(self, thread: Thread, frame: bytes, send: Send) -> None:
        """The same, with what answers it."""
        if not frame:
            self.sends.pop(thread, None)
        elif thread not in self.sends:
            self.sends[thread] = send
        self.hear(thread, frame)

    def watch(self, peer: Any, ready: Callable[[int], None]) -> None:
        """Call ``ready`` with epoll's events when something has come. Any thread."""
        self._ready[peer.fileno()] = peer, ready
        self._epoll.register(peer.fileno(), select.EPOLLIN)

    def drop(self, peer: Any) -> None:
        """Close a peer that is gone."""
        self._epoll.unregister(peer.fileno())
        del self._ready[peer.fileno()]
        peer.close()

    def step(self, timeout_s: float | None = None) -> bool:
        """Wait for frames, and hear those that have come; returns whether some have."""
        ready = self._epoll.poll(timeout_s)
        for number, events in ready:
            self._ready[number][1](events)
        return bool(ready)

    def close(self) -> None:
        """Close the socket and all connections."""
        self._epoll.close()
        for peer, _ in self._ready.values():
            peer.close()
        self.sends.clear()

    def _accept(self, _: int) -> None:
        peer, _ = self._listener.accept()
        thread: Thread | None = None
        late: deque[bytes] = deque()  # frames that it does not take yet

        def send(_: Thread, frame: bytes) -> None:
            late.append(frame)
            if len(late) == 1:
                send_late()

        def send_late() -> None:
            try:
                while late:
                    peer.send(late[0], socket.MSG_DONTWAIT)
                    late.popleft()
            except BlockingIOError:
                self._epoll.modify(peer.fileno(), select.EPOLLIN | select.EPOLLOUT)
            except OSError:  # it has ended: that is read
                late.clear()

        def ready(events: int) -> None:
            nonlocal thread
            if events & select.EPOLLOUT:
                self._epoll.modify(peer.fileno(), select.EPOLLIN)
                send_late()
            if events & ~select.EPOLLOUT:
                if not (frame := receive(peer)):
                    self.drop(peer)
                if thread is None and frame:
                    _, rank, lane, *_ = unpack(frame)
                    thread = rank, lane
                if thread is not None:
                    self.take(thread, frame, send)

        self.watch(peer, ready)


class Stream:
    """Frames of one host's ranks over one connection, each with its thread.

    Args:
      connection: which has been authenticated.

    Attributes:
      socket: to wait on.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        with connection:
            self.socket = socket.socket(fileno=os.dup(connection.fileno()))
        # Else a second message waits until the first one is acknowledged, which takes 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._queue: list[Said] = []
        self._received = b""

    def queue(self, thread: Thread, frame: bytes) -> None:
        """Send it with the next ``flush``."""
        self._queue.append((thread, frame))

    def flush(self) -> None:
        """Send what is queued. A peer that is gone shows when it is read."""
        if self._queue:
            message = marshal.dumps(self._queue)
            self._queue.clear()
            with contextlib.suppress(OSError):
                self.socket.sendall(LENGTH.pack(len(message)) + message)

    def receive(self) -> list[Said]:
        """What has come.

        Raises:
          OSError: the peer is gone.
        """
        if not (data := self.socket.recv(BUFFER)):
            raise ConnectionResetError
        data, frames = self._received + data, list[Said]()
        while len(data) >= LENGTH.size and len(data) >= (
            end := LENGTH.size + LENGTH.unpack_from(data)[0]
        ):
            frames += marshal.loads(data[LENGTH.size : end])
            data = data[end:]
        self._received = data
        return frames


class Relay(Hub):
    """Carries frames of this host's ranks on a thread, until one of the two sides is gone.

    Args:
      path: of the Unix socket for the ranks.
      address, key: of the referee.

    Raises:
      OSError, AuthenticationError: the referee can't be reached, or has another key.
    """

    def __init__(self, path: str, address: tuple[str, int], key: str) -> None:
        self._stream = Stream(Client(address, authkey=key.encode()))
        super().__init__(path)
        self.watch(self._stream.socket, self._deliver)
        threading.Thread(target=self._run, name="jaxcluster-relay", daemon=True).start()

    def hear(self, thread: Thread, frame: bytes) -> None:
        self._stream.queue(thread, frame)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.step()
                self._stream.flush()
        self.close()

    def _deliver(self, _: int) -> None:
        for thread, frame in self._stream.receive():
            if (send := self.sends.get(thread)) is not None:
                send(thread, frame)
