"""How processes have ended, as people are told."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from jaxcluster.wire.forks import Exit

SIGNALS = {int(one): one.name for one in signal.Signals}


class Exits:
    """Why processes have ended, also those that this kernel has killed for want of memory.

    The kernel counts its kills and does not say whom: a SIGKILL counts as one of them as long as
    there were more since this object was made than were told of.
    """

    def __init__(self) -> None:
        self._told = oom_kills()

    def describe(self, exit: Exit) -> str:
        """Why a process of a fork server has ended: ``killed by SIGKILL``, ``exit code 1``."""
        why, code = exit.why, exit.code
        if not why:
            name = SIGNALS.get(-code, f"signal {-code}")
            why = f"exit code {code}" if code >= 0 else f"killed by {name}"
            # What another host's kernel has killed is not counted here.
            if code == -signal.SIGKILL and not exit.host and oom_kills() > self._told:
                self._told += 1
                why += " by the kernel: out of memory"
        return f"{why} on host {exit.host}" if exit.host else why


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since it booted."""
    try:
        found = re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
