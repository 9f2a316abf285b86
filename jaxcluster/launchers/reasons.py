"""What commands print when they fail, and what it means, for all launchers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from jaxcluster.launchers.base import Reason

_NO_MODULE = re.compile(r"No module named '?(?P<module>[\w.]+)")
_NO_PYTHON = re.compile(
    r"No such file or directory|not found|Unknown command|no such file or directory"
    r"|Permission denied|cannot execute|Exec format error|could not find the executable"
    r"|unable to find the specified executable|could not access or execute",
    re.IGNORECASE,
)


def run_briefly(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that is run to its end, without input, and what it has printed.

    Raises:
      OSError: it can't be run.
      subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environ if environ is None else dict(environ),
        timeout=timeout_s,
        check=False,
    )


def last_line(lines: Sequence[str]) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def how_it_ended(code: int | None) -> str:
    """What an exit status means."""
    if code is None:
        return "is not ready yet"
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def python_trouble(lines: Sequence[str], python: str, where: str) -> Reason | None:
    """What keeps a host's Python from becoming an agent, as its shell or it itself says.

    Args:
      lines: what was printed.
      python: the Python that was to be run.
      where: "on h1".
    """
    if any(re.search(r"[Uu]nknown option:? -P", line) for line in lines):
        return Reason(
            f"{python} {where} is older than Python 3.11.", "Name a newer one: --python PATH"
        )
    for line in reversed(lines):
        if (found := _NO_MODULE.search(line)) is None:
            continue
        said = f'It says: "{line.strip()}"'
        if found["module"] == "jaxcluster.agent":
            return Reason(
                f"The jaxcluster of {python} {where} is too old: it has no agent. {said}",
                "Install this notebook's version there, or name another Python: --python PATH",
            )
        module = found["module"].partition(".")[0]
        return Reason(
            f"{python} {where} has no {module}. {said}",
            f"Install it there (pip install {module}), or name another Python: --python PATH",
        )
    for line in reversed(lines):
        if _NO_PYTHON.search(line) and python.rpartition("/")[2] in line:
            return Reason(
                f'There is no Python {python} {where}. The error: "{line.strip()}"',
                "Name the right one: --python PATH",
            )
    return None
