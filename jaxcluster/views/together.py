"""Several ranks' outputs in a notebook, live: one display, which is brought up to date."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from jaxcluster.model.outputs import CellRecord
from jaxcluster.views import cell_outputs
from jaxcluster.views.comms import shown_by

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

AFTER_S = 0.2  # that outputs are collected before they are shown
SHARE = 10  # of the time, at most one part in so many goes into showing


class Together:
    """Shows what a cell's ranks have put out so far, in groups of ranks that put out the same.

    Args:
      shell: IPython's, of a notebook.
      record: the cell's, which the ranks' outputs are added to.
    """

    def __init__(self, shell: Any, cluster: Cluster, record: CellRecord) -> None:
        self._shell = shell
        self._cluster = cluster
        self._record = record
        self._id = uuid.uuid4().hex
        self._is_shown = False
        self._last: Any = None
        self._pause_s = AFTER_S
        self._waiting: threading.Thread | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()

    def more(self) -> None:
        """There is more to show: it is, in a moment."""
        if self._waiting is not None and self._waiting.is_alive():
            return
        # A copy of the context keeps displays on the thread under this cell.
        run = contextvars.copy_context().run
        self._waiting = threading.Thread(
            target=run, args=(self._show_later,), name="jaxcluster-outputs", daemon=True
        )
        self._waiting.start()

    def finish(self) -> None:
        """Show all that there is."""
        self._is_over.set()
        if self._waiting is not None:
            self._waiting.join()
        self._show()

    def _show_later(self) -> None:
        if not self._is_over.wait(self._pause_s):
            try:
                self._show()
            except Exception:  # the end of the cell shows it, or says why it can't
                logging.getLogger(__name__).exception("outputs could not be shown")

    def _show(self) -> None:
        with self._lock:
            began = time.monotonic()
            shown = cell_outputs.document(
                self._record,
                list(self._record.ranks),
                lambda outputs: shown_by(self._cluster, outputs),
            )
            if shown == self._last or (shown is None and not self._is_shown):
                return
            self._last = shown
            bundle = {"text/plain": ""} if shown is None else cell_outputs.bundle(shown)
            self._shell.display_pub.publish(
                bundle, {}, transient={"display_id": self._id}, update=self._is_shown
            )
            self._is_shown = True
            self._pause_s = max(AFTER_S, SHARE * (time.monotonic() - began))
