"""The cells that have come to a rank and do not run yet, in the order of all notebooks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.control import DEFERRED, ControlChannel, Request

HOLD_S = 2.0  # that a cell waits for the one before it, which another notebook has sent
HOLD_NEW_S = 0.1  # on a rank that has run no cell: it may have taken the place of one that had


class CellQueue:
    """Gives the main thread the cells that come, each in its turn.

    Args:
      begin: takes a cell, on the main thread.

    Attributes:
      taken: the seq of the last cell that the main thread was given.
    """

    def __init__(
        self,
        control: ControlChannel,
        begin: Callable[[Request[wire.CellRequest], wire.CellRequest], None],
    ) -> None:
        self.taken = 0
        self._control = control
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
        self._waiting[cell.seq] = request
        with self._order:
            self._held[cell.seq] = request
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
                    hold_s = HOLD_S if self.taken else HOLD_NEW_S
                    timer = threading.Timer(hold_s, self._hand_over, [seq])
                    timer.daemon = True
                    timer.name = "jaxcluster-held-back"
                    timer.start()
                    return
                del self._held[seq]
                self.taken = max(self.taken, seq)
                self._control.call_main(functools.partial(self._begin, request, cell))
