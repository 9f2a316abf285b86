"""The one way into code of the user's, and so the one place where an interrupt may be raised.

Python raises KeyboardInterrupt at whatever instruction a signal finds: in bookkeeping of ours it
would cost a reply, or leave a lock behind that nobody holds. So the handler looks at the frames:
below ``call`` and ``wait_for`` it raises, elsewhere the signal comes again a moment later. Nor does
IPython bear it everywhere: raised in its own steps, it costs the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.engine.control import ControlChannel

T = TypeVar("T")


def call(function: Callable[..., T], *args: Any) -> T:
    """Call what may be, or run, the user's code."""
    return function(*args)


async def wait_for(code: Awaitable[T]) -> T:
    """The same for code that awaits."""
    return await code


def is_inside(frame: FrameType | None) -> bool | None:
    """Whether ``frame`` is the user's code or called by it: KeyboardInterrupt may be raised there.

    Returns:
      None where it may be only if the wait for a better moment gets long: in IPython's own steps
      around the code, which hooks and transformers of the user's may hold up.
      False: nowhere in the cell's course, or within what holds a lock of ours for microseconds.
    """
    innermost, is_run = frame, False
    while frame is not None:
        if frame.f_code in WHOLE:
            return False
        if frame.f_code in _WAYS_IN:
            return True if is_run else None if frame is not innermost else False
        is_run = is_run or frame.f_code in RUNS
        frame = frame.f_back
    return False


# What executes a cell's lines, displays what they end in, and renders what they raise. ``comms``
# adds what passes on to a widget what was done to it.
RUNS: set[CodeType] = {InteractiveShell.run_code.__code__}
_WAYS_IN: set[CodeType] = {call.__code__, wait_for.__code__}
# What holds a lock of ours; ``comms`` adds its own.
WHOLE: set[CodeType] = {
    ControlChannel.post.__code__,
    ControlChannel._stream_text.__code__,
}
