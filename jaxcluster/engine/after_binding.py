"""An interrupt that waits until a launch's results have their names.

A signal that comes while a program runs is heard where its launch returns, and raised there it
would cost the results. The program may have taken the arrays that it was given (donation): then a
stopped training loop would have lost its state.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from jaxcluster.engine import usercode

_ON_THE_WAY = ("LOAD", "COPY", "SWAP", "EXTENDED", "CACHE")  # to x.y or x[y], which are bound
_PASSING = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


class AfterBinding:
    """Of one rank's main thread.

    Attributes:
      waits: an interrupt is to be raised: at the next line, or by whoever began it, where that line
        does not come soon.
    """

    def __init__(self) -> None:
        self.waits = False
        self._frame: FrameType | None = None
        self._then: Callable[[FrameType], None] | None = None

    def begin(self, frame: FrameType, then: Callable[[FrameType], None]) -> bool:
        """Raise KeyboardInterrupt at the next line of ``frame``, which has launched; False: not so.

        Args:
          then: called right before, with the frame.
        """
        if sys.gettrace() is not None or not _binds(frame):
            return False
        if _leaves_a_try(frame.f_code, frame.f_lasti):
            return False
        self.waits, self._then = True, then
        self._watch(frame)
        sys.settrace(_trace_no_call)
        return True

    def end(self) -> None:
        """There is no more waiting."""
        self.waits = False
        self._stop()

    def _stop(self) -> None:
        self._watch(None)
        if sys.gettrace() is _trace_no_call:
            sys.settrace(None)

    def _watch(self, frame: FrameType | None) -> None:
        if self._frame is not None:
            self._frame.f_trace = None
        self._frame = frame
        if frame is not None:
            frame.f_trace = self._trace

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self.waits or frame is not self._frame:
            return None
        if event == "return":
            caller = None if frame.f_code.co_flags & _PASSING else frame.f_back
            if caller is not None and caller.f_code not in usercode.RUNS and _binds(caller):
                self._watch(caller)  # it binds what is returned
                return self._trace
        elif event != "line":
            return self._trace
        then = self._then
        self.end()
        if then is not None:
            then(frame)
        raise KeyboardInterrupt


def _trace_no_call(frame: FrameType, event: str, argument: Any) -> None:
    """What is called meanwhile is not traced."""


def _binds(frame: FrameType) -> bool:
    """Whether the value of the call that ``frame`` is in gets a name, or is returned, at once."""
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti and not step.opname.startswith(_ON_THE_WAY):
            return step.opname.startswith(("STORE", "UNPACK", "RETURN"))
    return False


def _leaves_a_try(code: CodeType, at: int) -> bool:
    """Whether the line after the one at ``at`` is outside of a ``try`` that this one is in.

    Whoever catches an interrupt of that line is to catch it.
    """
    line, following = None, None
    for step in dis.get_instructions(code):
        here = step.positions.lineno if step.positions is not None else None
        if step.offset == at:
            line = here
        elif step.offset > at and step.opname.startswith("JUMP_BACKWARD"):
            following = step.argval
            break
        elif step.offset > at and here is not None and here != line:
            following = step.offset
            break
    kinds = {step.offset: step.opname for step in dis.get_instructions(code)}
    tries = getattr(dis, "_parse_exception_table", None)  # of Python 3.11 to 3.14
    if tries is None:
        return True
    for start, end, target, *_ in tries(code):
        is_inside = start <= at < end
        is_after = following is not None and start <= following < end
        if is_inside and not is_after and kinds.get(target + 2) != "WITH_EXCEPT_START":
            return True
    return False
