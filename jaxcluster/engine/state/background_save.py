"""How the variables of a loop are saved: it takes on no more than it may."""

from __future__ import annotations

import time
from typing import Any

from jaxcluster.engine.arrays import is_ready
from jaxcluster.engine.state.saved import CannotSave, Part
from jaxcluster.engine.state.version_store import VersionStore

STEPS = 64  # objects between two looks at the clock
NAME_S = 10.0  # of this thread's time that one name may take
ALL_S = 30.0
POLL_S = 0.002
TEXT_NBYTES = 1 << 12  # a text below it is not worth counting


class LeftOut(CannotSave):
    """It would cost too much: a name is left out, which could be saved otherwise."""


class BackgroundSave:
    """One save.

    Args:
      store: where the numbers of arrays are kept, and how much may be.

    Attributes:
      left_out: the names that could be saved otherwise, and why they are not.
    """

    def __init__(self, store: VersionStore) -> None:
        self.left_out: dict[str, str] = {}
        self.store = store
        self._name = ""
        self._steps = STEPS
        self._ends = time.thread_time() + ALL_S
        self._deadline = self._ends
        self._counted: dict[int, Any] = {}

    def begin(self, name: str) -> None:
        """The next objects belong to a name."""
        self._name = name
        self._deadline = min(time.thread_time() + NAME_S, self._ends)

    def end(self) -> None:
        """All names have been looked at: they may be pickled together, as long as that takes."""
        self._name, self._deadline = "", time.thread_time() + ALL_S

    def step(self) -> None:
        """An object of the name is met.

        Raises:
          LeftOut: it goes no further.
        """
        self._steps -= 1
        if self._steps <= 0:
            self._steps = STEPS
            if time.thread_time() > self._deadline:
                self.leave_out("it takes too long to be pickled")

    def take(self, value: Any, nbytes: int) -> None:
        """Room for a value that is saved each time.

        Raises:
          LeftOut: there is none.
        """
        if nbytes > TEXT_NBYTES and id(value) not in self._counted:
            if not self.store.take(nbytes):
                self.leave_out(self.store.why_full)
            self._counted[id(value)] = value  # so that its id is its own meanwhile

    def wait_for(self, array: Any) -> None:
        """Until an array is computed."""
        while not is_ready(array) and not array.is_deleted():
            time.sleep(POLL_S)

    def new_part(self, array: Any, where: str, data: Any) -> Part:
        """A shard that is to be written.

        Raises:
          LeftOut: there is no room for it.
        """
        part = self.store.add(array, where, data)
        if part is None:
            self.leave_out(self.store.why_full)
        assert part is not None
        return part

    def leave_out(self, why: str) -> None:
        """The name of now is not saved.

        Raises:
          LeftOut: always.
        """
        self.left_out[self._name] = why
        raise LeftOut(why)
