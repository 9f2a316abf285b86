"""The states of a cluster's life, and which may follow which."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Container

MOST_TOLD = 32  # steps of its story that are kept


class State(enum.Enum):
    """What a cluster is now, for the process that has this handle on it."""

    RUNNING = "running"
    RESTARTING = "restarting"  # its variables are being saved, or restored to new processes
    REPLACING = "replacing"  # the old processes are ended, new ones are on their way
    DOWN = "down"  # it has no processes; what was saved of them is kept
    ENDING = "ending"  # another process has stopped it, and that is taken in
    STOPPED = "stopped"
    LEFT = "left"  # it runs on, without this process


_MAY_FOLLOW: dict[State, frozenset[State]] = {
    State.RUNNING: frozenset({State.RESTARTING, State.ENDING, State.STOPPED, State.LEFT}),
    State.RESTARTING: frozenset(
        {State.RUNNING, State.REPLACING, State.ENDING, State.STOPPED, State.LEFT}
    ),
    State.REPLACING: frozenset({State.RESTARTING, State.DOWN, State.STOPPED}),
    State.DOWN: frozenset({State.REPLACING, State.STOPPED}),
    # It may be stopped elsewhere at the moment in which its processes are being replaced here.
    State.ENDING: frozenset({State.REPLACING, State.STOPPED, State.LEFT}),
    State.STOPPED: frozenset(),
    State.LEFT: frozenset(),
}
_WITH_PROCESSES = frozenset({State.RUNNING, State.RESTARTING, State.ENDING})


class Life:
    """The state of one cluster, and how it came to it. Thread-safe.

    Attributes:
      state: what it is now.
      why: the reason that was given for the last step; "" if none was.
      story: the last steps, oldest first, each with its reason.
    """

    def __init__(self) -> None:
        self.state = State.RUNNING
        self.why = ""
        self.story: deque[tuple[State, str]] = deque([(State.RUNNING, "")], MOST_TOLD)
        self._lock = threading.Lock()

    def become(self, state: State, why: str = "", *, only: Container[State] | None = None) -> bool:
        """Take the step to ``state``; where it is that already, only the reason is taken.

        Args:
          only: the states from which the step is taken; from others nothing is done.

        Returns:
          Whether it was taken.

        Raises:
          RuntimeError: it can't follow the present state, which is a fault of ours. The story is
            told.
        """
        with self._lock:
            if only is not None and self.state not in only:
                return False
            if state is not self.state and state not in _MAY_FOLLOW[self.state]:
                steps = " -> ".join(f"{s.value} ({w})" if w else s.value for s, w in self.story)
                raise RuntimeError(f"a cluster can't become {state.value} after: {steps}")
            self.state, self.why = state, why
            self.story.append((state, why))
            return True

    @property
    def has_processes(self) -> bool:
        """Whether it has processes that this one is connected to."""
        return self.state in _WITH_PROCESSES
