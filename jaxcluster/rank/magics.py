"""Magics on a rank: lines of ``%%time`` keep their numbers, and ``%pip`` runs once for a host.

Those of the notebook say so here.

IPython compiles the body of ``%%time``, ``%%timeit`` or ``%%capture`` separately, and counts its
lines from 1. Nothing said in which cell, and on which line, it failed or launched something.

All ranks of a host would install into one environment at once, and files would go missing. The rank
that gets the lock first runs the command. The others find its exit status, of the same cell.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError

from jaxcluster.rank.places import cell_number

# As IPython names what these run; ``capture`` runs it as a cell.
_BODIES = ("<timed exec>", "<timed eval>", "<magic-timeit>")
_ABOVE = re.compile(r"\s*(?:%%.*\s+)*%%(time|capture).*\n(?:[ \t]*\n)*")  # a body's first line
_NOTEBOOKS = ("jaxcluster", "spmd", "%spmd", "shards", "push", "pull")
_TOOL = r"(?:\S*python\S*\s+-m\s+)?\S*\b(?:pip3?|uv|conda|mamba|micromamba)"
_CHANGES = re.compile(
    rf"^\s*['\"]?{_TOOL}['\"]?\s.*\b(?:install|uninstall|add|remove|update|upgrade|sync)\b"
)


def install(shell: Any, source: Callable[[], str]) -> None:
    """Give the body of such a magic its own lines and the cell's name.

    Args:
      source: the cell that runs.
    """

    class Compiler(type(shell.compile)):  # type: ignore[misc]
        def __call__(self, code: Any, filename: str, *args: Any, **more: Any) -> Any:
            above, is_cell = _ABOVE.match(source()), cell_number(filename) is not None
            if above is not None and (is_cell if above[1] == "capture" else filename in _BODIES):
                name = self.cache(source(), shell.execution_count)
                if filename != name:
                    code, filename = ast.increment_lineno(code, above[0].count("\n")), name
            return super().__call__(code, filename, *args, **more)

        def format_code_name(self, name: str) -> Any:
            number = cell_number(name)
            return None if number is None else ("Cell", f"In[{number}]")

    shell.compile.__class__ = Compiler
    shell.extension_manager.loaded.add("jaxcluster")
    for name in _NOTEBOOKS:
        shell.register_magic_function(functools.partial(_refuse, name), "line_cell", name)


def _refuse(name: str, *_: str) -> None:
    told = f"%{name} runs in the notebook, not on ranks"
    raise UsageError(f"{told}: type it at the top of a cell of its own.")


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
