"""Several ranks' outputs, live: in a notebook one display, in a terminal lines with their ranks."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

from jaxcluster import wire
from jaxcluster.model.lines import Lines, label
from jaxcluster.model.outputs import CellRecord
from jaxcluster.views import cell_outputs
from jaxcluster.views.displays import Display
from jaxcluster.views.throttle import Throttle


class Together(Throttle):
    """Shows the output of a cell's ranks so far, in groups of ranks with equal output.

    Args:
      shell: IPython's, of a notebook.
      record: the cell's, which the ranks' outputs are added to.
    """

    def __init__(self, shell: Any, record: CellRecord) -> None:
        super().__init__()
        self._display = Display(shell)
        self._record = record
        self._last: Any = None

    def add(self, output: wire.RankOutput) -> None:
        """A rank has more output; the record has it."""
        self.more()

    def pause(self) -> None:
        """Something else is about to be shown."""

    def show(self) -> None:
        """All groups again, if they have changed."""
        shown = cell_outputs.document(self._record, list(self._record.ranks))
        if shown == self._last or (shown is None and not self._display.is_shown):
            return
        self._last = shown
        bundle = {"text/plain": ""} if shown is None else cell_outputs.bundle(shown)
        self._display.show(bundle)


class InTerminal(Throttle):
    """Shows the ranks' lines as they end: ``[rank 2] step 3``; lines that come together, once."""

    share = 1

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()
        self._lock = threading.Lock()  # outputs come while others are shown

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

    def finish(self) -> None:
        """Show all that there is."""
        with self._lock:
            self._lines.end()
        super().finish()

    def show(self) -> None:
        """The lines that have ended."""
        with self._lock:
            groups = self._lines.take()
        said = [
            (name, f"{label(ranks)}{line}\n") for ranks, lines in groups for name, line in lines
        ]
        for name, texts in itertools.groupby(said, lambda one: one[0]):
            target = sys.stderr if name == "stderr" else sys.stdout
            target.write("".join(text for _, text in texts))
            target.flush()
