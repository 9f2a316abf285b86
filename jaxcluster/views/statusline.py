"""The one line under a running cell that says what it waits for: in a page, a terminal, a log.

The next one takes its place. At the end it is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from jaxcluster.cluster.questions import is_console
from jaxcluster.model.lines import fit
from jaxcluster.views.displays import Bundle, Display
from jaxcluster.views.message import bundle


class StatusLine:
    """The line in a log, in which nothing can be written over: there it is not shown.

    Notices say it now and then.

    Attributes:
      is_written_over: whether the next one takes its place.
      is_kept: what it shows last stays, as in a notebook that is saved.
    """

    is_written_over = is_kept = False

    def show(self, told: str) -> None:
        """Show this now; "" for nothing."""

    def room(self) -> AbstractContextManager[None]:
        """While it lasts something else may be written, above the line."""
        return contextlib.nullcontext()

    def writes(self, text: str) -> None:
        """What is written there ends so. Within ``room``, in a page before it is written."""


def status_line(shell: Any, form: Callable[[str], Bundle] = bundle) -> StatusLine:
    """The one below the cell that runs in this IPython; ``form``: how a page shows it."""
    if hasattr(shell, "kernel") and not is_console():
        return InPage(shell, form)
    return OnTerminal() if can_write_over() else StatusLine()


def can_write_over() -> bool:
    """Whether both streams of this process lead to a terminal that moves its cursor."""
    is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    return not is_dumb and all(s is not None and s.isatty() for s in (sys.stdout, sys.stderr))


class InPage(StatusLine):
    """In a notebook: one display, which is made when there is something to say.

    Args:
      shell: IPython's.
      form: how it is shown.
    """

    is_written_over = is_kept = True

    def __init__(self, shell: Any, form: Callable[[str], Bundle] = bundle) -> None:
        self._display, self._form = Display(shell), form
        self._shown = ""

    def show(self, told: str) -> None:
        if told or self._shown:
            self._publish(told)

    def writes(self, text: str) -> None:
        """A display in the middle of a progress bar would leave its first half as it was then.

        So the display is made before a bar begins, above it, and says nothing yet.
        """
        if not self._display.is_shown and "\r" in text.replace("\r\n", "\n"):
            self._publish("")

    def _publish(self, told: str) -> None:
        self._shown = told
        # An empty text takes no room in JupyterLab.
        self._display.show(self._form(told) if told else {"text/plain": ""})


class OnTerminal(StatusLine):
    """Below the last line that was written; not below one that has no end yet, such as a bar.

    Args:
      write: writes to the terminal, which is standard error here.
    """

    is_written_over = True

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr
        self._lock = threading.RLock()  # ranks' lines are written on another thread
        self._told = ""
        self._is_open = False  # the last line that was written has no end yet

    def show(self, told: str) -> None:
        with self._lock:
            self._draw("")
            self._told = told
            self._draw(told)

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        with self._lock:
            self._draw("")
            try:
                yield
            finally:
                self._draw(self._told)

    def writes(self, text: str) -> None:
        if text:
            self._is_open = not text.endswith("\n")

    def _draw(self, told: str) -> None:
        if self._told and not self._is_open:
            columns = max(20, shutil.get_terminal_size().columns)
            self._write(f"\r\x1b[K{fit(told, columns)}\r")


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
