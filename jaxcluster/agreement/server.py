"""The referee's process: hears ranks on a Unix socket, and the relays of other hosts on TCP.

Each thread of a rank that launches has a connection of its own, and its control thread another one,
by whose end the death of the rank shows.
"""

from __future__ import annotations

import contextlib
import functools
import json
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Any

from jaxcluster.agreement import referee as core
from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.agreement.frames import BASE, COUNT, LAUNCH, Hub, Send, Stream, pack, pieces
from jaxcluster.agreement.refusals import Place, Program, Refusal

TICK_S = 0.05  # that other ranks have to announce theirs, once a refusal is certain
SILENT_S = 5.0  # that ranks have to say something after XLA refused their launch elsewhere

Event = Callable[[], Sequence[core.Answer]]  # of the referee


class Connection:
    """One thread of a rank, connected directly or through a relay."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.rank = -1
        self.lane = ""
        self.sites: dict[int, tuple[Program, Place]] = {}

    def send(self, frame: bytes) -> None:
        for piece in pieces(frame):
            self._send(piece)


class Server:
    """Gives what ranks say to a ``Referee``, and its answers to the ranks.

    Args:
      num_ranks: of the cluster.
      path: of the Unix socket. Whoever can open it is trusted.
      key: what relays have to know.
      clock: in seconds.
    """

    def __init__(
        self,
        num_ranks: int,
        path: str,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.referee = core.Referee(num_ranks)
        self._key, self._clock = key, clock
        self._hub = Hub(path, self._join)
        self._programs: dict[tuple[tuple[int, ...], int], Program] = {}
        self._connections: dict[tuple[int, str], Connection] = {}
        self._streams: list[Stream] = []
        self._due: dict[Event, float] = {}  # what the referee is to be told, and when
        self._last_told: tuple[Refusal, bytes] | None = None
        self.port = 0

    def listen(self, address: str) -> None:
        """Hear relays of other hosts at this address, too; at ``port``."""
        family = "AF_INET6" if ":" in address else "AF_INET"
        listener = Listener((address, 0), family, 512, authkey=self._key.encode())
        accept = functools.partial(self._accept_relays, listener)
        threading.Thread(target=accept, name="jaxcluster-relays", daemon=True).start()
        self.port = int(listener.address[1])

    def serve(self) -> None:
        """Never returns."""
        while True:
            self.step()

    def serves(self) -> bool:
        """Whether a rank is connected."""
        return bool(self._connections)

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for messages, and answer those that have come."""
        referee, limits = self.referee, [] if timeout_s is None else [timeout_s]
        if referee.wants_tick or referee.is_unsure or self._due:
            self._remember(referee.tick, referee.wants_tick, TICK_S)
            self._remember(referee.silent, referee.is_unsure, SILENT_S)
            limits += [max(0.0, at - self._clock()) for at in self._due.values()]
        self._hub.step(min(limits, default=None))
        for what, at in list(self._due.items()):
            if self._clock() >= at:
                del self._due[what]
                self._answer(what())
        for stream in self._streams:
            stream.flush()

    def _remember(self, what: Event, is_wanted: bool, after_s: float) -> None:
        """Tell the referee so much later that nothing has come, if it still wants to know then."""
        if is_wanted:
            self._due.setdefault(what, self._clock() + after_s)
        else:
            self._due.pop(what, None)

    # ------------------------------------------------------------- connections

    def _join(self, send: Send) -> Send:
        return functools.partial(self._hear, Connection(send))

    def _accept_relays(self, listener: Listener) -> None:
        """A thread's loop: who does not know the key does not keep the referee waiting."""
        while True:
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                self._add_relay(Stream(listener.accept()))

    def _add_relay(self, stream: Stream) -> None:
        threads: dict[int, Send] = {}
        self._streams.append(stream)

        def read() -> None:
            try:
                frames = stream.receive()
            except (OSError, EOFError):
                self._hub.selector.unregister(stream.connection)
                self._streams.remove(stream)
                stream.connection.close()
                frames = [(number, b"") for number in threads]
            for number, frame in frames:
                if number not in threads:
                    threads[number] = self._join(functools.partial(stream.queue, number))
                (threads[number] if frame else threads.pop(number))(frame)

        self._hub.selector.register(stream.connection, selectors.EVENT_READ, read)

    def _lost(self, connection: Connection) -> None:
        if self._connections.pop((connection.rank, connection.lane), None) is None:
            return
        if connection.lane == BASE:
            self._answer(self.referee.died(connection.rank))
        elif connection.lane != core.MAIN:
            self._answer(self.referee.gone(connection.rank, connection.lane))

    # ------------------------------------------------------------------ messages

    def _hear(self, connection: Connection, frame: bytes) -> None:
        kind, rank, lane = frame[:1], connection.rank, connection.lane
        if kind == b"L":
            _, site, given, folded = LAUNCH.unpack(frame)
            program, place = connection.sites[site]
            self._answer(
                self.referee.launch(
                    rank,
                    lane,
                    program,
                    given=given,
                    folded=folded,
                    place=place,
                    now=self._clock(),
                )
            )
        elif not frame:
            self._lost(connection)
        elif kind == b"W":
            self._answer(self.referee.withdraw(rank, lane))
        else:
            self._hear_json(connection, kind, json.loads(frame[1:]))

    def _hear_json(self, connection: Connection, kind: bytes, body: Any) -> None:
        rank, referee = connection.rank, self.referee
        if kind == b"H":
            connection.rank, connection.lane, name, seq = body
            self._connections[connection.rank, connection.lane] = connection
            if connection.lane not in (BASE, core.MAIN):
                referee.hello(connection.rank, connection.lane, name, seq)
            return
        if kind == b"S":
            number, processes, fingerprint, name, signature, meets_all, *place = body
            key = tuple(processes), fingerprint
            program = Program(*key, name, signature, meets_all=meets_all)
            connection.sites[number] = self._programs.setdefault(key, program), Place(*place)
            return
        method, *arguments = body
        match method:
            case "arrive":
                spec = CellSpec(**{**arguments[0], "ranks": tuple(arguments[0]["ranks"])})
                self._answer(referee.arrive(rank, spec))
            case "end":
                outcome, folded, at_work = arguments
                hashes = {tuple(processes): value for processes, value in folded}
                self._answer(referee.end(rank, outcome, hashes, at_work))
            case "unmade":
                self._answer(referee.unmade(rank, *arguments))
            case "cancel" | "stop":
                self._answer(getattr(referee, method)(*arguments))
            case "look":
                connection.send(pack(b"J", ["answer", arguments[0], self.look(arguments[1])]))

    def _answer(self, answers: Sequence[core.Answer]) -> None:
        for answer in answers:
            lane = answer.lane if isinstance(answer, core.Go | core.Refuse) else BASE
            connection = self._connections.get((answer.rank, lane))
            if connection is not None:  # else it has died
                connection.send(self._frame_of(answer))

    def look(self, count: int) -> dict[str, Any]:
        """Who waits for whom since when, the last ``count`` agreed launches, who is connected."""
        waits = [
            {
                **{name: getattr(wait, name) for name in ("rank", "lane", "seq", "since")},
                "name": wait.key.program.name,
                "place": asdict(wait.place),
                "missing": missing,
            }
            for wait, missing in self.referee.waits()
        ]
        agreed = [
            {
                **{name: getattr(one, name) for name in ("number", "seq", "at", "last", "late_s")},
                "name": one.program.name,
                "place": asdict(one.place),
            }
            for one in (list(self.referee.agreed)[-count:] if count else ())
        ]
        running = [cell and cell.spec.seq for cell in self.referee.cells.running]
        ranks = sorted(rank for rank, lane in self._connections if lane == BASE)
        return {
            "now": self._clock(),
            "waits": waits,
            "agreed": agreed,
            "running": running,
            "connected": ranks,
        }

    def _frame_of(self, answer: core.Answer) -> bytes:
        """What a rank is sent."""
        match answer:
            case core.Go(is_alone=True):
                return b"g"
            case core.Go(count=count):
                return COUNT.pack(b"G", count)
            case core.Refuse(refusal=refusal, withdrawn=withdrawn):
                return (b"W" if withdrawn else b"R") + self._told(refusal)
            case core.Run(seq=seq):
                return pack(b"J", ["run", seq])
            case core.Skip(seq=seq, why=why):
                return pack(b"J", ["skip", seq, why.after, why.dead])
            case core.Closed(seq=seq, refusal=refusal, tells=tells):
                return b'J["closed",%d,%s,%s]' % (seq, self._told(refusal), _json(tells))
            case core.Over(seq=seq, refusal=over, tells=tells):
                told = b"null" if over is None else self._told(over)
                return b'J["over",%d,%s,%s]' % (seq, told, _json(tells))

    def _told(self, refusal: Refusal) -> bytes:
        """A refusal as JSON; it mostly goes to all ranks."""
        if self._last_told is None or self._last_told[0] is not refusal:
            self._last_told = refusal, _json(refusal.plain())
        return self._last_told[1]


def _json(body: Any) -> bytes:
    return pack(b"", body)
