"""How processes are ended: what is theirs with them, in order, and what is late by force."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

from jaxcluster.supervision.processes import (
    children,
    is_alive,
    processes,
    start_time,
)

TRACKER_S = 1.0  # that a resource tracker gets to remove what others have left: milliseconds
KILLED_S = 5.0  # for a killed process to be gone


def kill_groups(leaders: Iterable[int]) -> None:
    """SIGKILL to processes and all of their groups, but for multiprocessing's resource trackers.

    A tracker ends by itself when all that used it are gone, and removes the semaphores and shared
    memory that they have left in /dev/shm: nobody else would. Takes one look at all processes.
    """
    leaders, killed = {pid for pid in leaders if _has_members(pid)}, set[int]()
    while leaders and any(map(_is_tracker, members := _members(leaders))):
        # A child that was just forked leads no group yet.
        others = ({pid for pid in members if not _is_tracker(pid)} | leaders) - killed
        if not others:
            return
        for pid in others:
            signal_pid(pid, signal.SIGKILL)
        killed |= others  # and look again: one may have started another one meanwhile
    for pid in leaders:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        signal_pid(pid, signal.SIGKILL)


def end_children(most_s: float) -> None:
    """Kill all children, those too that become ours by that (``adopt_orphans``), and reap them.

    Resource trackers get a second to end by themselves: see ``kill_groups``. It takes ``most_s`` at
    most.
    """
    started = time.monotonic()
    while (pids := children()) and (waited_s := time.monotonic() - started) < most_s:
        for pid in pids:
            if waited_s > TRACKER_S or not _is_tracker(pid):
                signal_pid(pid, signal.SIGKILL)
            reap(pid)
        time.sleep(0.005)


def end_group(leader: int, term_s: float) -> None:
    """End what is left of a process group whose leader has ended: by SIGTERM, the late by SIGKILL.

    The leader is alone at first: mpiexec whose logins were killed leaves its folder behind.
    """
    late_at, told = time.monotonic() + term_s, set[int]()
    while _has_members(leader) and (left := _members({leader})):
        late_s = time.monotonic() - late_at
        for pid in left:
            if late_s > 0 or pid not in told:
                signal_pid(pid, signal.SIGKILL if late_s > 0 else signal.SIGTERM)
        told.update(left)
        if late_s > KILLED_S:
            return
        time.sleep(0.02)


def wait(most_s: float, goes_on: Callable[[], object]) -> Iterator[None]:
    """Yields as long as something goes on, and it is not late."""
    deadline = time.monotonic() + most_s
    while goes_on() and time.monotonic() < deadline:
        yield


def end(token: str, number: signal.Signals, most_s: float) -> bool:
    """Send a signal to the process of this token, and wait; returns whether it is gone by then."""
    signal_token(token, number)
    for _ in wait(most_s, lambda: is_alive(token)):
        time.sleep(0.02)
    return not is_alive(token)


def reap(whom: int) -> None:
    """Take the ends of children (as ``waitpid`` names them), as far as they have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(whom, os.WNOHANG)[0]:
            pass


def signal_pid(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended, or be another user's."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def signal_token(token: str, number: int) -> None:
    """Send a signal to the process of this token, which may have ended, or be another user's."""
    if is_alive(token):
        signal_pid(int(token.partition(":")[0]), number)


def _has_members(leader: int) -> bool:
    """Whether it, or anybody of its group, is there."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return start_time(leader) is not None
    except PermissionError:
        pass
    return True


def _members(leaders: set[int]) -> list[int]:
    """The pids of these processes' groups, but for those that have ended."""
    return [pid for pid, (_, group) in processes().items() if group in leaders]


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return b"multiprocessing.resource_tracker" in line.read()
    except OSError:
        return False
