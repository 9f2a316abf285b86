"""Why a process says nothing, or how it has ended, by the kernel's word.

A rank's control channel has its own thread. If it does not answer, the rank is stopped, gets no
processor, or runs another program (``os.execv``). Or C code keeps Python's global lock (the GIL).
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.wire.forks import Exit

SIGNALS = {int(one): one.name for one in signal.Signals}


@dataclass(frozen=True)
class Silence:
    """Why a process says nothing: the rest of a sentence that begins with the rank.

    Attributes:
      is_hung: it is taken for one that never will say anything.
      is_held: by somebody who can let it go on, so all that it has is still there.
    """

    message: str
    is_hung: bool = False
    is_held: bool = False


def explain(pid: int, state: str) -> Silence:
    """Why a process in this state does not answer on its control channel. Pure."""
    if state == "T":
        goes_on = f"`kill -CONT {pid}` lets its process go on"
        return Silence(f"was stopped by a signal ({goes_on})", is_held=True)
    if state == "t":
        return Silence(f"is held by a debugger (pid {pid})", is_held=True)
    if not state:
        return Silence("is not responding, and its process is gone")
    why = "in C code that holds Python's GIL, or without a processor on a busy machine"
    return Silence(f"is not responding: {why}", is_hung=True)


class Exits:
    """Why processes have ended, also those that this kernel has killed for want of memory.

    The kernel counts its kills without naming processes. A SIGKILL counts as one of them while the
    count exceeds the deaths reported so far.
    """

    def __init__(self) -> None:
        self._told = oom_kills()

    def describe(self, exit: Exit) -> str:
        """Why a process of a fork server has ended: ``killed by SIGKILL``, ``exit code 1``."""
        why, code = exit.why or f"exit code {exit.code}", exit.code
        if not exit.why and code < 0:
            why = f"killed by {SIGNALS.get(-code, f'signal {-code}')}"
            # Kills by other hosts' kernels are not counted here.
            if code == -signal.SIGKILL and not exit.host and oom_kills() > self._told:
                self._told += 1
                why += " by the kernel: out of memory"
        return f"{why} on host {exit.host}" if exit.host else why


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory since it booted."""
    with contextlib.suppress(OSError):
        words = Path("/proc/vmstat").read_text().split()
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
    return 0
