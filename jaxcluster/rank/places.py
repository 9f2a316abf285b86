"""The place of a frame, and which code is not the user's.

A place is a line of a cell, and within it a line of a script, module or library. Frames of JAX, of
debuggers and of ours are folded where the user's lines are to be seen.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import FrameType

from jaxcluster.agreement.messages import Place

JAX = ("jax", "jaxlib")
DEBUGGERS = ("bdb", "cmd", "pdb")
# Modules that run around all code of a rank: their lines don't show where a launch comes from.
KERNEL = (
    "IPython", "debugpy", "ipykernel", "ipyparallel", "jupyter_client", "tornado", "traitlets",
    "zmq",
)  # fmt: skip
INSTALLED = re.compile(r"/(site|dist)-packages/")
# Equal on all ranks: a cell's file name is part of its program's fingerprint in JAX.
CELL_DIRECTORY = "/tmp/ipykernel_jaxcluster"
_FILE = rf"{CELL_DIRECTORY}/(\d+)-[0-9a-f]{{12}}\.py"
_CELL = re.compile(_FILE)
_PLACE = re.compile(rf'File "{_FILE}", line (\d+)|{_FILE}:(\d+)')
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

TELLING = ("user", "library")  # whose lines say where a launch comes from, by ``owner``
SOURCE_CHARS = 80  # of a line

# IPython's form of a line such as "%run train.py".
_MAGIC = re.compile(r"get_ipython\(\)\.run_line_magic\(('\w+', '(?:[^'\\]|\\.)*')\)")


@functools.lru_cache(4096)
def cell_number(file: str) -> int | None:
    """The number of the cell whose file this is; None: it is another file."""
    found = _CELL.fullmatch(file)
    return int(found[1]) if found else None


def place_of(
    frame: FrameType | None, number_of: Callable[[str], int | None] = cell_number
) -> Place:
    """The place of a launch, in microseconds, because every launch asks for it.

    It is the innermost line of a cell, and the innermost line of another file that it has called.
    Lines of jax, the standard library and the kernel tell nothing. The kernel calls an event loop's
    callbacks.

    Args:
      number_of: the number of the cell whose file this is; None: it is another file.
    """
    inner = number = None
    while frame is not None and (number := number_of(file := frame.f_code.co_filename)) is None:
        if inner is None and owner(file) in TELLING:
            inner = frame
        frame = frame.f_back
    return _place(number or 0, *_at(frame), *_at(inner))


@functools.lru_cache(4096)
def _place(number: int, file: str, line: int, inner: str, inner_line: int) -> Place:
    within = ""
    if inner:
        source = _source(inner, inner_line)
        within = f"{short_name(inner)} line {inner_line}" + (f": {source}" if source else "")
    return Place(number, line, _source(file, line) if file else "", within)


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame``, and those that have called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_a_cell(frame: FrameType | None) -> bool:
    """Whether a frame is a cell's, or was called from a cell."""
    return any(cell_number(one.f_code.co_filename) is not None for one in outward(frame))


def _at(frame: FrameType | None) -> tuple[str, int]:
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _source(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if (magic := _MAGIC.fullmatch(text)) is not None:
        text = "%" + " ".join(ast.literal_eval(magic[1])).rstrip()
    return text[:SOURCE_CHARS]


def short_name(file: str) -> str:
    """A file as it would be imported or run: without the folder in which it was found."""
    folders = [os.path.join(os.path.abspath(path), "") for path in sys.path if path]
    found = [folder for folder in folders if file.startswith(folder)]
    return file[max(map(len, found)) :] if found else os.path.basename(file)


def name_cells(text: str) -> str:
    """A traceback or a warning as Python writes it, with ``cell [9] line 5`` for a cell's file."""
    return _PLACE.sub(lambda at: f"cell [{at[1] or at[3]}] line {at[2] or at[4]}", text)


# --------------------------------------------------------------------------- whose code it is


@functools.cache
def _files_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    """The beginnings of the paths of packages and modules, without importing them."""
    found: list[str] = []
    for spec in filter(None, map(importlib.util.find_spec, packages)):
        folders = spec.submodule_search_locations
        found += [spec.origin or ""] if folders is None else [f"{one}/" for one in folders]
    return tuple(filter(None, found))


@functools.lru_cache(4096)
def owner(file: str) -> str:
    """Whose code a file has.

    Returns:
      ``folded`` (JAX's, a debugger's or ours), ``kernel``, ``library`` (it is installed),
      ``python`` (of the standard library), ``made`` (it is no file: made at run time), or
      ``user``, as of each cell.
    """
    if file.startswith((f"{OURS}/", *_files_of(JAX + DEBUGGERS))):
        return "folded"
    if not os.path.isabs(file):
        return "made"
    if file.startswith(_files_of(KERNEL)):
        return "kernel"
    if INSTALLED.search(file):
        return "library"
    folders = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    return "python" if file.startswith(tuple(f"{folder}/" for folder in folders)) else "user"


def is_folded(file: str) -> bool:
    """Whether a file's frames are folded in a traceback."""
    return owner(file) == "folded"
