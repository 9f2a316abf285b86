"""``jaxcluster.steps`` and ``jaxcluster.log``, as code on a rank calls them."""

from __future__ import annotations

import re
import sys
import threading
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from jaxcluster.engine import log as own_log
from jaxcluster.engine.background import is_own
from jaxcluster.engine.steps import position
from jaxcluster.engine.steps.active_loops import REPORT_S, ActiveLoops
from jaxcluster.engine.steps.checkpointer import LoopCheckpointer

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
KEEP = 'keep takes a time or a number of iterations: keep="60s", keep="5min", keep=100'


def parse_keep(keep: Any) -> tuple[int, float]:
    """The iterations, or the seconds, between two steps that are kept; the other one is 0.

    Raises:
      ValueError: it is neither.
    """
    if keep is None:
        return 0, 0.0
    if isinstance(keep, int) and not isinstance(keep, bool) and keep > 0:
        return keep, 0.0
    if isinstance(keep, str) and (found := _SPAN.fullmatch(keep.strip())):
        seconds = float(found[1]) * _SECONDS[found[2]]
        if seconds > 0:
            return 0, seconds
    raise ValueError(f"{KEEP}; not {keep!r}")


def make(
    iterable: Iterable[Any],
    keep: Any,
    state: Any,
    frame: types.FrameType,
    active: ActiveLoops | None,
) -> Iterable[Any]:
    """See ``jaxcluster.steps``. Outside of a rank's cell it is the iterable itself."""
    every, seconds = parse_keep(keep)
    if state is not None and not isinstance(state, dict | list):
        raise TypeError(f"state takes a dict or a list, not {type(state).__name__}")
    if active is None or active.runner.current is None:
        return iterable
    return Steps(iterable, every, seconds, state, frame, active)


class Steps:
    """One loop of a cell.

    Attributes:
      done: how many iterations are behind it.
      total: how many there are; None: nobody knows.
      run: what its curve is called in the file.
      checkpointer: keeps it; None: nobody does.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        every: int,
        seconds: float,
        state: Any,
        frame: types.FrameType,
        active: ActiveLoops,
    ) -> None:
        self.total = position.total(iterable)
        self.done = 0
        self.run = ""
        self.checkpointer: LoopCheckpointer | None = None
        self._every, self._seconds, self._state = every, seconds, state
        self._iterable, self._active = iterable, active
        self._frame: types.FrameType | None = frame
        self._next = -1  # the step that is kept next
        self._ended = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        if (frame := self._frame) is None:
            raise RuntimeError("These steps have been gone through: make new ones.")
        self._frame = None
        try:
            for item in self._begin(frame):
                yield item
                done = self.done = self.done + 1
                if done == self._next:
                    self._keep(frame, done)
        finally:
            self._end()

    def __repr__(self) -> str:
        total = "?" if self.total is None else f"{self.total:,}"
        return f"<jaxcluster.steps: {self.done:,} of {total}>"

    def _begin(self, frame: types.FrameType) -> Iterator[Any]:
        state, checkpointer = None, None
        if self._every or self._seconds:
            checkpointer = self.checkpointer = LoopCheckpointer(
                self, self._active, frame, self._state, self._seconds
            )
            self.done, state = checkpointer.find(frame)
        items = position.start(self._iterable, self.done, state)
        if checkpointer is not None:
            checkpointer.begin(frame, Steps)
        self.run = self.run or uuid.uuid4().hex[:8]
        if self._every:
            self._next = (self.done // self._every + 1) * self._every
        worker = threading.Thread(target=self._work, name="jaxcluster-steps", daemon=True)
        self._active.add(self, worker)
        worker.start()
        return items

    def _keep(self, frame: types.FrameType, done: int) -> None:
        """On the main thread, after an iteration after which it may be kept."""
        assert self.checkpointer is not None
        if self.checkpointer.is_wanted(done):
            self.checkpointer.take(frame, done, position.state_of(self._iterable))
        self._next = done + self._every if self._every else -1

    def _end(self) -> None:
        self._ended.set()
        self._active.remove(self)

    @property
    def has_ended(self) -> bool:
        """Whether its last iteration is over, or it was left. Any thread."""
        return self._ended.is_set()

    def wait_for_end(self, seconds: float) -> bool:
        """Whether it ends within this time. Any thread."""
        return self._ended.wait(seconds)

    def propose(self, step: int) -> bool:
        """Keep this step if it is not behind; whether that is so. Any thread.

        The loop sets ``done``, and then looks at ``_next``: here it is the other way round. So it
        can't pass by a step that was promised.
        """
        self._next = step
        if self.done < step:
            return True
        self._next = -1
        return False

    def withdraw(self, step: int) -> None:
        """That step is not kept after all. Any thread."""
        if self._next == step:
            self._next = -1

    def _work(self) -> None:
        """Its thread's."""
        is_own.set(True)
        checkpointer = self.checkpointer
        try:
            if checkpointer is not None:
                checkpointer.serve()
        except Exception as error:  # the loop goes on, and is not kept
            own_log.error(error)
            if checkpointer is not None:
                checkpointer.give_up(f"{type(error).__name__}: {error}")
        while not self._ended.wait(REPORT_S):
            self._active.report()


def caller() -> types.FrameType:
    """The frame that has called whoever asks."""
    return sys._getframe(2)
