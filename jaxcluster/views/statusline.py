"""The one line under a running cell that says what it waits for, in a notebook.

The next one takes its place. At the end it is gone. A terminal and a log have notices now and then.
"""

from __future__ import annotations

from typing import Any

from jaxcluster.cluster.questions import is_console
from jaxcluster.views.displays import Display
from jaxcluster.views.message import bundle


class StatusLine:
    """One display, which is made when there is something to say.

    Args:
      shell: IPython's, of a notebook.
    """

    def __init__(self, shell: Any) -> None:
        self._display, self._shown = Display(shell), ""

    def show(self, told: str) -> None:
        """Show this now; "" for nothing."""
        if told or self._shown:
            self._publish(told)

    def writes(self, text: str) -> None:
        """Take in what is about to be written above it.

        A display in the middle of a progress bar would leave its first half as it was then. So the
        display is made before a bar begins, above it, and says nothing yet.
        """
        if not self._display.is_shown and "\r" in text.replace("\r\n", "\n"):
            self._publish("")

    def _publish(self, told: str) -> None:
        self._shown = told
        # An empty text takes no room in JupyterLab.
        self._display.show(bundle(told) if told else {"text/plain": ""})


def status_line(shell: Any) -> StatusLine | None:
    """The one below the cell that runs in this IPython; None where displays are not updated."""
    return StatusLine(shell) if hasattr(shell, "kernel") and not is_console() else None
