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
from jaxcluster.agreement.frames import LAUNCH, Hub, Stream, Thread, pack, unpack
from jaxcluster.agreement.referee import Referee
from jaxcluster.agreement.refusals import Place, Program, Refusal


class Server(Hub):
    """Gives what ranks say to a ``Referee``, and its answers to the ranks.

    Args:
      num_ranks: of the cluster.
      path: of the Unix socket. Whoever can open it is trusted.
      key: what relays have to know.
      clock: in seconds.

    Attributes:
      port: where it hears relays.
    """

    def __init__(
        self,
        num_ranks: int,
        path: str,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path)
        self.referee = Referee(num_ranks)
        self.port = 0
        self._key, self._clock = key, clock
        self._programs: dict[tuple[tuple[int, ...], int], Program] = {}
        self._sites: dict[Thread, dict[int, tuple[Program, Place]]] = {}
        self._streams: list[Stream] = []
        self._patience_s: float | None = None  # the referee's, and when it ends
        self._until = 0.0
        self._told: tuple[Any, Any] = None, None  # the last reason, and its plain form

    def listen(self, address: str) -> None:
        """Hear relays of other hosts at this address, too."""
        family = "AF_INET6" if ":" in address else "AF_INET"
        listener = Listener((address, 0), family, 512, authkey=self._key.encode())
        self.port = int(listener.address[1])

        def accept() -> None:  # on a thread: who is slow to authenticate keeps nobody waiting
            while True:
                with contextlib.suppress(OSError, EOFError, AuthenticationError):
                    self._add_relay(Stream(listener.accept()))

        threading.Thread(target=accept, name="jaxcluster-relays", daemon=True).start()

    def serve(self) -> None:
        """Never returns."""
        while True:
            self.step()

    def step(self, timeout_s: float | None = None) -> bool:
        """Wait for messages, and answer those that have come; returns whether some have."""
        if (patience_s := self.referee.patience_s) is not None:
            if patience_s != self._patience_s:
                self._until = self._clock() + patience_s
            left_s = max(0.0, self._until - self._clock())
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
        self._patience_s = patience_s
        has_heard = super().step(timeout_s)
        if patience_s is not None and self._clock() >= self._until:
            self._patience_s = None
            self._answer(self.referee.tick())
        for stream in self._streams:
            stream.flush()
        return has_heard

    def _add_relay(self, stream: Stream) -> None:
        threads: set[Thread] = set()
        self._streams.append(stream)

        def read(_: int) -> None:
            try:
                frames = stream.receive()
            except (OSError, EOFError):
                self._streams.remove(stream)
                self.drop(stream.connection)
                frames = [(thread, b"") for thread in threads]
            for thread, frame in frames:
                (threads.add if frame else threads.discard)(thread)
                self.take(thread, frame, functools.partial(stream.queue, thread))

        self.watch(stream.connection, read)

    # ------------------------------------------------------------------ messages

    def hear(self, thread: Thread, frame: bytes) -> None:
        """Give what a rank has said to the referee; without a frame it is gone."""
        (rank, lane), referee = thread, self.referee
        if frame[:1] == b"L":
            _, site, given, folded = LAUNCH.unpack(frame)
            program, place = self._sites[thread][site]
            now = self._clock()
            self._answer(referee.launch(rank, lane, program, given, folded, place, now))
            return
        match unpack(frame) if frame else ("gone",):
            case ["site", site, processes, fingerprint, name, signature, meets_all, *where]:
                key = processes, fingerprint
                program = Program(*key, name, signature, meets_all=meets_all)
                program = self._programs.setdefault(key, program)
                self._sites[thread][site] = program, Place(*where)
            case ["hello", *hello]:
                self._sites[thread] = {}
                self._answer(referee.hello(*hello))
            case ["gone"]:
                if self._sites.pop(thread, None) is not None:
                    self._answer(referee.gone(rank, lane))
            case ["arrive", spec]:
                self._answer(referee.arrive(rank, CellSpec(**spec)))
            case ["end", *how]:
                self._answer(referee.end(rank, *how))
            case ["withdraw"]:
                self._answer(referee.withdraw(rank, lane))
            case ["unmade"]:
                self._answer(referee.unmade(rank, lane))
            case ["stop", seq]:
                self._answer(referee.stop(seq))
            case ["look", number, launches]:
                looked = referee.look(self._clock(), launches).plain()
                connected = sorted(rank for rank, lane in self.sends if lane == BASE)
                told = pack("answer", number, {**looked, "connected": connected})
                self.sends[thread](told)

    def _answer(self, answers: list[Answer]) -> None:
        for word, rank, lane, number, why, tells, is_alone in answers:
            if (send := self.sends.get((rank, lane))) is None:
                continue  # it has died
            if word == "go":
                send(b"g" if is_alone else pack("go", number))
                continue
            if why is not self._told[0]:  # it mostly goes to all ranks
                plain = why.plain() if isinstance(why, Refusal) else why and asdict(why)
                self._told = why, plain
            send(pack(word, number, self._told[1], tells))
