"""``%%time``, ``%%timeit`` and ``%%capture`` leave the lines of their bodies the cell's numbers.

IPython compiles such a body by itself, counts its lines from 1, and gives it a name that all of
them share: nothing said in which cell, and on which line, it failed or launched something.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

# The names under which IPython compiles what these run; ``capture`` runs it as a cell.
_TIMED = ("<timed exec>", "<timed eval>")
_NAMES = {"time": _TIMED, "timeit": ("<magic-timeit>",), "capture": ()}


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
