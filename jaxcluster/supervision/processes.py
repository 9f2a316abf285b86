"""Which process is which, whose it is, and how it ends with its parent."""

from __future__ import annotations

import ctypes
import functools
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since boot; None if it is gone or a zombie.

    Pid and start time together name one process for ever; a pid alone is reused.
    """
    fields = _stat(pid)
    return fields[19].decode() if fields else None


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does: ``T`` for a stopped one; "" if it has ended."""
    return b"".join(_stat(pid)[:1]).decode()


def _stat(pid: int) -> list[bytes]:
    """The kernel's words on a process, from its state on; [] if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in (b"Z", b"X") else fields


def process_token(pid: int) -> str:
    """``pid:start_time``, which names one process even after its pid is reused."""
    return f"{pid}:{start_time(pid)}"


def is_alive(token: str) -> bool:
    """Whether the process that ``process_token`` named still runs."""
    pid, _, started = token.partition(":")
    return pid.isdecimal() and start_time(int(pid)) == started


def pid_space() -> str:
    """The scope of this process's pids: the kernel's boot id and the pid namespace.

    The pid of a process in another container, or on another host, is some other process's here,
    or nobody's.
    """
    return space("pid")


def space(*namespaces: str) -> str:
    """A string that is equal in the processes of one kernel and of these namespaces of it.

    Host names repeat between containers and clones. Without ``/proc`` it is the name after all.
    """
    return _space_of(os.getpid(), namespaces)


@functools.cache  # it never changes, and each cell asks
def _space_of(own_pid: int, namespaces: tuple[str, ...]) -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            places = [os.readlink(f"/proc/self/ns/{name}") for name in namespaces]
            return " ".join([boot_id.read().strip(), *places])
    except OSError:
        return os.uname().nodename


def pid_space_mark() -> str:
    """``pid_space`` in a few letters, which differ from those of any other host."""
    import hashlib  # not for a guard, which is to be there at once

    return hashlib.blake2s(pid_space().encode(), digest_size=6).hexdigest()


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent's thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:  # it died before prctl took effect
        os._exit(0)


def wake_on(number: int) -> tuple[int, int]:
    """A pipe for the main thread's loop: it can be read when this or a handled signal comes."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    signal.signal(number, lambda *_: None)
    return ends


def adopt_orphans() -> None:
    """Become the parent of processes that this process's descendants leave.

    A user's process may have begun another session, where no signal to its group finds it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """The pids of this process's children; zombies too."""
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as listed:
                found += map(int, listed.read().split())
    except OSError:  # a kernel without these lists
        return [pid for pid, (parent, _) in processes().items() if parent == os.getpid()]
    return found


def processes() -> dict[int, tuple[int, int]]:
    """The living processes of this machine: pid to (parent, process group)."""
    found = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    return {pid: (int(stat[1]), int(stat[2])) for pid, stat in found.items() if stat}
