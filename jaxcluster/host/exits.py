"""How processes have ended, as people are told."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from jaxcluster.wire.forks import Exit


def describe_exit(code: int, out_of_memory: bool = False) -> str:
    """What an exit code means: ``killed by SIGKILL``, ``exit code 1``.

    Args:
      out_of_memory: the kernel has just killed a process for want of memory.
    """
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL and out_of_memory:
        return "killed by SIGKILL by the kernel: out of memory"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def describe_event(exit: Exit, kills: OomKills | None = None) -> str:
    """Why a process of a fork server has ended; on another host, on which.

    Args:
      kills: those of this machine's kernel. What it has killed is not another host's.
    """
    if exit.why or exit.host:
        why = exit.why or describe_exit(exit.code)
        return f"{why} on host {exit.host}" if exit.host else why
    return kills.describe_exit(exit.code) if kills else describe_exit(exit.code)


class OomKills:
    """Which deaths the kernel's out-of-memory killer is to blame for.

    The kernel counts its kills and does not say whom: a SIGKILL counts as one of them as long as
    there were more since this object was made than were told of.
    """

    def __init__(self) -> None:
        self._told = oom_kills()

    def describe_exit(self, code: int) -> str:
        out_of_memory = code == -signal.SIGKILL and oom_kills() > self._told
        self._told += out_of_memory
        return describe_exit(code, out_of_memory)


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since it booted."""
    try:
        fields = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(fields.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
