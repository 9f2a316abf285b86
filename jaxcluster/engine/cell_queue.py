"""The cells that have come to a rank and do not run yet, in the order of all notebooks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.control import DEFERRED, ControlChannel, Request

LATE = "the cell came when a later one had begun there, and was not run"
KEPT = 32  # sources
HOLD_S = 2.0  # that a cell waits for the one before it, which another notebook has sent


class CellQueue:
    """Gives the main thread the cells that come, each in its turn.

    Args:
      rank: whose cells they are.
      begin: takes a cell, on the main thread; one that does not wait (``waits``) is not run.

    Attributes:
      taken: the seq of the last cell that the main thread was given.
    """

    def __init__(
        self,
        rank: int,
        control: ControlChannel,
        begin: Callable[[Request[wire.CellRequest], wire.CellRequest], None],
    ) -> None:
        self.taken = 0
        self.sources: dict[int, str] = {}  # of the last cells that were taken, by seq
        self._rank, self._control = rank, control
        self._begin = begin
        # Cells that have come and do not run yet, by seq; and those of them that come too early.
        self._waiting: dict[int, Request[wire.CellRequest]] = {}
        self._held: dict[int, Request[wire.CellRequest]] = {}
        self._order = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, seq: int) -> bool:
        """Whether a cell waits for its turn yet. Any thread."""
        return seq in self._waiting

    def withdraw(self, seq: int) -> Request[wire.CellRequest] | None:
        """Take a cell from those that wait: it begins now, or is not run at all. Any thread.

        None: it waits no longer, or has not come.
        """
        return self._waiting.pop(seq, None)

    def on_cell(self, request: Request[wire.CellRequest]) -> Any:
        """Handler of ``cell``, on the control thread: run it in its turn and reply at its end.

        It counts as waiting from here on, so that it can be interrupted while the main thread is
        in another cell.
        """
        cell = request.body
        with self._order:
            # One behind it has begun without it: other ranks run them in another order.
            if is_late := cell.seq < self.taken:
                self._control.call_main(functools.partial(self._begin, request, cell))
            else:
                self._waiting[cell.seq] = self._held[cell.seq] = request
        if is_late:
            error = wire.ErrorInfo(wire.TOO_LATE, LATE, [])
            request.reply(wire.CellReply(self._rank, cell.seq, "error", 0.0, error))
        self._hand_over()
        return DEFERRED

    def _hand_over(self, overdue: int | None = None) -> None:
        """Give the main thread the cells that have come, in the order of all notebooks.

        One whose predecessor is not here yet is held back; ``overdue`` is one that has been held
        back for long enough: the predecessor's notebook must have died over it.
        """
        with self._order:
            while self._held:
                seq = min(self._held)
                request = self._held[seq]
                cell = request.body
                if cell.after > self.taken and seq != overdue:
                    timer = threading.Timer(HOLD_S, self._hand_over, [seq])
                    timer.daemon = True
                    timer.name = "jaxcluster-held-back"
                    timer.start()
                    return
                del self._held[seq]
                self.taken = max(self.taken, seq)
                self.sources[seq] = cell.source
                if len(self.sources) > KEPT:
                    del self.sources[next(iter(self.sources))]
                self._control.call_main(functools.partial(self._begin, request, cell))
