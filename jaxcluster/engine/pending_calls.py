"""Has the main thread call a function between two of its own bytecodes.

For what only the thread itself may look at: the variables of its frames. CPython's pending calls
are used and no signal, which would cut short what C code of the user's waits for (EINTR).
"""

from __future__ import annotations

import ctypes
import queue
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from jaxcluster import wire

Call = Callable[[FrameType | None], Any]

_calls: deque[tuple[Call, wire.Inbox[Any]]] = deque()
_is_pending: list[bool] = []  # not empty: the main thread was told, and has not come yet
_CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def call_on_main_thread(call: Call, timeout_s: float) -> Any:
    """What ``call`` returns when the main thread calls it with the frame that it is in.

    ``call`` must take microseconds and no lock. Not on the main thread itself.

    Returns:
      None where that raised, or where the main thread runs no bytecode within ``timeout_s``: it is
      in C code, or does not get the processor.
    """
    answer: wire.Inbox[Any] = wire.Inbox()
    _calls.append((call, answer))
    if not _is_pending:
        _is_pending.append(True)
        if _add_pending_call(_callback, None) != 0:  # no room: others have left theirs
            _is_pending.clear()
    try:
        return answer.get(timeout=timeout_s)
    except queue.Empty:
        _calls.clear()  # it would only be late; whoever else asks now asks again
        return None


def run_pending(_: Any = None) -> int:
    """Called by the interpreter, on the main thread."""
    _is_pending.clear()
    while _calls:
        try:
            call, answer = _calls.popleft()
        except IndexError:  # given up just now
            break
        try:
            answer.put(call(sys._getframe(1)))
        except Exception:  # the asking thread waits for an answer
            answer.put(None)
    return 0


_callback = _CALLBACK(run_pending)  # kept: the interpreter knows its address alone
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = [_CALLBACK, ctypes.c_void_p]
_add_pending_call.restype = ctypes.c_int
