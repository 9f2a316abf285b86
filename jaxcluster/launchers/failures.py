"""Why a start's command failed: exit status, the line that says it, and a hint for usual causes.

There are four usual causes. The hosts' Python is wrong. The login asks or is refused. A host can't
be reached. The request can't be met.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PYTHON = re.compile(r"No module named|[Uu]nknown option:? -P")
_NO_FILE = re.compile(
    r"No such file|[Nn]ot found|cannot execute|Permission denied|Exec format|Unknown command"
    r"|could not access|Executable:|Application name:|no such file"
)
_LOGIN = re.compile(r"Permission denied|[Hh]ost key|HOST IDENTIFICATION|uthentication fail")
_REACH = re.compile(
    r"resolve|refused|timed out|not respond|No route|unreachable|onnection (reset|closed)|banner"
    r"|_exchange_identification|Broken pipe|open failed"
)
_REFUSED = re.compile(
    r"[Ii]nvalid|not available|[Ll]imit|QOS|requested|unrecognized|slots|quota|forbidden"
    r"|Unable to contact"
)


@dataclass(frozen=True)
class Reason:
    """Why an agent ended or never came, and what to type next."""

    message: str  # what happened, with the command's own words
    hint: str = ""
    has_ended: bool = False  # the agent itself, as is known, not just the way to it


def cause(lines: Sequence[str], python: str, typed: str = "", refused: str = "") -> tuple[str, str]:
    """(the last line that tells a usual cause, what to do), or the last line at all."""
    program = python.rpartition("/")[2]
    other = f"Name the hosts' Python, one with this jaxcluster: --python PATH (now {python})"
    for line in reversed(lines):
        if python and (_PYTHON.search(line) or (_NO_FILE.search(line) and program in line)):
            return line.strip(), other
    hints = {
        _LOGIN: typed and f"A login must not ask for anything. Try: {typed}",
        _REACH: typed and f"Are name and port right, and is the host up? Try: {typed}",
        _REFUSED: refused,
    }
    found = ((line, one) for one in hints if hints[one] for line in reversed(lines))
    line, cause = next(((line, one) for line, one in found if one.search(line)), ("", None))
    return (line.strip(), hints[cause]) if cause else (last_line(lines), "")


def last_line(lines: Sequence[str]) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "")


def how_it_ended(code: int | None) -> str:
    """An exit status in words."""
    if code is None:
        return "still runs"
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def run_briefly(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that is run to its end, without input, and what it has printed.

    Raises:
      OSError: it can't be run.
      subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    none, env = subprocess.DEVNULL, None if environ is None else dict(environ)
    options: dict[str, Any] = {"stdin": none, "capture_output": True, "text": True, "env": env}
    return subprocess.run(argv, errors="replace", timeout=timeout_s, check=False, **options)
