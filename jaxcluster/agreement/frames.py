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
import json
import marshal
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

LAUNCH = struct.Struct("<cIQQ")
COUNT = struct.Struct("<cQ")
BUFFER = 120_000  # bytes of a frame, at most; for 128 KiB malloc would ask the kernel each time
PIECE = 1 << 16  # bytes of a long frame that are sent at once
AGAIN_S = 0.01  # before it is tried again to send to who has taken no more
BASE = "base"  # the lane of a rank's control thread


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
    """The way to one rank's thread. What it takes no more of, as when it is suspended, waits."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._queue: deque[bytes] = deque()

    def send(self, *frames: bytes) -> bool:
        """As ``flush``, with these."""
        self._queue += frames
        return self.flush()

    def flush(self) -> bool:
        """Whether nothing waits: all is sent, or the peer is gone."""
        try:
            while self._queue:
                self._peer.send(self._queue[0], socket.MSG_DONTWAIT)
                self._queue.popleft()
        except BlockingIOError:
            return False
        except OSError:
            self._queue.clear()
        return True


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
        self._peers: list[tuple[socket.socket, Outlet]] = []
        self._full: set[Outlet] = set()
        self._is_connected = True
        self._selector = selectors.DefaultSelector()
        self._listener = listen(path)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._stream.connection, selectors.EVENT_READ, self._deliver)
        threading.Thread(target=self._run, name="jaxcluster-relay", daemon=True).start()

    def serves(self) -> bool:
        """Whether a thread of a rank is connected, and the referee is there."""
        return self._is_connected and any(peer.fileno() >= 0 for peer, _ in self._peers)

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                for key, _ in self._selector.select(AGAIN_S if self._full else None):
                    key.data()
                self._full = {one for one in self._full if not one.flush()}
                self._stream.flush()
        self._is_connected = False
        self._stream.connection.close()
        self._listener.close()
        for peer, _ in self._peers:
            peer.close()

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        number = len(self._peers)
        self._peers.append((peer, Outlet(peer)))

        def read() -> None:
            frame = receive(peer)
            self._stream.queue(number, frame)
            if not frame:
                self._selector.unregister(peer)
                peer.close()

        self._selector.register(peer, selectors.EVENT_READ, read)

    def _deliver(self) -> None:
        for number, frame in self._stream.receive():
            outlet = self._peers[number][1]
            if not outlet.send(frame):
                self._full.add(outlet)
