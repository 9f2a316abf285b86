"""``%pip install`` in a cell: one rank of each environment runs it, the others wait.

All ranks of a host would write into one environment at once, and files would go missing. Whoever
gets the lock first runs the command; the others find what it has left of the same cell.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

_TOOL = r"(?:\S*python\S*\s+-m\s+)?\S*\b(?:pip3?|uv|conda|mamba|micromamba)"
_CHANGES = re.compile(
    rf"^\s*['\"]?{_TOOL}['\"]?\s.*\b(?:install|uninstall|add|remove|update|upgrade|sync)\b"
)


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
