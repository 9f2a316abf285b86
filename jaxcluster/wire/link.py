"""Requests to ranks and their answers, over any transport (``hosts.agent.client``)."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from jaxcluster import errors, wire
from jaxcluster.wire.codec import Buffer
from jaxcluster.wire.inbox import Inbox
from jaxcluster.wire.ops import EVENTS, Operation

R = TypeVar("R")

LOOK_S = 0.05  # between two looks whether an answer is still wanted
VERSION_HINT = (
    "Install the same jaxcluster for the notebook and the ranks, and start another cluster: "
    "%jaxcluster stop, then %jaxcluster start"
)


@dataclass(frozen=True)
class Event(Generic[R]):
    """A message from a rank: ``op`` is reply or one of ``EVENTS``.

    ``body`` of a reply is an ``R``. The link itself says ``died``, with a ``Death``.
    """

    rank: int
    op: str
    id: str
    body: Any
    buffers: Sequence[Buffer] = ()

    @property
    def why(self) -> str:
        """Why there is no reply."""
        failed: wire.Death | wire.Failure = self.body
        return failed.why if isinstance(failed, wire.Death) else failed.message

    @property
    def ename(self) -> str:
        """The name of the exception; "" where there is none."""
        return self.body.ename if isinstance(self.body, wire.Failure) else ""


class Sink(Inbox[Event[Any]]):
    """The queue for answers to one or more requests. Waiting for it can be interrupted."""


ANSWERS = ("reply", "error", "died")
# The exception raised here for a rank's exception; any other is a ``RankError``.
KINDS: Mapping[str, type[errors.JaxClusterError]] = {
    "Unavailable": errors.TransferError,
    "CannotPickle": errors.NotSerialisable,
    "VersionMismatch": errors.VersionMismatch,
}
Request = Operation[R] | Mapping[int, Operation[R]]  # one for all ranks, or each rank's own


class Channel(Protocol):
    """A way to one rank that somebody else looks after."""

    def send(self, frames: Sequence[Any]) -> None:
        """Send a message. Its frames must not change until the rank has answered."""

    def close(self) -> None:
        """Later messages of the rank are dropped."""


class Link:
    """Sends requests to ranks and delivers what they answer. Thread-safe.

    Args:
      ranks: which.
      open: makes the channel to a rank; what it is given is called with the frames that come.

    Attributes:
      on_push: called on a channel's thread with what a rank sends unasked.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        open: Callable[[int, Callable[[Sequence[Any]], None]], Channel],
    ) -> None:
        self.ranks = sorted(ranks)
        self.on_push: Callable[[Event[Any]], None] | None = None
        self._ids = itertools.count(1)
        self._prefix = os.urandom(4).hex()
        self._waiting: dict[str, tuple[int, Sink, type[Operation[Any]]]] = {}
        self._gone: dict[int, tuple[str, wire.Death | wire.Failure]] = {}  # not asked any more
        self._lock = threading.Lock()
        self._channels = {
            rank: open(rank, lambda frames, rank=rank: self._deliver(rank, frames))  # type: ignore[misc]
            for rank in self.ranks
        }

    def close(self) -> None:
        """Let go of the channels; requests after it are never answered."""
        for channel in self._channels.values():
            channel.close()

    def request_each(
        self,
        each: Mapping[int, Operation[Any]],
        *,
        buffers: Sequence[Buffer] = (),
        sink: Sink,
    ) -> list[str]:
        """Send each rank its request; what answers them arrives in ``sink``. Returns their ids.

        A request that is one object for several ranks is encoded once.
        """
        ids = []
        encoded: dict[int, bytes] = {}
        with self._lock:
            for rank, request in each.items():
                ids.append(name := f"{self._prefix}-{next(self._ids)}")
                if rank in self._gone:
                    sink.put(Event(rank, self._gone[rank][0], name, self._gone[rank][1]))
                    continue
                self._waiting[name] = (rank, sink, type(request))
                if id(request) not in encoded:
                    encoded[id(request)] = wire.encode_body(request)
                message = wire.envelope(request.op, name, encoded[id(request)])
                self._channels[rank].send([message, *buffers])
        return ids

    def gather(
        self,
        ranks: Iterable[int],
        request: Request[R],
        *,
        timeout_s: float,
        buffers: Sequence[Buffer] = (),
        check: Callable[[], None] | None = None,
        on_answer: Callable[[Event[R]], object] = bool,
    ) -> dict[int, Event[R]]:
        """Ask several ranks at once and return the answers that came within ``timeout_s``.

        An answer may be of op ``error`` or ``died``; ``unwrap`` raises those.

        Args:
          check: called now and then meanwhile; it may raise, to end this.
          on_answer: called with each answer as it comes; so may this.
        """
        sink = Sink()
        each = {r: request[r] if isinstance(request, Mapping) else request for r in ranks}
        asked = self.request_each(each, buffers=buffers, sink=sink)
        found: dict[int, Event[R]] = {}
        deadline = time.monotonic() + timeout_s
        try:
            while len(found) < len(asked):
                left_s = max(0.0, deadline - time.monotonic())
                if check is not None and sink.empty():  # what has come counts
                    check()
                    left_s = min(left_s, LOOK_S)
                try:
                    event = sink.get(timeout=left_s)
                except queue.Empty:
                    if time.monotonic() >= deadline:
                        break
                    continue
                if event.op in ANSWERS:
                    found[event.rank] = event
                    on_answer(event)
        finally:
            self.forget(asked)
        return found

    def forget(self, ids: Iterable[str]) -> None:
        """Let go of requests whose answers nobody waits for any more."""
        with self._lock:
            for id in ids:
                self._waiting.pop(id, None)

    def mark_dead(self, rank: int, death: wire.Death) -> None:
        """Answer all that waits for ``rank``, now and later, with a ``died`` event."""
        self._answer_all(rank, "died", death)

    def _answer_all(self, rank: int, op: str, body: wire.Death | wire.Failure) -> None:
        with self._lock:
            self._gone[rank] = op, body
            for id in [id for id, (r, *_) in self._waiting.items() if r == rank]:
                self._waiting.pop(id)[1].put(Event(rank, op, id, body))

    def _deliver(self, rank: int, frames: Sequence[Any]) -> None:
        """Give a rank's message to the sink that waits for it. On the channel's thread."""
        try:
            envelope = wire.decode(frames[0].buffer)
        except wire.OtherVersion as error:
            self._answer_all(rank, "error", _unreadable(rank, error))
            return
        except ValueError:  # nothing of ours: whoever waits goes on waiting
            return
        id, op, body = envelope["id"], envelope["op"], envelope.get("body")
        buffers = [frame.buffer for frame in frames[1:]]
        with self._lock:
            waiting = self._waiting.get(id)
            is_cell = waiting is not None and waiting[2].op == wire.CellRequest.op
            if op in ("reply", "error") and not is_cell:  # more comes of a cell: ``Over``
                self._waiting.pop(id, None)
        try:
            if op in EVENTS:
                body = wire.parse(EVENTS[op], body, f"message {op!r}")
            elif op == "reply" and waiting is not None:
                body = wire.parse(waiting[2].reply, body, f"reply to {waiting[2].op!r}")
        except wire.WrongFields as error:
            op, body = "error", _unreadable(rank, error)
            self.forget([id])
        event: Event[Any] = Event(rank, op, id, body, buffers)
        if op == "push" and self.on_push is not None:
            self.on_push(event)
        elif waiting is not None and op != "push":
            waiting[1].put(event)


def _unreadable(rank: int, error: ValueError) -> wire.Failure:
    told = f"its message can't be read: {error}."
    return wire.Failure("VersionMismatch", told, VERSION_HINT)


def replies(answers: Mapping[int, Event[R]]) -> dict[int, R]:
    """The replies of the ranks that have replied."""
    return {rank: event.body for rank, event in answers.items() if event.op == "reply"}


def unwrap(event: Event[R]) -> R:
    """The body of a reply.

    Raises:
      RankDied: the rank's process has ended.
      VersionMismatch: the rank speaks another protocol version.
      JaxClusterError: what the rank raised, as a TransferError where it is about a value.
    """
    if event.op == "reply":
        body: R = event.body
        return body
    if event.op == "died" and event.body.may_live:
        raise errors.RankDied(
            f"Rank {event.rank} can't be reached: {event.why}.",
            "It may still be running. %jaxcluster attach connects again once it can be reached.",
            [event.rank],
        )
    if event.op == "died":
        raise errors.RankDied(
            f"Rank {event.rank} has died ({event.why}).",
            f"%jaxcluster logs {event.rank} shows the end of its log. {errors.RESTART_HINT}",
            [event.rank],
        )
    failure: wire.Failure = event.body
    ename, message = failure.ename, failure.message
    if ename == "WrongFields":
        raise errors.VersionMismatch(f"Rank {event.rank} can't read {message}.", VERSION_HINT)
    if (kind := KINDS.get(ename)) is not None:
        raise kind(f"Rank {event.rank}: {message}", failure.hint)
    raise errors.RankError(f"Rank {event.rank}: {ename}: {message}", failure.hint, [event.rank])
