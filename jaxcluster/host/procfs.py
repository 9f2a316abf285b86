"""What the kernel says of a process that says nothing itself (standard library only).

A rank's control channel is a thread of its own, so a rank that gives no sign of life is stopped,
waits for a disk, gets no processor, is in C code that keeps Python's global lock (the GIL), or is
no longer a rank: ``os.execv`` puts another program into a process. Two looks at ``/proc`` a moment
apart tell which.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CONTROL_COMM = "jc-control"  # the name of the control thread, as the kernel has it
STARVED = 0.4  # of the time between two looks that a runnable thread spent waiting for a processor
KEEPS_S = 0.1  # of computing in which any Python code would have released the lock 20 times
TURNS = 10  # of the control thread on a processor in which it would have answered long since
SURE_S = 2.0  # after which a process none of whose threads wants to run is not merely slow


@dataclass(frozen=True)
class ThreadLook:
    """One thread: its name, the kernel's letter for its state, and seconds since it began.

    ``cpu_s`` is time on a processor, ``waited_s`` time in which it was runnable and had none,
    ``turns`` how often it got one.
    """

    name: str
    state: str
    cpu_s: float
    waited_s: float
    turns: int = 0


@dataclass(frozen=True)
class ProcessLook:
    """A process at one time; ``threads`` by the kernel's thread id: the main one's is the pid."""

    pid: int
    at: float
    threads: dict[int, ThreadLook]


@dataclass(frozen=True)
class Silence:
    """Why a process says nothing.

    Attributes:
      kind: ``stopped``, ``traced``, ``starved``, ``lock`` (it keeps the GIL), ``gone``,
        ``other`` (it runs another program), ``cut`` (its host is not reached) or ``unknown``.
      message: the rest of a sentence that begins with the rank.
      may_pass: the machine is busy, so what takes a moment may have taken this long.
      is_hung: it will not answer by itself, however long it is waited for.
    """

    kind: str
    message: str
    may_pass: bool = False

    @property
    def is_hung(self) -> bool:
        return self.kind in ("stopped", "traced", "other", "lock") and not self.may_pass

    @property
    def may_go_on(self) -> bool:
        """Somebody holds it, who can let it go on: all that it has is still there."""
        return self.kind in ("stopped", "traced")


def look_at(pid: int, proc: Path = Path("/proc")) -> ProcessLook | None:
    """The threads of a process; None where it is gone, or there is no such file system."""
    threads = {}
    try:
        for folder in (proc / str(pid) / "task").iterdir():
            if (found := _thread(folder)) is not None:
                threads[int(folder.name)] = found
    except OSError:
        return None
    return ProcessLook(pid, time.monotonic(), threads) if pid in threads else None


def name_this_thread(name: str) -> None:
    """Have the kernel show this thread under ``name`` (15 characters)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def _thread(folder: Path) -> ThreadLook | None:
    try:
        head, _, tail = (folder / "stat").read_text().rpartition(")")
        fields = tail.split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    waited_s, turns = 0.0, 0
    try:  # nanoseconds, where the kernel keeps them
        on_cpu, waited, times = (folder / "schedstat").read_text().split()
        cpu_s, waited_s = max(cpu_s, int(on_cpu) / 1e9), int(waited) / 1e9
        turns = int(times)
    except (OSError, ValueError):
        pass
    return ThreadLook(head.partition("(")[2], fields[0], cpu_s, waited_s, turns)


def explain(before: ProcessLook | None, now: ProcessLook | None) -> Silence:
    """Why a process whose control channel did not answer between two looks is silent. Pure."""
    if now is None:
        return Silence("gone", "is not responding, and its process is gone")
    pid, main = now.pid, now.threads[now.pid]
    if main.state == "T":
        return Silence(
            "stopped", f"was stopped by a signal (`kill -CONT {pid}` lets its process go on)"
        )
    if main.state == "t":
        return Silence("traced", f"is held by a debugger (pid {pid})")
    if before is None or now.at <= before.at:
        return Silence("unknown", "is not responding yet")
    if not (_controls(before) or _controls(now)):  # one that ends loses its threads, for a moment
        return Silence(
            "other",
            f"is no longer a rank: its process runs another program, {main.name!r} (pid {pid}), as "
            "after os.execv",
        )
    passed = now.at - before.at
    cpu, waited = _since(before, now, "cpu_s"), _since(before, now, "waited_s")
    # Threads inherit the name of the one that starts them, and come later.
    control = min(_controls(now), default=pid)
    keeper = max(cpu, key=lambda tid: cpu[tid])
    if keeper != control and cpu[keeper] >= KEEPS_S and _looks_for_lock(before, now, control):
        who = "its main thread" if keeper == pid else f"its thread {now.threads[keeper].name!r}"
        # A call that keeps the lock for a moment takes seconds on a busy machine.
        may_pass = waited[keeper] > STARVED * passed and cpu[keeper] < SURE_S
        return Silence(
            "lock",
            f"is in C code that keeps Python's global lock: {who} computed, and no other thread "
            "could run" + (" (the machine is busy; still waiting)" if may_pass else ""),
            may_pass,
        )
    if max(waited.values()) > STARVED * passed or now.threads[control].state == "R":
        return Silence(
            "starved", "is ready to run but gets no CPU: the machine is busy; still waiting"
        )
    waits_for_disk = "D" in (main.state, now.threads[control].state)
    if passed >= SURE_S and not waits_for_disk:
        return Silence(
            "lock",
            "sleeps in C code that keeps Python's global lock: no thread has run for "
            f"{passed:.1f} s",
        )
    return Silence("unknown", "is not responding yet")


def _since(before: ProcessLook, now: ProcessLook, what: str) -> dict[int, float]:
    """How much of these times each thread has had between two looks."""
    return {
        tid: getattr(thread, what) - getattr(before.threads.get(tid), what, 0.0)
        for tid, thread in now.threads.items()
    }


def _controls(look: ProcessLook) -> list[int]:
    return [tid for tid, thread in look.threads.items() if thread.name == CONTROL_COMM]


def _looks_for_lock(before: ProcessLook, now: ProcessLook, control: int) -> bool:
    """Whether the control thread has had a processor again and again, and not the lock.

    It looks for it 200 times a second. Whoever has the lock releases it 5 ms after that, unless
    it is in C code that does not.
    """
    if now.threads[now.pid].turns == 0:  # the kernel does not tell
        return True
    old = before.threads.get(control)
    return now.threads[control].turns - (old.turns if old is not None else 0) >= TURNS


def named(pid: int, most_chars: int) -> str:
    """A process, as somebody who looks for it would: with its command, where that can be seen."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        words = b""
    command = " ".join(words.decode(errors="replace").split())[:most_chars]
    return f"process {pid}" + (f" ({command})" if command else "")
