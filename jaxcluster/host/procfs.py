"""What the kernel says of a process that says nothing itself, or has ended.

A rank's control channel is a thread of its own. A rank that does not answer is stopped, waits for a
disk, gets no processor, is in C code that keeps Python's global lock (the GIL), or runs another
program (``os.execv``). Two looks at ``/proc`` a moment apart tell which.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.wire.forks import Exit

SIGNALS = {int(one): one.name for one in signal.Signals}
CONTROL_COMM = "jc-control"  # the name of the control thread, as the kernel has it
STARVED = 0.4  # of the time between two looks that a runnable thread spent waiting for a processor
KEEPS_S = 0.1  # of computing in which any Python code would have released the lock 20 times
TURNS = 10  # of the control thread on a processor in which it would have answered long since
SURE_S = 2.0  # after which a process none of whose threads wants to run is not merely slow


@dataclass(frozen=True)
class ThreadLook:
    """One thread, with times since it began."""

    name: str
    state: str  # the kernel's letter
    cpu_s: float  # on a processor
    waited_s: float  # in which it was runnable and had none
    turns: int = 0  # how often it got one


@dataclass(frozen=True)
class ProcessLook:
    """A process at one time; ``threads`` by the kernel's thread id: the main one's is the pid."""

    pid: int
    at: float
    threads: dict[int, ThreadLook]


@dataclass(frozen=True)
class Silence:
    """Why a process says nothing.

    Its kind is ``stopped``, ``traced``, ``starved``, ``lock`` (it keeps the GIL), ``gone``,
    ``other`` (it runs another program), ``cut`` (its host is not reached) or ``unknown``.
    """

    kind: str
    message: str  # the rest of a sentence that begins with the rank
    may_pass: bool = False  # the machine is busy, so what takes a moment may have taken this long

    @property
    def is_hung(self) -> bool:
        """Whether it will not answer by itself, however long it is waited for."""
        return self.kind in ("stopped", "traced", "other", "lock") and not self.may_pass

    @property
    def may_go_on(self) -> bool:
        """Somebody holds it, who can let it go on: all that it has is still there."""
        return self.kind in ("stopped", "traced")


NEW = ThreadLook("", "", 0.0, 0.0)
UNKNOWN = Silence("unknown", "is not responding yet")


def look_at(pid: int, proc: Path = Path("/proc")) -> ProcessLook | None:
    """The threads of a process; None where it is gone, or there is no such file system."""
    threads = {}
    try:
        for folder in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                threads[int(folder.name)] = _thread(folder)
    except OSError:
        return None
    return ProcessLook(pid, time.monotonic(), threads) if pid in threads else None


def _thread(folder: Path) -> ThreadLook:
    head, _, tail = (folder / "stat").read_text().rpartition(")")
    fields, on_cpu, waited, turns = tail.split(), 0, 0, 0
    with contextlib.suppress(OSError, ValueError):  # nanoseconds, where the kernel keeps them
        on_cpu, waited, turns = map(int, (folder / "schedstat").read_text().split())
    cpu_s = max(on_cpu / 1e9, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return ThreadLook(head.partition("(")[2], fields[0], cpu_s, waited / 1e9, turns)


def name_this_thread(name: str) -> None:
    """Have the kernel show this thread under ``name`` (15 characters)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def explain(before: ProcessLook | None, now: ProcessLook | None) -> Silence:
    """Why a process whose control channel did not answer between two looks is silent. Pure."""
    if now is None:
        return Silence("gone", "is not responding, and its process is gone")
    pid, main = now.pid, now.threads[now.pid]
    if main.state == "T":
        goes_on = f"`kill -CONT {pid}` lets its process go on"
        return Silence("stopped", f"was stopped by a signal ({goes_on})")
    if main.state == "t":
        return Silence("traced", f"is held by a debugger (pid {pid})")
    if before is None or now.at <= before.at:
        return UNKNOWN
    # One that ends loses its threads, for a moment.
    if not any(one.name == CONTROL_COMM for look in (before, now) for one in look.threads.values()):
        other = f"its process runs another program, {main.name!r} (pid {pid}), as after os.execv"
        return Silence("other", f"is no longer a rank: {other}")
    # Threads inherit the name of the one that starts them, and come later.
    control = min((t for t, one in now.threads.items() if one.name == CONTROL_COMM), default=pid)
    passed = now.at - before.at
    pairs = {t: (before.threads.get(t, NEW), one) for t, one in now.threads.items()}
    cpu = {tid: new.cpu_s - old.cpu_s for tid, (old, new) in pairs.items()}
    waited = {tid: new.waited_s - old.waited_s for tid, (old, new) in pairs.items()}
    turns = now.threads[control].turns - pairs[control][0].turns
    keeper = max(cpu, key=lambda tid: cpu[tid])
    # The control thread looks for the lock 200 times a second. Whoever has the lock releases it
    # 5 ms after that, unless it is in C code that does not.
    if keeper != control and cpu[keeper] >= KEEPS_S and (turns >= TURNS or not main.turns):
        who = "its main thread" if keeper == pid else f"its thread {now.threads[keeper].name!r}"
        # A call that keeps the lock for a moment takes seconds on a busy machine.
        may_pass = waited[keeper] > STARVED * passed and cpu[keeper] < SURE_S
        rest = " (the machine is busy; still waiting)" if may_pass else ""
        keeps = f"{who} computed, and no other thread could run{rest}"
        return Silence("lock", f"is in C code that keeps Python's global lock: {keeps}", may_pass)
    if max(waited.values()) > STARVED * passed or now.threads[control].state == "R":
        return Silence(
            "starved", "is ready to run but gets no CPU: the machine is busy; still waiting"
        )
    if passed >= SURE_S and "D" not in (main.state, now.threads[control].state):
        slept = f"no thread has run for {passed:.1f} s"
        return Silence("lock", f"sleeps in C code that keeps Python's global lock: {slept}")
    return UNKNOWN


def named(pid: int, most_chars: int) -> str:
    """A process, as somebody who looks for it would: with its command, where that can be seen."""
    words = ""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    command = " ".join(words.replace("\0", " ").split())[:most_chars]
    return f"process {pid}" + (f" ({command})" if command else "")


# --------------------------------------------------------------------------- ends


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
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0
