"""Magics on a rank: lines of ``%%time`` keep their numbers, and ``%pip`` runs once for a host.

IPython compiles the body of ``%%time``, ``%%timeit`` or ``%%capture`` by itself, counts its lines
from 1, and gives it a name that all of them share. Nothing said in which cell, and on which line,
it failed or launched something.

All ranks of a host would install into one environment at once, and files would go missing. Whoever
gets the lock first runs the command; the others find what it has left of the same cell.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

# The names under which IPython compiles what these run; ``capture`` runs it as a cell.
_TIMED = ("<timed exec>", "<timed eval>")
_NAMES = {"time": _TIMED, "timeit": ("<magic-timeit>",), "capture": ()}
_TOOL = r"(?:\S*python\S*\s+-m\s+)?\S*\b(?:pip3?|uv|conda|mamba|micromamba)"
_CHANGES = re.compile(
    rf"^\s*['\"]?{_TOOL}['\"]?\s.*\b(?:install|uninstall|add|remove|update|upgrade|sync)\b"
)


def install(shell: Any, cells: Mapping[str, int]) -> None:
    """Give what cells run by a magic its own lines and a cell's name.

    Args:
      cells: the numbers of cells by these names.
    """
    bodies = _Bodies(shell)

    class Compiler(type(shell.compile)):  # type: ignore[misc]
        def __call__(self, source: Any, filename: str, *args: Any, **more: Any) -> Any:
            return super().__call__(source, bodies.name_of(filename, source), *args, **more)

        def format_code_name(self, name: str) -> Any:
            return ("Cell", f"In[{cells[name]}]") if name in cells else None

    shell.compile.__class__ = Compiler


class _Bodies:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._run, shell.run_cell_magic = shell.run_cell_magic, self._run_cell_magic
        self._depth = 0  # magics around the body, each of which takes a line of the cell
        self._name = ""  # of the body that is to be compiled
        self._names: tuple[str, ...] = ()

    def _run_cell_magic(self, magic: str, line: str, cell: str) -> Any:
        if magic not in _NAMES:
            return self._run(magic, line, cell)
        before = self._name, self._names
        self._depth += 1
        try:
            if not cell.lstrip().startswith("%%"):
                cell = "#\n" * self._depth + cell
                self._name = self._shell.compile.cache(cell, self._shell.execution_count)
                self._names = _NAMES[magic]
            return self._run(magic, line, cell)
        finally:
            self._depth -= 1
            self._name, self._names = before

    def name_of(self, filename: str, source: ast.AST) -> str:
        """The name for what IPython would compile under ``filename``: its own, if it is a body."""
        if filename not in self._names:
            return filename
        if filename not in _TIMED:
            self._names = ()  # what a line magic of the body compiles is no body
        elif _last_line(source) <= self._depth:
            return filename  # it has one line
        return self._name


def _last_line(source: ast.AST) -> int:
    return max((getattr(node, "lineno", 1) for node in ast.walk(source)), default=1)


# --------------------------------------------------------------------------- installs


def run_once(shell: Any, cell: Callable[[], str]) -> None:
    """Have a shell's commands that change its environment run once for each of its cells.

    Args:
      cell: tells which cell runs, the same on all ranks.
    """
    system = shell.system

    def once(command: str) -> None:
        if not _CHANGES.match(command):
            system(command)
            return
        name = hashlib.blake2b(sys.prefix.encode(), digest_size=8).hexdigest()
        path = f"{tempfile.gettempdir()}/jaxcluster-install-{os.getuid()}-{name}"
        key = [cell(), command]
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            done, code = _read(file.read())
            if done != key:
                system(command)
                code = int(shell.user_ns.get("_exit_code") or 0)
                file.seek(0)
                file.truncate()
                json.dump([key, code], file)
        shell.user_ns["_exit_code"] = code
        if code:
            raise RuntimeError(f"The command failed with exit status {code}: {command.strip()}")

    shell.system = once


def _read(text: str) -> tuple[Any, int]:
    """(the cell and command that was run last, its exit status)."""
    try:
        done, code = json.loads(text)
        return done, int(code)
    except (ValueError, TypeError):
        return None, 0
