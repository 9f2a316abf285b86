"""Where a frame is: a line of a cell, and within it a line of a script, module or library."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping
from types import FrameType

from jaxcluster.agreement.refusals import NOWHERE, Place
from jaxcluster.engine.library_code import is_telling_file, short_name

SOURCE_CHARS = 80  # of a line
KEPT = 4096  # places

# What IPython makes of a line such as "%run train.py".
_MAGIC = re.compile(r"get_ipython\(\)\.run_line_magic\(('\w+', '(?:[^'\\]|\\.)*')\)")

_CELL, _TELLING, _OTHER = "cell", "telling", "other"


class Places:
    """Tells where launches are made. Called before each launch, so it is some microseconds.

    Args:
      cells: the numbers of cells, by the names of their files.
    """

    def __init__(self, cells: Mapping[str, int]) -> None:
        self._cells = cells
        self._kinds: dict[str, str] = {}
        self._num_cells = 0
        self._known: dict[tuple[str, int, str, int], Place] = {}

    def of(self, frame: FrameType | None) -> Place:
        """The innermost line of a cell, and the innermost line of another file that it has called.

        Lines of jax, the standard library and the kernel tell nothing.
        """
        if len(self._cells) != self._num_cells:
            self._kinds, self._num_cells = {}, len(self._cells)
        inner: FrameType | None = None
        while frame is not None:
            file = frame.f_code.co_filename
            kind = self._kinds.get(file) or self._kind_of(file)
            if kind is _CELL:
                break
            if kind is _TELLING and inner is None:
                inner = frame
            frame = frame.f_back
        if frame is None and inner is None:
            return NOWHERE
        key = (
            frame.f_code.co_filename if frame is not None else "",
            frame.f_lineno if frame is not None else 0,
            inner.f_code.co_filename if inner is not None else "",
            inner.f_lineno if inner is not None else 0,
        )
        if (known := self._known.get(key)) is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[key] = self._told(*key)
        return known

    def _kind_of(self, file: str) -> str:
        kind = _TELLING if is_telling_file(file) else _OTHER
        kind = _CELL if file in self._cells else kind
        self._kinds[file] = kind
        return kind

    def _told(self, file: str, line: int, inner: str, inner_line: int) -> Place:
        number, text, within = 0, "", ""
        if file:
            number, text = self._cells[file], _source(file, line)
        if inner:
            source = _source(inner, inner_line)
            within = f"{short_name(inner)} line {inner_line}"
            within += f": {source}" if source else ""
        return Place(number, line, text, within)


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame``, and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if (magic := _MAGIC.fullmatch(text)) is not None:
        text = "%" + " ".join(ast.literal_eval(f"[{magic[1]}]")).rstrip()
    return text[:SOURCE_CHARS]
