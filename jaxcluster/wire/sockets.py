"""zmq's sockets: IPv6 addresses, and messages without waiting, in a fraction of the time.

``send_multipart`` and ``recv_multipart`` are slow: each ``|`` or ``&`` with one of zmq's flags,
which are enums, takes as long as sending a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

LARGE = 1 << 16  # bytes: a message of more is sent from where it lies
_POLLIN, _NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK)
_MORE_TO_COME = _NOBLOCK | int(zmq.SNDMORE)


class Context(zmq.Context[zmq.Socket[bytes]]):
    """A zmq context whose sockets use IPv6 addresses too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set(zmq.IPV6, 1)


def has_come(socket: zmq.Socket[bytes]) -> bool:
    """Whether there is a message. Any call on a socket may take the news from its file."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _POLLIN)


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """A message that has come, without a copy."""
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOBLOCK, copy=False))
    return frames


def send(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> bool:
    """Send a message; returns whether there was room for it. Else nothing was sent.

    Raises:
      zmq.ZMQError: EHOSTUNREACH of a ROUTER: whom it is for is not connected.
    """
    copy = nbytes(frames) <= LARGE
    *before, last = frames
    try:
        for frame in before:
            socket.send(frame, _MORE_TO_COME, copy)
        socket.send(last, _NOBLOCK, copy)
    except zmq.Again:
        return False
    return True


def nbytes(frames: Sequence[Any]) -> int:
    """How many bytes a message's frames are."""
    return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in frames)
