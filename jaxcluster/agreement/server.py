"""The referee's process: hears ranks on a Unix socket, and the relays of other hosts on TCP.

Each thread of a rank that launches has a connection of its own, and its control thread another one,
by whose end the death of the rank shows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener

from jaxcluster.agreement.cells import BASE, Answer
from jaxcluster.agreement.frames import LAUNCH, Hub, Stream, Thread, pack, unpack
from jaxcluster.agreement.referee import Referee
from jaxcluster.agreement.refusals import Place, Program


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
        self._streams.append(stream)

        def read(_: int) -> None:
            try:
                frames = stream.receive()
            except OSError:
                self._streams.remove(stream)
                self.drop(stream.socket)
                frames = [(one, b"") for one, send in self.sends.items() if send == stream.queue]
            for thread, frame in frames:
                self.take(thread, frame, stream.queue)

        self.watch(stream.socket, read)

    # ------------------------------------------------------------------ messages

    def hear(self, thread: Thread, frame: bytes) -> None:
        """Give what a rank has said to the referee; without a frame it is gone."""
        (rank, lane), referee = thread, self.referee
        if frame[:1] == b"L":
            _, site, given, folded = LAUNCH.unpack(frame)
            program, place = self._sites[thread][site]
            now = self._clock()
            if answers := referee.launch(rank, lane, program, given, folded, place, now):
                self._answer(answers)
            return
        match unpack(frame) if frame else ("gone",):
            case "site", site, program, place:
                key = program.processes, program.fingerprint
                self._sites[thread][site] = self._programs.setdefault(key, program), place
            case "hello", *hello:
                self._sites[thread] = {}
                referee.hello(*hello)
            case ("gone",):
                if self._sites.pop(thread, None) is not None:
                    self._answer(referee.gone(rank, lane))
            case "arrive", spec:
                self._answer(referee.arrive(rank, spec))
            case "end", end:
                self._answer(referee.end(rank, end))
            case ("unmade",):
                referee.unmade(rank, lane)
            case ("withdraw",):
                self._answer(referee.withdraw(rank, lane))
            case "stop", seq:
                self._answer(referee.stop(seq))
            case "look", number, launches:
                looked = referee.look(self._clock(), launches)
                looked.connected.extend(sorted(r for r, name in self.sends if name == BASE))
                self._answer([Answer("looked", rank, lane, number, looked=looked)])

    def _answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            thread = answer[1:3]
            if (send := self.sends.get(thread)) is not None:  # else it has died
                number = b"%d" % answer.number if answer.number else b""
                send(thread, b"g" + number if answer.word == "go" else pack(answer))
