"""``send_multipart`` and ``recv_multipart`` without waiting, in a fraction of the time.

Each ``|`` or ``&`` with one of zmq's flags, which are enums, takes as long as sending a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

Buffer = bytes | memoryview

_POLLIN, _NOBLOCK = int(zmq.POLLIN), int(zmq.NOBLOCK)
_MORE_TO_COME = _NOBLOCK | int(zmq.SNDMORE)


def has_come(socket: zmq.Socket[bytes]) -> bool:
    """Whether there is a message. What is done to a socket takes the news from its file."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _POLLIN)


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """A message that has come, without a copy."""
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOBLOCK, copy=False))
    return frames


def send(socket: zmq.Socket[bytes], frames: Sequence[Buffer], *, copy: bool) -> None:
    """Send a message.

    Raises:
      zmq.Again: there is no room for it, and nothing was sent.
    """
    *before, last = frames
    for frame in before:
        socket.send(frame, _MORE_TO_COME, copy)
    socket.send(last, _NOBLOCK, copy)
