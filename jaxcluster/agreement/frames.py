"""Frames between ranks and the referee.

A frame is one message: a word with its arguments, as ``pack`` makes it.

    from a rank                                     to a rank: see ``Answer``
    hello     its rank, lane, name, seq             go        is b"g" alone, if ``is_alone``
    site      the next number, program and place    refuse, run, skip, closed, over
    launch    site, given, folded                   answer    what it has looked at
    withdraw, unmade, arrive, end, stop, look

Ranks connect to a Unix socket. On other hosts than the referee's that is a ``Relay``'s, which sends
what the ranks of its host say together as one message over TCP.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import select
import socket
import threading
import zlib
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

KEY = "JAXCLUSTER_REFEREE_KEY"  # in the environment: what relays of other hosts have to know
BUFFER = 120_000  # bytes of a frame, at most; for 128 KiB malloc would ask the kernel each time
LONG = 1 << 14  # bytes from which on a frame is compressed: hundreds of ranks do much the same
Send = Callable[[bytes], None]


def pack(*words: Any) -> bytes:
    """A frame of a word and its arguments, without objects of classes."""
    frame = marshal.dumps(words)
    return frame if len(frame) < LONG else b"z" + zlib.compress(frame, 1)


def unpack(frame: bytes) -> Any:
    """What ``pack`` was given, as a tuple."""
    return marshal.loads(zlib.decompress(frame[1:]) if frame[:1] == b"z" else frame)


def receive(peer: socket.socket) -> bytes:
    """A frame; b"" once the peer is gone."""
    try:
        return peer.recv(BUFFER)
    except OSError:
        return b""


class Outlet:
    """Sends frames to a thread of a rank, in order.

    It does not wait for one that takes no more, such as a rank that is suspended while hundreds of
    its cells are skipped: a thread sends the rest.
    """

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._late: deque[bytes] = deque()  # the thread runs while there are some
        self._lock = threading.Lock()

    def send(self, frame: bytes) -> None:
        with self._lock:
            if self._late:
                self._late.append(frame)
                return
            try:
                self._peer.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._late.append(frame)
                threading.Thread(
                    target=self._send_late, name="jaxcluster-late", daemon=True
                ).start()
            except OSError:  # it has ended: that is read
                pass

    def _send_late(self) -> None:
        is_over = False
        while not is_over:
            try:
                self._peer.send(self._late[0])
            except OSError:
                return  # it has ended: what comes is kept until that is read
            with self._lock:
                self._late.popleft()
                is_over = not self._late


class Hub:
    """Hears the threads of this host's ranks, which connect to a Unix socket.

    Args:
      path: of the socket. Whoever can open it is trusted.
      join: called with what sends frames to a thread that has connected. Returns what hears its
        frames; b"" is its end.
    """

    def __init__(self, path: str, join: Callable[[Send], Send]) -> None:
        self.peers: set[socket.socket] = set()
        self._join = join
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(512)
        self.watch(self._listener, self._accept)

    def watch(self, peer: Any, read: Callable[[], None]) -> None:
        """Call ``read`` when something has come. Any thread."""
        self._readers[peer.fileno()] = read
        self._epoll.register(peer.fileno(), select.EPOLLIN)

    def drop(self, peer: Any) -> None:
        """Close a peer that is gone."""
        self._epoll.unregister(peer.fileno())
        del self._readers[peer.fileno()]
        peer.close()

    def step(self, timeout_s: float | None) -> bool:
        """Wait for frames, and hear those that have come; returns whether some have."""
        ready = self._epoll.poll(timeout_s)
        for number, _ in ready:
            self._readers[number]()
        return bool(ready)

    def close(self) -> None:
        """Close the socket and all connections."""
        self._epoll.close()
        for peer in (self._listener, *self.peers):
            peer.close()

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        hear = self._join(Outlet(peer).send)
        self.peers.add(peer)

        def read() -> None:
            if not (frame := receive(peer)):
                self.peers.remove(peer)
                self.drop(peer)
            hear(frame)

        self.watch(peer, read)


class Stream:
    """Frames of one host's ranks over one connection, each with the number of its thread.

    A frame b"" says that the thread is gone.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._queue: list[tuple[int, bytes]] = []

    def queue(self, number: int, frame: bytes) -> None:
        """Send it with the next ``flush``."""
        self._queue.append((number, frame))

    def flush(self) -> None:
        """Send what is queued. A peer that is gone shows when it is read."""
        if self._queue:
            frames, self._queue = self._queue, []
            with contextlib.suppress(OSError):
                self.connection.send_bytes(marshal.dumps(frames))

    def receive(self) -> list[tuple[int, bytes]]:
        """What has come together.

        Raises:
          OSError, EOFError: the peer is gone.
        """
        frames: list[tuple[int, bytes]] = marshal.loads(self.connection.recv_bytes())
        return frames


class Relay:
    """Carries frames of this host's ranks on a thread, until one of the two sides is gone.

    Args:
      path: of the Unix socket for the ranks.
      address, key: of the referee.

    Raises:
      OSError, AuthenticationError: the referee can't be reached, or has another key.
    """

    def __init__(self, path: str, address: tuple[str, int], key: str) -> None:
        self._stream = Stream(Client(address, authkey=key.encode()))
        self._sends: list[Send] = []
        self._is_connected = True
        self._hub = Hub(path, self._join)
        self._hub.watch(self._stream.connection, self._deliver)
        threading.Thread(target=self._run, name="jaxcluster-relay", daemon=True).start()

    def serves(self) -> bool:
        """Whether a thread of a rank is connected, and the referee is there."""
        return self._is_connected and bool(self._hub.peers)

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._hub.step(None)
                self._stream.flush()
        self._is_connected = False
        self._stream.connection.close()
        self._hub.close()

    def _join(self, send: Send) -> Send:
        self._sends.append(send)
        return functools.partial(self._stream.queue, len(self._sends) - 1)

    def _deliver(self) -> None:
        for number, frame in self._stream.receive():
            self._sends[number](frame)
