"""The referee's process: hears ranks on a Unix socket, and the relays of other hosts on TCP.

Each thread of a rank that launches has a connection of its own, and its control thread another one,
by whose end the death of the rank shows.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Any

from jaxcluster.agreement.cellqueue import BASE, Answer, CellSpec
from jaxcluster.agreement.frames import Hub, Send, Stream, pack, unpack
from jaxcluster.agreement.referee import Referee
from jaxcluster.agreement.refusals import Place, Program, Refusal

TICK_S = 0.05  # that other ranks have to announce theirs, once a refusal is certain
SILENT_S = 5.0  # that ranks have to say something after XLA refused their launch elsewhere


class Peer:
    """One thread of a rank, connected directly or through a relay."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.rank, self.lane = -1, ""
        self.sites: dict[int, tuple[Program, Place]] = {}


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
        self.referee = Referee(num_ranks)
        self._key, self._clock = key, clock
        self._hub = Hub(path, self._join)
        self._programs: dict[tuple[tuple[int, ...], int], Program] = {}
        self._peers: dict[tuple[int, str], Peer] = {}
        self._streams: list[Stream] = []
        self._due: dict[Callable[[], list[Answer]], float] = {}
        self._told: tuple[Any, Any] = None, None  # the last reason, and its plain form
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
        return bool(self._peers)

    def step(self, timeout_s: float | None = None) -> bool:
        """Wait for messages, and answer those that have come; returns whether some have."""
        referee = self.referee
        if self._due or referee.wants_tick or referee.is_unsure:
            now, due = self._clock(), {}
            if referee.wants_tick:
                due[referee.tick] = self._due.get(referee.tick, now + TICK_S)
            if referee.is_unsure:
                due[referee.silent] = self._due.get(referee.silent, now + SILENT_S)
            self._due = due
            limits = [max(0.0, at - now) for at in due.values()]
            timeout_s = min([*limits, *([] if timeout_s is None else [timeout_s])], default=None)
        has_heard = self._hub.step(timeout_s)
        for act in [act for act, at in self._due.items() if self._clock() >= at]:
            del self._due[act]
            self._answer(act())
        for stream in self._streams:
            stream.flush()
        return has_heard

    # ------------------------------------------------------------- connections

    def _join(self, send: Send) -> Send:
        return functools.partial(self._hear, Peer(send))

    def _accept_relays(self, listener: Listener) -> None:
        """A thread's loop: who is slow to authenticate keeps nobody waiting."""
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
                self._streams.remove(stream)
                self._hub.drop(stream.connection)
                frames = [(number, b"") for number in threads]
            for number, frame in frames:
                if number not in threads:
                    threads[number] = self._join(functools.partial(stream.queue, number))
                (threads[number] if frame else threads.pop(number))(frame)

        self._hub.watch(stream.connection, read)

    # ------------------------------------------------------------------ messages

    def _hear(self, peer: Peer, frame: bytes) -> None:
        """Give what a rank has said to the referee; without a frame it is gone."""
        rank, lane, referee = peer.rank, peer.lane, self.referee
        match unpack(frame) if frame else ("gone",):
            case ["launch", site, given, folded]:
                program, place = peer.sites[site]
                now = self._clock()
                self._answer(referee.launch(rank, lane, program, given, folded, place, now))
            case ["site", site, processes, fingerprint, name, signature, meets_all, *where]:
                key = processes, fingerprint
                program = Program(*key, name, signature, meets_all=meets_all)
                peer.sites[site] = self._programs.setdefault(key, program), Place(*where)
            case ["hello", *hello]:
                peer.rank, peer.lane, *_ = hello
                self._peers[peer.rank, peer.lane] = peer
                self._answer(referee.hello(*hello))
            case ["gone"]:
                if self._peers.pop((rank, lane), None) is not None:
                    self._answer(referee.gone(rank, lane))
            case ["arrive", spec]:
                self._answer(referee.arrive(rank, CellSpec(**spec)))
            case ["end", *how]:
                self._answer(referee.end(rank, *how))
            case ["withdraw" | "unmade" as word, *which]:
                self._answer(getattr(referee, word)(rank, lane, *which))
            case ["stop", seq]:
                self._answer(referee.stop(seq))
            case ["look", number, launches]:
                looked = referee.look(self._clock(), launches).plain()
                connected = sorted(rank for rank, lane in self._peers if lane == BASE)
                peer.send(pack("answer", number, {**looked, "connected": connected}))

    def _answer(self, answers: list[Answer]) -> None:
        for answer in answers:
            if (peer := self._peers.get((answer.rank, answer.lane))) is None:
                continue  # it has died
            word, _, _, number, why, tells, is_alone = answer
            if word == "go":
                peer.send(b"g" if is_alone else pack("go", number))
            elif word == "skip":
                assert why is not None
                peer.send(pack(word, number, asdict(why)))
            else:
                if why is not self._told[0]:  # it mostly goes to all ranks
                    self._told = why, why.plain() if isinstance(why, Refusal) else None
                peer.send(pack(word, number, self._told[1], tells))
