"""Messages that survive broken connections: numbered, acknowledged, sent again. No sockets here.

zmq drops what it has queued for a peer whose connection ends, and what was on its way in either
direction: with a cut of 8 s, 18 of a cell's 24 lines went missing and nobody was told. So each end
of a link has a ``Session``. It numbers its messages and keeps each until the other end has it; all
that is not acknowledged is sent again, in order, when the other end asks for it (go-back-N). What
comes twice, or before its turn, is dropped. Whatever is cut, lost, doubled or reordered on the way,
each message arrives once and in order, or the session says that it is over (``is_replaced``).

A session is between two ends, each named by 8 random bytes. A process that takes the other's place
has another name: what was meant for the old one is never given to the new one.

What travels is a packet: a head, and the message's own frames behind it. A head says what kind of
packet it is, from whom and to whom, a number, and the number of the last message received:

    DATA     a message; its number
    ACK      nothing else
    HELLO    the sender has a new connection, or lacks something: answer, and send again all
             that comes after the last received; the question's number
    PROBE    nothing has been acknowledged for a while: answer; the question's number
    WELCOME  the answer to either; the question's number
    BYE      the sender ends the session

An answer says what was received of all that had been sent before the question: if that is not all,
it was lost, and is sent again. What is on its way behind the question is not.

Time is passed in (seconds, monotonic). Whoever owns a session sends what ``take`` gives after every
call, and calls ``tick`` when it is ``due``. Numbers have 64 bits: a million messages a second would
wrap after 580,000 years.
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
RETRY_S = 1.0  # until an unanswered question is asked again; doubles up to RETRY_MAX_S
RETRY_MAX_S = 8.0
PROBE_S = 2.0  # without a new acknowledgement, until the other end is asked

VERSION = 1
HEAD = struct.Struct("<BB8s8sQQ")  # version, kind, from, to, number, received
DATA, ACK, HELLO, PROBE, WELCOME, BYE = range(6)
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
        self._is_connected = False
        # Questions: the last one's number, and what had been sent before each that is unanswered.
        self._asked = self._heard = 0
        self._marks: dict[int, int] = {}
        self._ask_at: float | None = None
        self._retry_s = RETRY_S
        self._gap_asked_at: float | None = None
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
        self._is_connected, self.is_open = True, False
        self._marks.clear()
        self._retry_s = RETRY_S
        self._ask(HELLO, now)

    def closed(self) -> None:
        """The connection is gone: messages are kept until there is another."""
        self._is_connected = self.is_open = False
        self._ask_at = None

    def send(self, frames: Frames, now: float) -> None:
        """Send a message, now or when that is possible. Its frames must not change until then."""
        if self.is_replaced or self.is_over:
            return
        self.sent += 1
        size = nbytes(frames) + OVERHEAD
        self._kept[self.sent] = frames, size
        self.kept_bytes += size
        self._flush(now)

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
        asks = kind in (HELLO, PROBE)
        if receiver != self.own and not (kind == HELLO and receiver == NOBODY):
            if asks and (self.peer is None or sender == self.peer):
                # It takes us for one that was here before: the answer's sender tells it so.
                self._emit(WELCOME, number, to=sender)
            return None
        if self.peer is None and (asks or kind == WELCOME):
            self.peer = sender
        if sender != self.peer:
            if self.peer is not None and kind in (HELLO, WELCOME):
                self.is_replaced = True
                self._end()
            return None
        self._acknowledge(received, now)
        if kind == DATA:
            return frames if self._is_next(number, nbytes(frames) + OVERHEAD, now) else None
        if kind == HELLO and number > self._heard:
            self._heard = number
            self._emit(WELCOME, number)
            self._rewind(now)
        elif kind == PROBE:
            self._emit(WELCOME, number)
            if not self.is_open:  # it has a way to us, so we have one to it
                self._rewind(now)
        elif kind == WELCOME:
            self._answered(number, received, now)
        elif kind == BYE:
            self.is_over = True
            self._end()
        return None

    def tick(self, now: float) -> None:
        """Do what is due by now."""
        if (due := self._ack_due()) is not None and now >= due:
            self._emit(ACK, 0)
        if self._ask_at is not None and now >= self._ask_at:
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            self._ask(PROBE if self.is_open else HELLO, now)

    @property
    def due(self) -> float | None:
        """When ``tick`` has something to do; None if nothing."""
        return min((t for t in (self._ack_due(), self._ask_at) if t is not None), default=None)

    def take(self) -> list[list[Any]]:
        """The packets to send now, in this order."""
        packets, self._outgoing = self._outgoing, []
        return packets

    # ------------------------------------------------------------------ sending

    def _emit(self, kind: int, number: int, frames: Frames = (), to: bytes = b"") -> None:
        head = HEAD.pack(VERSION, kind, self.own, to or self.peer or NOBODY, number, self.received)
        self._outgoing.append([head, *frames])
        if not to:
            self._owed = self._owed_bytes = 0

    def _flush(self, now: float) -> None:
        """Send all that has not been sent on this connection."""
        if not self.is_open:
            return
        while self._out < self.sent:
            self._out += 1
            self._emit(DATA, self._out, self._kept[self._out][0])
        if self._kept and self._ask_at is None:
            self._ask_at = now + PROBE_S

    def _rewind(self, now: float) -> None:
        """Send again all that is not acknowledged."""
        self._is_connected = self.is_open = True
        self._marks.clear()
        self._out = self.acknowledged
        self._ask_at = None
        self._flush(now)

    def _acknowledge(self, received: int, now: float) -> None:
        if not self.acknowledged < received <= self.sent:
            return
        while self.acknowledged < received:
            self.acknowledged += 1
            self.kept_bytes -= self._kept.pop(self.acknowledged)[1]
        self._out = max(self._out, self.acknowledged)
        if self.is_open:
            self._retry_s = RETRY_S
            self._ask_at = now + PROBE_S if self._kept else None

    def _end(self) -> None:
        self.closed()
        self._kept.clear()
        self.kept_bytes = self._owed = 0

    # ------------------------------------------------------------------ questions

    def _ask(self, kind: int, now: float) -> None:
        self._asked += 1
        self._marks[self._asked] = self._out
        self._ask_at = now + self._retry_s
        self._emit(kind, self._asked)

    def _answered(self, question: int, received: int, now: float) -> None:
        if (mark := self._marks.get(question)) is None:
            return
        self._marks = {q: m for q, m in self._marks.items() if q > question}
        if not self.is_open or received < mark:
            self._rewind(now)
        elif not self._kept:
            self._ask_at = None

    # ------------------------------------------------------------------ receiving

    def _is_next(self, number: int, size: int, now: float) -> bool:
        """Whether a message is to be delivered; notes what is owed to the other end, or missing."""
        if number <= self.received:
            return False  # it came twice; a question will be asked if we were not heard
        if number > self.received + 1:
            # Before the first answer on a connection that is expected, and was asked for already.
            asked = self._gap_asked_at
            if self.is_open and (asked is None or now - asked >= RETRY_S):
                self._gap_asked_at = now
                self._ask(HELLO, now)
            return False
        self.received = number
        self._gap_asked_at = None
        if not self._owed:
            self._owed_since = now
        self._owed += 1
        self._owed_bytes += size
        if self._owed >= ACK_MESSAGES or self._owed_bytes >= self.limit // 8:
            self._emit(ACK, 0)
        return True

    def _ack_due(self) -> float | None:
        return self._owed_since + ACK_S if self._owed and self._is_connected else None
