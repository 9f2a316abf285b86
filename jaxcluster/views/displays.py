"""Displays below a notebook's cell besides its output, which may change later."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from jaxcluster.cluster.running import start_in_cell

Bundle = dict[str, Any]  # what is shown, by its MIME type
STYLE = "color: var(--jp-ui-font-color2, #616161); white-space: pre-wrap"
AFTER_S = 0.2  # outputs are collected for so long


@functools.cache
def is_console() -> bool:
    """Whether this kernel's page is a terminal (jupyter console), which updates no displays.

    It says so nowhere; but the kernel is its child.
    """
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(re.search(rb"(^|/)jupyter[-_]console$|^console$", word) for word in words[:4])


class Display:
    """A place in a notebook's output, for one MIME bundle in place of the other."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._id, self.is_shown = shell, "", False

    def show(self, bundle: Bundle) -> None:
        self._id = self._id or uuid.uuid4().hex  # not before: most cells have one, and show none
        place = {"display_id": self._id}
        self._shell.display_pub.publish(bundle, {}, transient=place, update=self.is_shown)
        self.is_shown = True

    def refresh(self, bundle: Bundle) -> None:
        """Show this in place of what it shows, and count as no use of the kernel. Any thread.

        Jupyter's server takes most messages of a kernel as use of it. It does not count a message
        if it tracks neither the message's type nor the type that it answers
        (``MappingKernelManager.untracked_message_types``).
        """
        if not self.is_shown:
            self.show(bundle)
            return
        kernel = self._shell.kernel
        session = kernel.session
        session.send(
            kernel.iopub_socket,
            "update_display_data",
            {"data": bundle, "metadata": {}, "transient": {"display_id": self._id}},
            parent={"header": session.msg_header("kernel_info_request")},
            ident=f"kernel.{kernel.ident}.update_display_data".encode(),
        )


# --------------------------------------------------------------------------- messages


def show_message(shell: Any, message: str) -> None:
    """Show a message to the user under the cell, dimmed; on stderr in a terminal.

    It is no output of a cell's code, and no error.
    """
    if hasattr(shell, "kernel"):
        shell.display_pub.publish(dimmed(message.rstrip("\n")))
    else:
        print(message.removesuffix("\n"), file=sys.stderr, flush=True)


def dimmed(told: str) -> Bundle:
    """A notice under a cell."""
    return {"text/plain": told, "text/html": f'<div style="{STYLE}">{escape(told)}</div>'}


# --------------------------------------------------------------------------- later


class Throttle:
    """Calls ``show`` on another thread, one call at a time, after there was ``more``.

    Args:
      show: shows all that there is.
      share: of the time, at most one part in so many goes into showing. The output grows
        meanwhile: only if each call shows all again should it be much more than 1.
    """

    def __init__(self, show: Callable[[], None], share: float = 10) -> None:
        self._show, self._share = show, share
        self._pause_s = AFTER_S
        self._waiting: threading.Thread | None = None
        self._is_over = threading.Event()
        self._one_call = threading.Lock()

    def more(self) -> None:
        """There is more to show: it is shown in a moment."""
        if self._waiting is None or not self._waiting.is_alive():
            self._waiting = start_in_cell(self._show_later, "jaxcluster-outputs")

    def now(self) -> None:
        """Show it now."""
        with self._one_call:
            began = time.monotonic()
            self._show()
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
