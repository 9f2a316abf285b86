"""Calls a function soon after something new has come: once for much that comes together."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable

AFTER_S = 0.2  # that outputs are collected before they are shown


def start_in_cell(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread whose displays stand under the cell that starts it: in a copy of its context."""
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
    thread.start()
    return thread


class Throttle:
    """Calls ``show`` on a thread of its own, one call at a time, after there was ``more``.

    Attributes:
      share: of the time, at most one part in so many goes into showing. What is to be shown grows
        meanwhile: only if each call shows all again should it be much more than 1.
    """

    share: float = 10

    def __init__(self) -> None:
        self._pause_s = AFTER_S
        self._waiting: threading.Thread | None = None
        self._is_over = threading.Event()
        self._one_call = threading.Lock()

    def show(self) -> None:
        """Show all that there is."""
        raise NotImplementedError

    def more(self) -> None:
        """There is more to show: it is shown in a moment."""
        if self._waiting is None or not self._waiting.is_alive():
            self._waiting = start_in_cell(self._show_later, "jaxcluster-outputs")

    def now(self) -> None:
        """Show it now."""
        with self._one_call:
            began = time.monotonic()
            self.show()
            self._pause_s = max(AFTER_S, self.share * (time.monotonic() - began))

    def finish(self) -> None:
        """Show all that there is; nothing more comes."""
        self._is_over.set()
        if self._waiting is not None:
            self._waiting.join()
        self.now()

    def _show_later(self) -> None:
        if not self._is_over.wait(self._pause_s):
            try:
                self.now()
            except Exception:  # the end of the cell shows it, or says why it can't
                logging.getLogger(__name__).exception("outputs could not be shown")
