"""Ends processes with their children, in order, and late ones by force."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from jaxcluster.supervision.processes import (
    children,
    is_alive,
    processes,
    start_time,
)

TRACKER_S = 1.0  # a resource tracker may take so long to clean up; it needs milliseconds
KILLED_S = 5.0  # for a killed process to be gone


def end_children(most_s: float) -> None:
    """Kill all children, those too that become ours by that (``adopt_orphans``), and reap them.

    multiprocessing's resource trackers get a second to end once their users are gone. They remove
    the semaphores and shared memory of these from /dev/shm, which nobody else would. It takes
    ``most_s`` at most.
    """
    started = time.monotonic()
    while (pids := children()) and (waited_s := time.monotonic() - started) < most_s:
        for pid in pids:
            if waited_s > TRACKER_S or not _is_tracker(pid):
                signal_pid(pid, signal.SIGKILL)
            reap(pid)
        time.sleep(0.005)


def end_group(leader: int, term_s: float = 0.0) -> None:
    """End the rest of a process group whose leader has ended: by SIGTERM, late ones by SIGKILL.

    The leader ends alone before: mpiexec would leave its folder if its logins were killed.
    Resource trackers end with the others: see ``end_children``.
    """
    late_at, told = time.monotonic() + term_s, set[int]()
    while _has_members(leader) and (left := _members(leader)):
        late_s = time.monotonic() - late_at
        for pid in left:
            if late_s >= 0 or pid not in told:
                signal_pid(pid, signal.SIGKILL if late_s >= 0 else signal.SIGTERM)
        told.update(left)
        if late_s > KILLED_S:
            return
        time.sleep(0.02 if late_s < 0 else 0.002)


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


def _members(leader: int) -> list[int]:
    """The pids of its group, but for those that have ended, and resource trackers."""
    return [p for p, (_, group) in processes().items() if group == leader and not _is_tracker(p)]


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return b"multiprocessing.resource_tracker" in line.read()
    except OSError:
        return False
