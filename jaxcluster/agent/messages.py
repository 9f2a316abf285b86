"""Messages that survive broken connections: numbered, acknowledged, sent again. No sockets here.

zmq drops what it has queued for a peer whose connection ends, and what was on its way in either
direction: with a cut of 8 s, 18 of a cell's 24 lines went missing and nobody was told. So each end
of a link has a ``Session``. It numbers its messages and keeps each until the other end has it. On a
new connection each end says what it has, and what comes after that is sent again, in order. What
comes twice, or before its turn, is dropped. So each message arrives once and in order, or the
session says that it is over (``is_replaced``). A connection itself loses nothing.

A session is between two ends, each named by 8 random bytes. A process that takes the other's place
has another name: what was meant for the old one is never given to the new one.

What travels is a packet: a head, and the message's own frames behind it. A head says what kind of
packet it is, from whom and to whom, a number, and the number of the last message received:

    DATA     a message; its number
    ACK      nothing else
    HELLO    the sender has a new connection: answer, and send all that comes after the last
             received; the question's number
    WELCOME  the answer, and the same
    BYE      the sender ends the session

Time is passed in (seconds, monotonic). Whoever owns a session sends what ``take`` gives after every
call, and calls ``tick`` when it is ``due``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

LIMIT = 64 << 20  # bytes that are kept for the other end; then ``is_full``
OVERHEAD = 256  # bytes that a message costs besides its frames, so that empty ones count too
ACK_S = 0.1  # how late an acknowledgement may be that nothing else carries
ACK_MESSAGES = 64  # ... and how many messages it may be behind
RETRY_S = 1.0  # zmq may refuse a HELLO for a moment: until it is sent again

VERSION = 2
HEAD = struct.Struct("<BB8s8sQQ")  # version, kind, from, to, number, received
DATA, ACK, HELLO, WELCOME, BYE = range(5)
NOBODY = bytes(8)

Frames = Sequence[Any]  # bytes, memoryviews or zmq frames


def new_name() -> bytes:
    """A name for one end of a session. Its first byte is not 0, which zmq keeps for itself."""
    return b"j" + os.urandom(7)


def nbytes(frames: Frames) -> int:
    """How many bytes a message's frames are."""
    return sum(f.nbytes if isinstance(f, memoryview) else len(f) for f in frames)


def sender_of(head: Any) -> bytes | None:
    """Who has sent a packet that opens a session; None if it is not such a packet."""
    try:
        version, kind, sender, *_ = HEAD.unpack(head)
    except struct.error:
        return None
    return bytes(sender) if version == VERSION and kind == HELLO else None


class Session:
    """One end of a link.

    Args:
      own: this end's name.
      peer: the other end's, where it is known; else whoever answers first.
      limit: bytes that are kept until ``is_full``.

    Attributes:
      is_open: the other end has been heard on the present connection, so messages are sent.
      is_replaced: another process has taken the other end's place. Nothing is sent or received any
        more, and what was kept for the old one is lost.
      is_over: the other end has said BYE.
      sent: how many messages there were to send.
      acknowledged: how many of them the other end is known to have.
      received: how many messages have come.
      kept_bytes: the size of what may have to be sent again.
    """

    def __init__(self, own: bytes, peer: bytes | None = None, *, limit: int = LIMIT) -> None:
        self.own = own
        self.peer = peer
        self.limit = limit
        self.is_open = self.is_replaced = self.is_over = False
        self.sent = self.acknowledged = self.received = self.kept_bytes = 0
        self._kept: dict[int, tuple[Frames, int]] = {}
        self._out = 0  # the last message that was sent on the present connection
        self._outgoing: list[list[Any]] = []
        self._asked = 0  # the last HELLO
        self._ask_at: float | None = None  # again
        # What the other end has not been told that we have.
        self._owed = self._owed_bytes = 0
        self._owed_since = 0.0

    @property
    def is_full(self) -> bool:
        """So much is kept that nothing more should be taken in to be sent, until this is over.

        ``send`` takes it all the same: a message larger than the limit must pass too.
        """
        return self.kept_bytes >= self.limit

    # ------------------------------------------------------------------ events

    def opened(self, now: float) -> None:
        """There is a new connection: ask the other end where we were."""
        self.is_open = False
        self._asked += 1
        self._ask_at = now + RETRY_S
        self._emit(HELLO, self._asked)

    def closed(self) -> None:
        """The connection is gone: messages are kept until there is another."""
        self.is_open, self._ask_at = False, None

    def send(self, frames: Frames) -> None:
        """Send a message, now or when that is possible. Its frames must not change until then."""
        if self.is_replaced or self.is_over:
            return
        self.sent += 1
        size = nbytes(frames) + OVERHEAD
        self._kept[self.sent] = frames, size
        self.kept_bytes += size
        self._flush()

    def acknowledge(self) -> None:
        """Say what has been received, needed or not: whoever sends it finds out who is there."""
        self._emit(ACK, 0)

    def bye(self) -> None:
        """Tell the other end that there will be nothing more."""
        self.is_over = True
        self._emit(BYE, 0)

    def feed(self, head: Any, frames: Frames, now: float) -> Frames | None:
        """Take in a packet. Returns the message in it, if there is one and it is its turn."""
        try:
            version, kind, sender, receiver, number, received = HEAD.unpack(head)
        except struct.error:
            return None
        if version != VERSION or kind > BYE or self.is_replaced or self.is_over:
            return None
        if receiver != self.own and not (kind == HELLO and receiver == NOBODY):
            if kind == HELLO and self.peer in (None, sender):
                # It takes us for one that was here before: the answer's sender tells it so.
                self._emit(WELCOME, number, to=sender)
            return None
        if self.peer is None and kind in (HELLO, WELCOME):
            self.peer = sender
        if sender != self.peer:
            if self.peer is not None and kind in (HELLO, WELCOME):
                self.is_replaced = True
                self._end()
            return None
        self._acknowledge(received)
        if not self._asked and not self.is_open:  # it has a way to us, so we have one to it
            self._open()
        if kind == DATA:
            return frames if self._is_next(number, nbytes(frames) + OVERHEAD, now) else None
        if kind == HELLO:
            self._emit(WELCOME, number)
            self._open()
        elif kind == WELCOME and number == self._asked:
            self._open()
        elif kind == BYE:
            self.is_over = True
            self._end()
        return None

    def tick(self, now: float) -> None:
        """Do what is due by now."""
        if self._owed and self.is_open and now >= self._owed_since + ACK_S:
            self._emit(ACK, 0)
        if self._ask_at is not None and now >= self._ask_at:
            self.opened(now)

    @property
    def due(self) -> float | None:
        """When ``tick`` has something to do; None if nothing."""
        ack_at = self._owed_since + ACK_S if self._owed and self.is_open else None
        return min((t for t in (ack_at, self._ask_at) if t is not None), default=None)

    def take(self) -> list[list[Any]]:
        """The packets to send now, in this order."""
        packets, self._outgoing = self._outgoing, []
        return packets

    # ------------------------------------------------------------------ inside

    def _emit(self, kind: int, number: int, frames: Frames = (), to: bytes = b"") -> None:
        head = HEAD.pack(VERSION, kind, self.own, to or self.peer or NOBODY, number, self.received)
        self._outgoing.append([head, *frames])
        if not to:
            self._owed = self._owed_bytes = 0

    def _open(self) -> None:
        """Send all that is not acknowledged."""
        self.is_open, self._ask_at = True, None
        self._out = self.acknowledged
        self._flush()

    def _flush(self) -> None:
        """Send all that has not been sent on this connection."""
        while self.is_open and self._out < self.sent:
            self._out += 1
            self._emit(DATA, self._out, self._kept[self._out][0])

    def _acknowledge(self, received: int) -> None:
        if received > self.sent:
            return
        while self.acknowledged < received:
            self.acknowledged += 1
            self.kept_bytes -= self._kept.pop(self.acknowledged)[1]
        self._out = max(self._out, self.acknowledged)

    def _is_next(self, number: int, size: int, now: float) -> bool:
        """Whether a message is to be delivered; notes what is owed to the other end.

        One that comes before its turn is of a new connection, on which all is sent again.
        """
        if number != self.received + 1:
            return False
        self.received = number
        if not self._owed:
            self._owed_since = now
        self._owed += 1
        self._owed_bytes += size
        if self._owed >= ACK_MESSAGES or self._owed_bytes >= self.limit // 8:
            self._emit(ACK, 0)
        return True

    def _end(self) -> None:
        self.closed()
        self._kept.clear()
        self.kept_bytes = self._owed = 0
