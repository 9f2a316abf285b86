"""Messages that survive broken connections: numbered, acknowledged, sent again. No sockets here.

zmq drops what it has queued for a peer whose connection ends, and what was on its way in either
direction: with a cut of 8 s, 18 of a cell's 24 lines went missing and nobody was told. So each end
of a link has a ``Session``. It numbers its messages and keeps each until the other end has it. On a
new connection each end says what it has, and what comes after that is sent again, in order. A
message that comes twice, or before its turn, is dropped. So each message arrives once and in order,
or the session is over. A connection itself loses nothing.

A session is between one agent and one connection of a notebook. zmq knows the connection by a
unique name. A packet travels: a head, then the message's own frames. A head says what kind of
packet it is, a number, and the number of the last message received:

    DATA     a message; its number
    ACK      nothing else
    HELLO    the notebook has a new connection, and whether it had one before; or the agent's
             answer: each sends all that comes after the last received
    BYE      there will be nothing more; or the agent does not know this session (any more)

Whoever owns a session sends what ``take`` gives after every call, and calls ``beat`` each second.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from jaxcluster.wire.sockets import nbytes

LIMIT = 64 << 20  # bytes that are kept for the other end; then ``is_full``
OVERHEAD = 256  # bytes that a message costs besides its frames, so that empty ones count too

VERSION = 3
HEAD = struct.Struct("<BBQQ")  # version, kind, number, received
DATA, ACK, HELLO, BYE = range(4)

Frames = Sequence[Any]  # bytes, memoryviews or zmq frames


def new_name() -> bytes:
    """A name for a connection. Its first byte is not 0, which zmq keeps for itself."""
    return b"j" + os.urandom(7)


def is_new(head: Any) -> bool | None:
    """Whether a packet opens a new session; None if it opens an old one, or none."""
    try:
        version, kind, number, _ = HEAD.unpack(head)
    except struct.error:
        return None
    return not number if version == VERSION and kind == HELLO else None


class Session:
    """One end of a link.

    Args:
      asks: whether it is the notebook's end, which says that there is a new connection.
      limit: bytes that are kept until ``is_full``.

    Attributes:
      is_open: the other end has been heard on the present connection, so messages are sent.
      is_over: the other end has said BYE: nothing is sent or received any more.
      sent: how many messages there were to send.
      acknowledged: how many of them the other end is known to have.
      received: how many messages have come.
      kept_bytes: the size of what may have to be sent again.
    """

    def __init__(self, asks: bool, limit: int = LIMIT) -> None:
        self.asks, self.limit = asks, limit
        self.is_open = self.is_over = self._is_asking = self._was_open = False
        self.sent = self.acknowledged = self.received = self.kept_bytes = 0
        self._kept: dict[int, tuple[Frames, int]] = {}
        self._out = 0  # the last message that was sent on the present connection
        self._outgoing: list[list[Any]] = []
        self._owed_bytes = 0  # of messages that we have and not yet acknowledged

    @property
    def is_full(self) -> bool:
        """So much is kept that nothing more should be taken in to be sent, until this is over.

        ``send`` takes it all the same: a message larger than the limit must pass too.
        """
        return self.kept_bytes >= self.limit

    def opened(self) -> None:
        """There is a new connection: ask the other end where we were."""
        self.is_open, self._is_asking = False, True
        self._emit(HELLO, int(self._was_open))

    def closed(self) -> None:
        """The connection is gone: messages are kept until there is another."""
        self.is_open = self._is_asking = False

    def send(self, frames: Frames) -> None:
        """Send a message, now or when that is possible. Its frames must not change until then."""
        if self.is_over:
            return
        self.sent += 1
        size = nbytes(frames) + OVERHEAD
        self._kept[self.sent] = frames, size
        self.kept_bytes += size
        self._flush()

    def beat(self) -> None:
        """Ask once more, or tell the other end what has come.

        An agent does that, needed or not: by sending it finds out who is there.
        """
        if self._is_asking:
            self.opened()
        elif not self.asks or (self.is_open and self._owed_bytes):
            self._emit(ACK)

    def bye(self) -> None:
        """Tell the other end that there will be nothing more."""
        self._end()
        self._emit(BYE)

    def feed(self, head: Any, frames: Frames) -> Frames | None:
        """Take in a packet. Returns the message in it, if there is one and it is its turn."""
        try:
            version, kind, number, received = HEAD.unpack(head)
        except struct.error:
            return None
        if version != VERSION or self.is_over or received > self.sent:
            return None
        while self.acknowledged < received:
            self.acknowledged += 1
            self.kept_bytes -= self._kept.pop(self.acknowledged)[1]
        self._out = max(self._out, self.acknowledged)
        if kind == BYE:
            self._end()
        elif kind == HELLO or not (self.is_open or self.asks):  # it has a way to the agent
            if kind == HELLO and not self.asks:
                self._emit(HELLO)
            self.is_open, self._is_asking, self._was_open = True, False, True
            self._out = self.acknowledged
            self._flush()
        # One that comes before its turn is of a new connection, on which all is sent again.
        if kind != DATA or number != self.received + 1:
            return None
        self.received = number
        self._owed_bytes += nbytes(frames) + OVERHEAD
        if self._owed_bytes >= self.limit // 8:
            self._emit(ACK)
        return frames

    def take(self) -> list[list[Any]]:
        """The packets to send now, in this order."""
        packets, self._outgoing = self._outgoing, []
        return packets

    def _emit(self, kind: int, number: int = 0, frames: Frames = ()) -> None:
        self._outgoing.append([HEAD.pack(VERSION, kind, number, self.received), *frames])
        self._owed_bytes = 0

    def _flush(self) -> None:
        """Send all that has not been sent on this connection."""
        while self.is_open and self._out < self.sent:
            self._out += 1
            self._emit(DATA, self._out, self._kept[self._out][0])

    def _end(self) -> None:
        self.is_over, self.is_open, self._is_asking = True, False, False
        self._kept.clear()
        self.kept_bytes = self._owed_bytes = 0
