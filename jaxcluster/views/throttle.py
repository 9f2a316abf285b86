"""Calls a function soon after something new has come: once for much that comes together."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable

AFTER_S = 0.2  # that outputs are collected before they are shown
SHARE = 10  # of the time, one part in so many goes into showing, where nothing else is said


def start_in_cell(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread whose displays stand under the cell that starts it: in a copy of its context."""
    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
    thread.start()
    return thread


class Throttle:
    """Calls ``show`` on a thread of its own, one call at a time, after there was ``more``.

    Args:
      show: shows all that there is.
      share: of the time, at most one part in so many goes into showing. What is to be shown grows
        meanwhile: only where each call shows all again is it to be much more than 1.
    """

    def __init__(self, show: Callable[[], None], share: float = SHARE) -> None:
        self._show_all = show
        self._pause_s = AFTER_S
        self._share = share
        self._waiting: threading.Thread | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()

    def more(self) -> None:
        """There is more to show: it is, in a moment."""
        if self._waiting is not None and self._waiting.is_alive():
            return
        self._waiting = start_in_cell(self._show_later, "jaxcluster-outputs")

    def now(self) -> None:
        """Show all that there is."""
        with self._lock:
            began = time.monotonic()
            self._show_all()
            self._pause_s = max(AFTER_S, self._share * (time.monotonic() - began))

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
