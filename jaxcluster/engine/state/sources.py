"""The sources of cells, for the tracebacks of functions that outlive the process of their cell."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, MutableMapping
from typing import Any

NAME = "the sources of cells"
KEPT = 2000  # cells, the last ones


class CellSources:
    """Those that this process knows, where Python and IPython look for them.

    Args:
      numbers: the number of each cell, by the name of its file.
      shell: IPython's.
    """

    def __init__(self, numbers: MutableMapping[str, int], shell: Any) -> None:
        self._numbers = numbers
        self._shell = shell

    def read(self) -> dict[str, tuple[int, str]]:
        """By the name of its file the number and the source of each cell. Any thread."""
        found = {}
        for file, number in list(self._numbers.items())[-KEPT:]:
            if lines := linecache.getlines(file):
                found[file] = (number, "".join(lines))
        return found

    def write(self, sources: Mapping[str, tuple[int, str]]) -> None:
        """Know these too, as if the cells had run here."""
        # Where IPython's own name for it has moved, a traceback shows the file's name.
        names = getattr(getattr(self._shell, "compile", None), "_filename_map", {})
        for file, (number, source) in sources.items():
            if file not in self._numbers:
                lines = source.splitlines(keepends=True)
                linecache.cache[file] = (len(source), None, lines, file)
                self._numbers[file] = names[file] = number
