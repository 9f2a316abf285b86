"""How variables are saved beside cells: it gives way to them, and takes on no more than it may."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from jaxcluster.engine.arrays import is_ready
from jaxcluster.engine.state.saved import CannotSave, Part
from jaxcluster.engine.state.version_store import VersionStore

STEPS = 64  # objects between two looks at the clock
NAME_S = 0.25  # of this thread's time that one name may take
ALL_S = 2.0
POLL_S = 0.002
TEXT_NBYTES = 1 << 12  # a text below it is not worth counting


class GivenUp(BaseException):
    """A cell has begun, or nobody wants it any more. No handler of errors is meant."""


class LeftOut(CannotSave):
    """A copy would cost too much: a name is left out, which could be saved otherwise."""


class BackgroundSave:
    """One save beside cells.

    Args:
      store: where the numbers of arrays are kept, and how much may be.
      go_on: raises GivenUp.
      on_main: has the main thread do something, soon.
      limits_s: of this thread's time: what one name may take, and all; None: little.
      may_call: code of the user's may run, as how its classes are pickled.

    Attributes:
      left_out: the names that could be saved otherwise, and why they are not.
    """

    def __init__(
        self,
        store: VersionStore,
        go_on: Callable[[], None],
        on_main: Callable[[Callable[[], None]], None] = lambda job: job(),
        limits_s: tuple[float, float] | None = None,
        may_call: bool = False,
    ) -> None:
        self._on_main = on_main
        self.may_call = may_call
        self._name_s, self._all_s = limits_s or (NAME_S, ALL_S)
        self.left_out: dict[str, str] = {}
        self.go_on = go_on
        self.store = store
        self._name = ""
        self._steps = STEPS
        self._ends = time.thread_time() + self._all_s
        self._deadline = self._ends
        self._counted: dict[int, Any] = {}

    def begin(self, name: str) -> None:
        """The next objects belong to a name."""
        self._name = name
        self._deadline = min(time.thread_time() + self._name_s, self._ends)

    def end(self) -> None:
        """All names have been looked at: they may be pickled together, as long as that takes."""
        self._name, self._deadline = "", time.thread_time() + self._all_s

    def step(self) -> None:
        """An object of the name is met.

        Raises:
          GivenUp, LeftOut: it goes no further.
        """
        self.go_on()
        self._steps -= 1
        if self._steps <= 0:
            self._steps = STEPS
            if time.thread_time() > self._deadline:
                self.leave_out("it takes too long to be copied after each cell")

    def take(self, value: Any, nbytes: int) -> None:
        """Room for a value that is copied each time.

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
            self.go_on()
            time.sleep(POLL_S)

    def ask_main(self, read: Callable[[], Any]) -> Any:
        """What the main thread reads, while it runs no cell.

        jax 0.10.2 makes an array's shards when they are first asked for. If two threads ask at
        once, both get wrong numbers, and no error.
        """
        asked: futures.Future[Any] = futures.Future()

        def job() -> None:
            try:
                asked.set_result(read())
            except Exception as error:
                asked.set_exception(error)

        self._on_main(job)
        while futures.wait([asked], POLL_S).not_done:
            self.go_on()
        return asked.result()

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
        """The name of now is not copied.

        Raises:
          LeftOut: always.
        """
        self.left_out[self._name] = why
        raise LeftOut(why)
