"""Magics on a rank: lines of ``%%time`` keep their numbers, and ``%pip`` runs once for a host.

IPython compiles the body of ``%%time``, ``%%timeit`` or ``%%capture`` by itself, counts its lines
from 1, and gives it a name that all of them share. Nothing said in which cell, and on which line,
it failed or launched something.

All ranks of a host would install into one environment at once, and files would go missing. Whoever
gets the lock first runs the command; the others find its exit status, of the same cell.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

# The names under which IPython compiles what these run; ``capture`` runs it as a cell.
_BODIES = ("<timed exec>", "<timed eval>", "<magic-timeit>")
_NAMES = ("time", "timeit", "capture")
_TOOL = r"(?:\S*python\S*\s+-m\s+)?\S*\b(?:pip3?|uv|conda|mamba|micromamba)"
_CHANGES = re.compile(
    rf"^\s*['\"]?{_TOOL}['\"]?\s.*\b(?:install|uninstall|add|remove|update|upgrade|sync)\b"
)


def install(shell: Any, cells: Mapping[str, int], source: Callable[[], str]) -> None:
    """Give what a cell runs by a magic on its first line its own lines and the cell's name.

    Args:
      cells: the numbers of cells by these names.
      source: the cell that runs.
    """
    run = shell.run_cell_magic
    running: list[str] = []  # the magics that run a cell's body; innermost last

    def run_cell_magic(magic: str, line: str, cell: str) -> Any:
        whole, body = source().rstrip(), cell.strip()
        if magic not in _NAMES or body.startswith("%%") or not whole.endswith(body):
            return run(magic, line, cell)
        running.append(magic)
        try:
            lines_above = whole[: len(whole) - len(cell.rstrip())].count("\n")
            return run(magic, line, "#\n" * lines_above + cell)
        finally:
            running.pop()

    class Compiler(type(shell.compile)):  # type: ignore[misc]
        def __call__(self, code: Any, filename: str, *args: Any, **more: Any) -> Any:
            # A line's magic in ``capture`` is at its own line, whose frame is a cell's.
            if running and running[-1] != "capture" and filename in _BODIES:
                filename = self.cache(source(), shell.execution_count)
            return super().__call__(code, filename, *args, **more)

        def format_code_name(self, name: str) -> Any:
            return ("Cell", f"In[{cells[name]}]") if name in cells else None

    shell.run_cell_magic = run_cell_magic
    shell.compile.__class__ = Compiler


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
        flags, own = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, f"{cell()} {command}"
        with open(os.open(path, flags, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            code, _, done = file.read().partition(" ")
            if done != own:
                system(command)
                code = str(shell.user_ns.get("_exit_code") or 0)
                file.seek(0)
                file.truncate()
                file.write(f"{code} {own}")
        shell.user_ns["_exit_code"] = int(code)
        if int(code):
            told = f"The command failed with exit status {code}: {command.strip()}"
            raise RuntimeError(f"{told}\n%jaxcluster outputs shows what it has printed.")

    shell.system = once
