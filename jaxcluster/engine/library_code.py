"""Which code is not the user's: its frames are folded where the user's lines are to be seen."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import sysconfig
from itertools import pairwise
from types import CodeType

JAX = ("jax", "jaxlib")
DEBUGGERS = ("bdb", "cmd", "pdb")
# What runs around all code of a rank: its lines say of no launch where it comes from.
KERNEL = (
    "IPython", "debugpy", "ipykernel", "ipyparallel", "jupyter_client", "tornado", "traitlets",
    "zmq",
)  # fmt: skip
INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
# Equal on all ranks: a cell's file name is part of its program's fingerprint in JAX.
CELL_DIRECTORY = "/tmp/ipykernel_jaxcluster"
_FILE = rf"{CELL_DIRECTORY}/(\d+)-[0-9a-f]{{12}}\.py"
_PLACE = re.compile(rf'File "{_FILE}", line (\d+)|{_FILE}:(\d+)')
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.cache
def _folders_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Where packages lie. Nothing is imported for it."""
    found: list[str] = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        found += (spec.submodule_search_locations or []) if spec is not None else []
    return tuple(map(_as_folder, found))


@functools.cache
def _debugger_files() -> tuple[str, ...]:
    found = map(importlib.util.find_spec, DEBUGGERS)
    return tuple(spec.origin for spec in found if spec is not None and spec.origin is not None)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(_as_folder(paths[name]) for name in LIBRARIES)


def _as_folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


def is_folded(code: CodeType) -> bool:
    """Whether code is folded in a traceback: JAX's, a debugger's, or ours."""
    return is_folded_file(code.co_filename)


@functools.lru_cache(4096)
def is_folded_file(file: str) -> bool:
    """The same of a file."""
    return file.startswith((*_folders_of(JAX), _as_folder(OURS))) or file in _debugger_files()


@functools.lru_cache(4096)
def is_library_file(file: str) -> bool:
    """Whether a file is installed, or code was made at run time, and not of the user's own making.

    Of a cell it does not know.
    """
    is_library = not os.path.isabs(file) or file.startswith(_library_folders())
    return is_library or installed_name(file) is not None


def installed_name(file: str) -> str | None:
    """The package that a file belongs to, where that is installed: None where it is not."""
    for above, name in pairwise(file.split(os.sep)):
        if above in INSTALLED:
            return name.removesuffix(".py")
    return None


@functools.lru_cache(4096)
def is_telling_file(file: str) -> bool:
    """Whether a line of a file says where a launch comes from: a script's, a module's, a library's.

    JAX's own don't, nor do the standard library's, nor the kernel's, which calls what an event loop
    has to call.
    """
    if not os.path.isabs(file) or is_folded_file(file) or file.startswith(_folders_of(KERNEL)):
        return False
    return installed_name(file) is not None or not file.startswith(_library_folders())


def short_name(file: str) -> str:
    """A file as it would be imported or run: without the folder in which it was found."""
    folders = [_as_folder(path) for path in sys.path if path]
    found = [folder for folder in folders if file.startswith(folder)]
    return file[max(map(len, found)) :] if found else os.path.basename(file)


def name_cells(text: str) -> str:
    """A traceback or a warning as Python writes it, with ``cell [9] line 5`` for a cell's file."""
    return _PLACE.sub(lambda at: f"cell [{at[1] or at[3]}] line {at[2] or at[4]}", text)
