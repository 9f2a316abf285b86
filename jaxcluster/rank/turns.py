"""A rank's way to the referee for all that is no launch: whose turn the main thread has.

Cells, and requests that change variables, begin when the referee says so. So all notebooks' cells
have one order on all ranks.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxcluster import wire
from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.messages import BUFFER, Refusal, unpack
from jaxcluster.rank.control import ControlChannel, Handler, Request
from jaxcluster.wire.ops.status import Look

SOON_S = 0.3  # a rank must make a launch in this time after a stop or a death, or is interrupted
FAILED_S = 2.0  # ... and after another rank failed

Begin = Callable[[Request[Any]], None]
Skip = Callable[[Request[Any], wire.Skipped], None]


@dataclass
class Turn:
    """The main thread's task, once it has its turn.

    Attributes:
      waits: it has not been given.
      is_pressed: a stop was asked of this rank, or it has failed.
    """

    request: Request[Any]
    begin: Begin
    skip: Skip
    waits: bool = True
    is_pressed: bool = False


class Turns:
    """The turns of one rank.

    Args:
      interrupt: called some time after a turn was closed, with its seq and whether it was stopped.

    Attributes:
      taken: the seq of the last turn that the main thread was given.
    """

    def __init__(
        self, control: ControlChannel, agreement: Agreement, interrupt: Callable[[int, bool], None]
    ) -> None:
        self._control, self._agreement, self._interrupt = control, agreement, interrupt
        self._turns: dict[int, Turn] = {}  # until they are over on all ranks
        self._asked: dict[int, Request[Look]] = {}
        self.taken = 0

    def __len__(self) -> int:
        """How many wait."""
        return sum(turn.waits for turn in list(self._turns.values()))

    def connect(self, path: str) -> None:
        """On the main thread, before any launch. ``path``: of the referee's socket on this host.

        Raises:
          OSError: the referee can't be reached.
        """
        referee = self._agreement.connect(path)
        referee.setblocking(False)
        self._control.watch(referee.fileno(), lambda: self._hear(referee))

    def take(self, begin: Begin, skip: Skip) -> Handler:
        """A handler, for the control thread, that has its requests wait for their turns.

        Args:
          begin: called on the main thread; what it does ends with ``Agreement.end``.
          skip: called with a reason, on the control thread, if it is not to be done.
        """

        def arrive(request: Request[Any]) -> None:
            spec = request.body.turn
            self._turns[spec.seq] = Turn(request, begin, skip)
            self._agreement.tell("arrive", spec)

        return arrive

    def in_turn(self, handler: Handler) -> Handler:
        """A handler, for the control thread, that answers each request in its turn among cells."""

        def begin(request: Request[Any]) -> None:
            self._agreement.begin(request.body.turn.seq)
            try:
                request.answer(handler)
            finally:
                self._agreement.end("ok")

        def skip(request: Request[Any], why: wire.Skipped) -> None:
            told = f"rank {why.dead} has died" if why.dead is not None else "it was stopped"
            request.fail(RuntimeError(f"This was not done: {told}."))

        return self.take(begin, skip)

    def stop(self, seq: int | None) -> bool:
        """Don't give this turn, on any rank, and stop it if it has begun; None: all that run.

        Returns:
          whether that was asked before, or it has failed: its code is to be interrupted at once.
        """
        self._agreement.stop(seq)
        turn = self._turns.get(self.taken if seq is None else seq)
        was_pressed = turn is not None and turn.is_pressed
        if turn is not None:
            turn.is_pressed = True
        return was_pressed

    def look(self, request: Request[Look]) -> None:
        """``Look``: who waits for whom, when the referee has answered. The control thread."""
        number = time.monotonic_ns()
        self._asked[number] = request
        self._agreement.tell("look", number, request.body.launches)

    def _hear(self, referee: socket.socket) -> None:
        """Take what the referee has said. The control thread."""
        try:
            frame = referee.recv(BUFFER)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        if not frame:
            self._control.unwatch(referee.fileno())
            return
        match unpack(frame):
            case "run", seq:
                self.taken, given = seq, self._turns[seq]
                given.waits = False
                self._control.call_main(lambda: given.begin(given.request))
            case "skip", seq, why:
                if (turn := self._turns.pop(seq, None)) is not None and turn.waits:
                    turn.skip(turn.request, why)
            case "closed", seq, refusal, tells:
                self._on_closed(seq, refusal, tells)
            case "over", seq, refusal, tells:
                if (over := self._turns.pop(seq, None)) is not None and tells:
                    over.request.send("over", wire.Over(seq, refusal))
            case "looked", number, looked:
                self._asked.pop(number).reply(looked)

    def _on_closed(self, seq: int, refusal: Refusal, tells: bool) -> None:
        """Nothing more is launched in a turn: a main thread without launches is interrupted."""
        is_stop = refusal.kind == "stopped"
        if (turn := self._turns.get(seq)) is not None:
            if tells:
                turn.request.send("closed", wire.Closed(seq, refusal))
            turn.is_pressed = turn.is_pressed or not is_stop
        wait_s = SOON_S if refusal.kind in ("stopped", "died") else FAILED_S
        try:
            timer = threading.Timer(wait_s, self._interrupt, (seq, is_stop))
            timer.name, timer.daemon = "jaxcluster-interrupt", True
            timer.start()
        except RuntimeError:  # no thread can be started: a limit, or a cell's ``excepthook``
            self._interrupt(seq, is_stop)
