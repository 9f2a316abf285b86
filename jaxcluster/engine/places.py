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


class Places:
    """Tells where launches are made. Called before each launch, so it is some microseconds.

    Args:
      cells: the numbers of cells, by the names of their files.
    """

    def __init__(self, cells: Mapping[str, int]) -> None:
        self._cells = cells
        self._known: dict[tuple[str, int, str, int], Place] = {}

    def of(self, frame: FrameType | None) -> Place:
        """The innermost line of a cell, and the innermost line of another file that it has called.

        Lines of jax, the standard library and the kernel tell nothing.
        """
        inner: FrameType | None = None
        while frame is not None and (file := frame.f_code.co_filename) not in self._cells:
            if inner is None and is_telling_file(file):
                inner = frame
            frame = frame.f_back
        if frame is None and inner is None:
            return NOWHERE
        key = (*_at(frame), *_at(inner))
        if (known := self._known.get(key)) is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[key] = self._told(*key)
        return known

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


def _at(frame: FrameType | None) -> tuple[str, int]:
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if (magic := _MAGIC.fullmatch(text)) is not None:
        text = "%" + " ".join(ast.literal_eval(f"[{magic[1]}]")).rstrip()
    return text[:SOURCE_CHARS]
