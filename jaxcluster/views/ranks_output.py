"""Several ranks' outputs, live: in a notebook one display, in a terminal lines with their ranks."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.model.lines import Line, Lines, fit, label
from jaxcluster.model.outputs import CellRecord
from jaxcluster.views import cell_outputs
from jaxcluster.views.comms import shown_by
from jaxcluster.views.displays import Display
from jaxcluster.views.statusline import StatusLine
from jaxcluster.views.throttle import Throttle

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster


class Together(Throttle):
    """Shows the output of a cell's ranks so far, in groups of ranks with equal output.

    Args:
      shell: IPython's, of a notebook.
      record: the cell's, which the ranks' outputs are added to.
    """

    def __init__(self, shell: Any, cluster: Cluster, record: CellRecord) -> None:
        super().__init__()
        self._display = Display(shell)
        self._cluster = cluster
        self._record = record
        self._last: Any = None

    def add(self, output: wire.RankOutput) -> None:
        """A rank has more output; the record has it."""
        self.more()

    def pause(self) -> None:
        """Something else is about to be shown."""

    def show(self) -> None:
        """All groups again, if they have changed."""
        shown = cell_outputs.document(
            self._record,
            list(self._record.ranks),
            lambda outputs: shown_by(self._cluster, outputs),
        )
        if shown == self._last or (shown is None and not self._display.is_shown):
            return
        self._last = shown
        bundle = {"text/plain": ""} if shown is None else cell_outputs.bundle(shown)
        self._display.show(bundle)


class InTerminal(Throttle):
    """Shows the ranks' lines as they end: ``[rank 2] step 3``; lines that come together, once.

    On a terminal the first rank's unfinished line, a progress bar perhaps, stands below all others.

    Args:
      first: that rank.
      status: the line below all of them.
      is_terminal: whether what is written can be wiped again; None to find out.
    """

    share = 1

    def __init__(
        self, first: int, status: StatusLine | None = None, is_terminal: bool | None = None
    ) -> None:
        super().__init__()
        self._first = first
        self._status = status or StatusLine()
        if is_terminal is None:
            is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self._is_terminal = is_terminal
        self._lines = Lines()
        self._lock = threading.Lock()  # outputs come while others are shown
        self._shown = ""  # the unfinished line

    def add(self, output: wire.RankOutput) -> None:
        """A rank has more output."""
        content = output.content
        with self._lock:
            if output.kind == "stream":
                self._lines.add(output.rank, content["name"], content["text"])
            elif "array" not in content:
                plain = (content.get("data") or {}).get("text/plain")
                self._lines.add(output.rank, "stdout", f"{plain}\n" if plain else "")
        self.more()

    def pause(self) -> None:
        """Something else is about to be written, below all that is there."""
        self.now()
        if self._shown:
            self._shown = ""
            with self._status.room():
                print(flush=True)
                self._status.writes("\n")

    def finish(self) -> None:
        """Show all that there is."""
        with self._lock:
            self._lines.end()
        super().finish()

    def show(self) -> None:
        """The lines that have ended, and the first rank's unfinished one."""
        with self._lock:
            groups = self._lines.take()
            unfinished = self._lines.open_line(self._first) if self._is_terminal else ""
        if unfinished:
            unfinished = fit(label([self._first]) + unfinished, shutil.get_terminal_size().columns)
        if not groups and unfinished == self._shown:
            return
        with self._status.room():
            self._write(groups, unfinished)
            self._status.writes(unfinished or "\n")

    def _write(self, groups: list[tuple[Sequence[int], list[Line]]], unfinished: str) -> None:
        if self._shown:
            _write("stdout", "\r\x1b[K")
        said = [
            (name, f"{label(ranks)}{line}\n") for ranks, lines in groups for name, line in lines
        ]
        for name, texts in itertools.groupby(said, lambda one: one[0]):
            _write(name, "".join(text for _, text in texts))
        _write("stdout", unfinished)
        self._shown = unfinished


def _write(name: str, text: str) -> None:
    target = sys.stderr if name == "stderr" else sys.stdout
    target.write(text)
    target.flush()
