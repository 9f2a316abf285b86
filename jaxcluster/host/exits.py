"""How processes have ended, as people are told."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

from jaxcluster.wire.forks import Exit


def describe_exit(code: int) -> str:
    """What an exit code means: ``killed by SIGKILL``, ``exit code 1``."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def describe_event(exit: Exit, kills: OomKills | None = None) -> str:
    """Why a process of a fork server has ended; on another host, on which.

    Args:
      kills: those of this machine's kernel. What it has killed is not another host's.
    """
    if exit.host:
        return f"{exit.why or describe_exit(exit.code)} on host {exit.host}"
    return exit.why or (kills.describe_exit if kills else describe_exit)(exit.code)


class OomKills:
    """Which deaths the kernel's out-of-memory killer is to blame for.

    The kernel counts its kills and does not say whom: a SIGKILL counts as one of them as long as
    there were more since this object was made than were told of.
    """

    def __init__(self) -> None:
        self._told = oom_kills()

    def describe_exit(self, code: int) -> str:
        if code != -signal.SIGKILL or oom_kills() <= self._told:
            return describe_exit(code)
        self._told += 1
        return "killed by SIGKILL by the kernel: out of memory"


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since it booted."""
    try:
        found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
