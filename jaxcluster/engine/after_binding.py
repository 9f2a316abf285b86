"""An interrupt that waits until a launch's results have their names.

A signal that comes while a program runs is heard where its launch returns, and raised there it
would cost the results. The program may have taken the arrays that it was given (donation): then a
stopped training loop would have lost its state.

Whatever is to catch it, or to run on the way out, comes first: it is raised at an instruction that
the same handlers cover, or behind the ``__exit__`` of a ``with`` whose body has ended.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from jaxcluster.engine import usercode

_PASSING = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_BINDING = ("LOAD", "COPY", "SWAP", "EXTENDED", "STORE", "UNPACK")  # also to x.y or x[y]
_BEFORE_EXIT = ("LOAD_CO", "COPY", "SWAP", "EXTENDED", "NOP", "PRECALL")
_EXIT = dis.opmap["WITH_EXCEPT_START"]
_TABLE_OF: Any = getattr(dis, "_parse_exception_table", None)  # of Python 3.11 to 3.14
_RETURNED = -1


class AfterBinding:
    """Of one rank's main thread.

    Attributes:
      waits: an interrupt is to be raised: at an instruction, or by whoever began it, where that
        does not come soon.
    """

    def __init__(self) -> None:
        self.waits = False
        self._frame: FrameType | None = None
        self._at = 0
        self._then: Callable[[FrameType], None] | None = None

    def begin(self, frame: FrameType, then: Callable[[FrameType], None]) -> bool:
        """Raise KeyboardInterrupt once what ``frame`` has launched has its names; False: not so.

        Args:
          then: called right before, with the frame in which it is raised.
        """
        if sys.gettrace() is not None or _TABLE_OF is None:
            return False
        if (place := _where_bound(frame)) is None:
            return False
        frame, self._at = place
        self.waits, self._then = True, then
        self._frame, frame.f_trace, frame.f_trace_opcodes = frame, self._trace, True
        sys.settrace(_trace_no_call)
        return True

    def end(self) -> None:
        """There is no more waiting."""
        self.waits = False
        if self._frame is not None:
            self._frame.f_trace, self._frame.f_trace_opcodes = None, False
            self._frame = None
        if sys.gettrace() is _trace_no_call:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self.waits or frame is not self._frame:
            return None
        if event != "opcode" or frame.f_lasti != self._at:
            return self._trace
        then = self._then
        self.end()
        if then is not None:
            then(frame)
        raise KeyboardInterrupt


def _trace_no_call(frame: FrameType, event: str, argument: Any) -> None:
    """What is called meanwhile is not traced."""


def _where_bound(frame: FrameType) -> tuple[FrameType, int] | None:
    """In which frame, before which instruction, the value of its call has its names."""
    while (at := _Way(frame.f_code, frame.f_lasti).end()) == _RETURNED:
        caller = None if frame.f_code.co_flags & _PASSING else frame.f_back
        if caller is None or caller.f_code in usercode.RUNS:
            return None
        frame = caller  # it binds what is returned
    return None if at is None else (frame, at)


class _Way:
    """What ``code`` does with the value of its call at ``at``."""

    def __init__(self, code: CodeType, at: int) -> None:
        self._bytes, self._table = code.co_code, _TABLE_OF(code)
        self._handler = self._handler_of(at)
        self._steps = (step for step in dis.get_instructions(code) if step.offset > at)

    def end(self) -> int | None:
        """Before which instruction the value has its names, and nothing else has begun.

        Returns:
          None: it gets none at once, or only where other handlers would catch an interrupt.
          ``_RETURNED``: the caller has it.
        """
        num_unnamed, has_name, is_parted = 1, False, False
        for step in self._steps:
            if self._handler_of(step.offset) != self._handler:
                behind = self._leave_with(step)
                if behind is None or not num_unnamed:
                    return behind
            elif not num_unnamed:
                return step.offset
            elif step.opname.startswith(_BINDING):
                num_unnamed += dis.stack_effect(step.opcode, step.arg, jump=False)
                is_parted = is_parted or step.opname.startswith("UNPACK")
                has_name = has_name or (step.opname.startswith("STORE") and not is_parted)
                if step.opname == "STORE_FAST_LOAD_FAST" and num_unnamed == 1:
                    num_unnamed = 0  # what it loads is of the next statement
            elif step.opname == "RETURN_VALUE":
                return _RETURNED if num_unnamed == 1 else None
            else:
                return step.offset if has_name else None
        return None

    def _leave_with(self, step: dis.Instruction) -> int | None:
        """Pass over a ``with``'s exit, which ``step`` begins: to the instruction behind it."""
        if self._handler is None or self._bytes[self._handler + 2] != _EXIT:
            return None  # it is no handler of a ``with``, which begins with PUSH_EXC_INFO and this
        while step.opname.startswith(_BEFORE_EXIT):
            step = next(self._steps)
        dropped = next(self._steps)
        if step.opname != "CALL" or dropped.opname != "POP_TOP":
            return None  # ``async with`` awaits it
        self._handler = self._handler_of(dropped.offset)
        return dropped.offset

    def _handler_of(self, at: int) -> int | None:
        return next((target for start, end, target, *_ in self._table if start <= at < end), None)
