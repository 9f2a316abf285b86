"""Deadlines that scale with how slow the machine is at the moment.

A deadline says what is long enough on a machine at rest with two cores like CI's. When it has
passed the machine is probed: on one that is slower, or that others keep busy, it is moved out as
much. So a probe costs only those tests that would fail, and one that hangs fails still, a little
later.
"""

from __future__ import annotations

import os
import time

LOOPS = 400_000
REFERENCE_S = 0.02  # that these took where the deadlines were chosen
ROUNDS = 5
MOST = 3.0  # pytest's own timeout must come later: see pyproject.toml


def slowness() -> float:
    """How much slower than the reference this machine is now: 1.0 to ``MOST``. Takes 0.1 s."""
    took = [_work_s() for _ in range(ROUNDS)]
    try:
        waiting = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        waiting = 1.0
    return min(MOST, max(1.0, sum(took) / ROUNDS / REFERENCE_S, waiting))


def _work_s() -> float:
    """The seconds that some work of this thread's takes, with what it waits for a core."""
    started = time.perf_counter()
    value = 0
    for i in range(LOOPS):
        value = (value * 31 + i) & 0xFFFF
    return time.perf_counter() - started


class Deadline:
    """A time by which something is to have happened.

    Args:
      seconds: from now, on a machine at rest.

    Attributes:
      slowness: what was measured when they had passed; None before.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.slowness: float | None = None
        self._end = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether it has passed, also for a machine as slow as this one."""
        if time.monotonic() <= self._end:
            return False
        if self.slowness is None:
            self.slowness = slowness()
            self._end += self.seconds * (self.slowness - 1)
        return time.monotonic() > self._end

    def __str__(self) -> str:
        """``60 s``, and on what machine that was too little."""
        if self.slowness is None or self.slowness == 1.0:
            return f"{self.seconds:g} s"
        return f"{self.seconds:g} s, times {self.slowness:.1f} on a machine as slow as this one now"
