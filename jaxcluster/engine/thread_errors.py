"""What a thread of the user's has ended with on this rank.

A loader's thread that fails on one rank alone ends the loop there. Python prints its traceback,
which nobody sees of a rank that is not shown, and the cell itself ends without an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.engine import failures, tracebacks
from jaxcluster.engine.library_code import is_library_file

MESSAGE_CHARS = 200


class ThreadErrors:
    """The last of them.

    Args:
      cells: the file names of cells, and their numbers.
      last_seq: gives the seq of the cell that runs, or has ended last.
    """

    def __init__(self, cells: Mapping[str, int], last_seq: Callable[[], int]) -> None:
        self._cells, self._last_seq = cells, last_seq
        self._last: tuple[int, wire.ThreadError] | None = None
        self._untold: wire.ThreadError | None = None

    def listen(self) -> None:
        """Hear of those to come, before they are shown as ever."""
        show = threading.excepthook

        def hear(args: Any) -> None:
            with contextlib.suppress(Exception):  # the user's classes may do anything
                self._keep(args.thread, args.exc_value)
            show(args)

        threading.excepthook = hear

    def latest(self) -> wire.ThreadError | None:
        """That of the cell that runs or has ended last, or of the one before, whose loader it may
        be."""
        if self._last is None or self._last[0] < self._last_seq() - 1:
            return None
        return self._last[1]

    def take_untold(self) -> wire.ThreadError | None:
        """What no cell's reply has told yet."""
        untold, self._untold = self._untold, None
        return untold

    def _keep(self, thread: threading.Thread | None, error: BaseException | None) -> None:
        if thread is None or error is None or isinstance(error, SystemExit):
            return
        message = wire.shorten(failures.message_of(error).partition("\n")[0], MESSAGE_CHARS)
        name = wire.type_name(type(error))
        told = wire.ThreadError(thread.name, name, message, self._place_of(error))
        self._last, self._untold = (self._last_seq(), told), told

    def _place_of(self, error: BaseException) -> str:
        """``cell [3] line 4`` or ``data.py line 12``: the innermost line of the user's."""
        for at in [*tracebacks.entries(failures.traceback_of(error))][::-1]:
            file = at.tb_frame.f_code.co_filename
            if file in self._cells:
                return f"cell [{self._cells[file]}] line {at.tb_lineno}"
            if not is_library_file(file):
                return f"{os.path.basename(file)} line {at.tb_lineno}"
        return ""
