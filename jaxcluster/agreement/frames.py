"""Frames between ranks and the referee.

A frame is one message. Its first byte says which:

    from a rank                                     to a rank
    H  who it is (JSON): rank, lane, name, seq      g  go
    S  the next site: program and place (JSON)      G  go, as the rank's n-th agreed launch
    L  launch: site, given, folded                  R  refused (JSON)
    W  withdraw                                     W  withdrawn (JSON)
    J  anything else (JSON): [method, arguments]    J  anything else (JSON)
                                                    +  a piece of a long one; the last has a "."

Ranks connect to a Unix socket. On other hosts than the referee's that is a ``Relay``'s, which sends
what the ranks of its host say together as one message over TCP.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

KEY = "JAXCLUSTER_REFEREE_KEY"  # in the environment: what relays of other hosts have to know
LAUNCH = struct.Struct("<cIQQ")
COUNT = struct.Struct("<cQ")
BUFFER = 120_000  # bytes of a frame, at most; for 128 KiB malloc would ask the kernel each time
PIECE = 1 << 16  # bytes of a long frame that are sent at once
AGAIN_S = 0.01  # before it is tried again to send to who has taken no more
BASE = "base"  # the lane of a rank's control thread
Send = Callable[[bytes], None]


def pack(kind: bytes, body: Any) -> bytes:
    """A frame that is JSON behind its first byte."""
    return kind + json.dumps(body, separators=(",", ":")).encode()


def pieces(frame: bytes) -> Iterator[bytes]:
    """A frame for a rank as it is sent: a long one, such as of hundreds of ranks, in pieces."""
    if len(frame) <= PIECE:
        yield frame
        return
    last = (len(frame) - 1) // PIECE * PIECE
    for start in range(0, len(frame), PIECE):
        yield (b"." if start == last else b"+") + frame[start : start + PIECE]


def listen(path: str) -> socket.socket:
    """A Unix socket that ranks connect to. Whoever can open its path is trusted."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(512)
    return listener


def receive(peer: socket.socket) -> bytes:
    """A frame; b"" once the peer is gone."""
    try:
        return peer.recv(BUFFER)
    except OSError:
        return b""


def whole(frame: bytes, peer: socket.socket) -> bytes:
    """A frame whose other pieces, if it has some, are still to be received."""
    begun = b""
    while frame[:1] == b"+":
        begun, frame = begun + frame[1:], receive(peer)
    return begun + frame[1:] if begun else frame


class Outlet:
    """The way to one rank's thread. What it takes no more of, as when it is suspended, waits.

    Args:
      full: has those in which something waits.
    """

    def __init__(self, peer: socket.socket, full: set[Outlet]) -> None:
        self._peer, self._full = peer, full
        self._queue: deque[bytes] = deque()

    def send(self, frame: bytes) -> None:
        """Send it after all that is queued."""
        self._queue.append(frame)
        self.flush()

    def flush(self) -> None:
        """Send what is queued, as far as the peer takes it."""
        try:
            while self._queue:
                self._peer.send(self._queue[0], socket.MSG_DONTWAIT)
                self._queue.popleft()
        except BlockingIOError:
            self._full.add(self)
            return
        except OSError:  # the peer is gone
            self._queue.clear()
        self._full.discard(self)


class Hub:
    """Hears the threads of this host's ranks, which connect to a Unix socket.

    Args:
      path: of the socket.
      join: called with what sends frames to a thread that has connected. Returns what hears its
        frames; b"" is its end.
    """

    def __init__(self, path: str, join: Callable[[Send], Send]) -> None:
        self.selector = selectors.DefaultSelector()
        self.peers: set[socket.socket] = set()
        self._join = join
        self._full: set[Outlet] = set()
        self._listener = listen(path)
        self.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def step(self, timeout_s: float | None) -> None:
        """Wait for frames, and hear those that have come."""
        limits = [one for one in (timeout_s, AGAIN_S if self._full else None) if one is not None]
        for key, _ in self.selector.select(min(limits, default=None)):
            key.data()
        for outlet in [*self._full]:
            outlet.flush()

    def close(self) -> None:
        """Close the socket and all connections."""
        for peer in (self._listener, *self.peers):
            peer.close()

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        hear = self._join(Outlet(peer, self._full).send)
        self.peers.add(peer)

        def read() -> None:
            if not (frame := receive(peer)):
                self.selector.unregister(peer)
                self.peers.remove(peer)
                peer.close()
            hear(frame)

        self.selector.register(peer, selectors.EVENT_READ, read)


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
        self._outlets: list[Send] = []
        self._is_connected = True
        self._hub = Hub(path, self._join)
        self._hub.selector.register(self._stream.connection, selectors.EVENT_READ, self._deliver)
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
        self._outlets.append(send)
        return functools.partial(self._stream.queue, len(self._outlets) - 1)

    def _deliver(self) -> None:
        for number, frame in self._stream.receive():
            self._outlets[number](frame)
