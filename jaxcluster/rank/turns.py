"""A rank's way to the referee for all that is no launch: whose turn the main thread has.

Cells, and what is done to variables between cells, begin when the referee says so: at the same
place among all notebooks' cells on all ranks.
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
from jaxcluster.agreement.frames import BUFFER, unpack
from jaxcluster.agreement.refusals import Refusal
from jaxcluster.rank.control import ControlChannel, Request
from jaxcluster.wire.ops.agreement import Look

SOON_S = 0.3  # that a rank has to come to a launch after a stop or a death, then it is interrupted
FAILED_S = 2.0  # ... and after another rank failed


@dataclass
class Turn:
    """What the main thread is to do when it has its turn.

    Attributes:
      request: it has a ``turn``.
      begin: called on the main thread; what it does ends with ``Agreement.end``.
      skip: called with a reason, on the control thread, if it is not to be done.
      waits: it has not been given.
      is_pressed: a stop was asked for here, or it has failed.
    """

    request: Request[Any]
    begin: Callable[[], None]
    skip: Callable[[wire.Skipped], None]
    waits: bool = True
    is_pressed: bool = False


class Turns:
    """The turns of one rank.

    Attributes:
      interrupt: called some time after a turn was closed, with its seq and whether it was stopped.
      taken: the seq of the last turn that the main thread was given.
    """

    def __init__(self, control: ControlChannel, agreement: Agreement) -> None:
        self._control, self._agreement = control, agreement
        self._turns: dict[int, Turn] = {}  # until they are over on all ranks
        self._asked: dict[int, Request[Look]] = {}
        self._base: socket.socket | None = None
        self.interrupt: Callable[[int, bool], None] = lambda seq, is_stop: None
        self.taken = 0

    def __len__(self) -> int:
        """How many wait."""
        return sum(turn.waits for turn in list(self._turns.values()))

    def connect(self, path: str) -> None:
        """On the main thread, before any launch. ``path``: of the referee's socket on this host.

        Raises:
          OSError: the referee can't be reached.
        """
        self._base = self._agreement.connect(path)
        self._base.setblocking(False)
        self._control.watch(self._base.fileno(), self._hear)

    def arrive(self, turn: Turn) -> None:
        """Wait for a turn. The control thread."""
        spec = turn.request.body.turn
        self._turns[spec.seq] = turn
        self._agreement.tell("arrive", spec)

    def stop(self, seq: int | None) -> bool:
        """Don't give this turn, on any rank, and stop it if it has begun; None: all that run.

        Returns:
          whether that was asked of this rank before, or its turn was closed for another reason: so
          it is to be interrupted at once.
        """
        self._agreement.stop(seq)
        turn = self._turns.get(self.taken if seq is None else seq)
        if turn is None or turn.is_pressed:
            return turn is not None
        turn.is_pressed = True
        return False

    def look(self, request: Request[Look]) -> None:
        """``Look``: who waits for whom, when the referee has answered. The control thread."""
        number = time.monotonic_ns()
        self._asked[number] = request
        self._agreement.tell("look", number, request.body.launches)

    def _hear(self) -> None:
        """Take what the referee has said. The control thread."""
        assert self._base is not None
        try:
            frame = self._base.recv(BUFFER)
        except BlockingIOError:
            return
        except OSError:
            frame = b""
        if not frame:
            self._control.unwatch(self._base.fileno())
            return
        told = unpack(frame)
        seq = told.number
        match told.word:
            case "run":
                self.taken = seq
                self._turns[seq].waits = False
                self._control.call_main(self._turns[seq].begin)
            case "skip":
                if (turn := self._turns.pop(seq, None)) is not None and turn.waits:
                    turn.skip(told.skipped)
            case "closed":
                self._on_closed(seq, told.refusal, told.tells)
            case "over":
                if (over := self._turns.pop(seq, None)) is not None and told.tells:
                    over.request.send("over", wire.Over(seq, told.refusal))
            case "looked":
                self._asked.pop(seq).reply(told.looked)

    def _on_closed(self, seq: int, refusal: Refusal, tells: bool) -> None:
        """Nothing more is launched in a turn: a main thread without launches is interrupted."""
        if (turn := self._turns.get(seq)) is not None:
            if tells:
                turn.request.send("closed", wire.Closed(seq, refusal))
            turn.is_pressed = turn.is_pressed or refusal.kind != "stopped"
        wait_s = SOON_S if refusal.kind in ("stopped", "died") else FAILED_S
        told = seq, refusal.kind == "stopped"
        try:
            timer = threading.Timer(wait_s, self.interrupt, told)
            timer.name, timer.daemon = "jaxcluster-interrupt", True
            timer.start()
        except RuntimeError:  # no thread can be started: a limit, or a cell's ``excepthook``
            self.interrupt(*told)
