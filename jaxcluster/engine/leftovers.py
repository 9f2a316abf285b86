"""What cells leave behind for the time between cells, and raises there.

A handler of the user's for an alarm or another signal belongs into cells: its TimeoutError ends
what a cell does. Between cells there is nothing to end but the rank's own loop. So what it raises
there is told, and ends nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal.getsignal`` takes 18 us, this a tenth
import operator
import signal
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from jaxcluster.engine import log
from jaxcluster.engine.repair import repair_builtins

Handler = Callable[[int, FrameType | None], Any]
MOST = 4  # different errors that are told
_NUMBERS = tuple(sorted(signal.valid_signals() - {signal.SIGINT}))  # that is how a cell is stopped


class Leftovers:
    """Stands between the handlers that cells have set and the time between cells.

    Attributes:
      told: what was raised since the last cell, for the next one's reply.
      is_users: whether a frame is the user's code all the same, as of ipyparallel's own clients.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self._taken: list[int] = []
        self._seen: list[Any] = []  # the handlers of which none was to be taken
        self.is_users: Callable[[FrameType | None], bool] = lambda frame: False

    def take(self) -> None:
        """After a cell, on the main thread, whatever it has left of ``builtins``."""
        repair_builtins()
        handlers = list(map(_signal.getsignal, _NUMBERS))  # 64, mostly as after the last cell
        if len(handlers) == len(self._seen) and all(map(operator.is_, handlers, self._seen)):
            return
        for number, handler in zip(_NUMBERS, handlers, strict=True):
            if callable(handler) and type(handler) is not _Between:
                _signal.signal(number, _Between(self, handler))
                self._taken.append(number)
        self._seen = [] if self._taken else handlers

    def give_back(self) -> None:
        """Before a cell, on the main thread: the handlers are the cell's own again."""
        while self._taken:
            number = self._taken.pop()
            found = _signal.getsignal(number)
            if type(found) is _Between:  # else a task of the user's has set another meanwhile
                _signal.signal(number, found.handler)

    def handlers(self) -> list[Any]:
        """What was taken: between cells, those that a cell will have."""
        return [unwrapped(_signal.getsignal(number)) for number in self._taken]

    def put_between(self, number: int, handler: Any) -> None:
        """Set a handler that cells are to have, between cells. On the main thread."""
        if callable(handler):
            handler = _Between(self, handler)
            self._taken.append(number)
        signal.signal(number, handler)

    def on_error(self, error: BaseException, what: str = "") -> None:
        """Tell that something was raised between cells, and ended nothing. It raises nothing."""
        try:
            kind = "".join(traceback.format_exception_only(error)).strip().partition("\n")[0]
            text = f"a handler of {what}, left behind by a cell, raised {kind}"
            text = text if what else f"{kind} was raised"
            log.write(f"between cells {text}\n{''.join(traceback.format_exception(error))}")
        except Exception:  # whatever the error's class does when it is shown
            text = f"{what or 'something'} raised an error that can't be shown"
        if text not in self.told and len(self.told) < MOST:  # a timer may raise again and again
            self.told.append(text)

    def take_told(self) -> str:
        """What was raised since the last cell; "" if nothing was."""
        told, self.told = self.told, []
        return "; ".join(told)


class _Between:
    """A handler between cells."""

    def __init__(self, leftovers: Leftovers, handler: Handler) -> None:
        self._leftovers, self.handler = leftovers, handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._leftovers.is_users(frame):
            self.handler(number, frame)
            return
        try:
            self.handler(number, frame)
        except BaseException as error:
            self._leftovers.on_error(error, signal.Signals(number).name)


def unwrapped(handler: Any) -> Any:
    """The user's own handler, where this stands before it."""
    return handler.handler if type(handler) is _Between else handler
