"""Tracebacks with the user's lines: frames of JAX, of debuggers and of ours are folded.

As JAX folds its own in a notebook, whose list of what is its own has gaps, and where IPython shows
the innermost frame all the same. ``JAX_TRACEBACK_FILTERING=off`` shows them all.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from jaxcluster.engine.foreign import is_folded, is_folded_file

HIDE = "__tracebackhide__"  # IPython's sign, in the local variables of a frame


def is_on() -> bool:
    """Whether frames are to be folded."""
    import jax

    return getattr(jax.config, "jax_traceback_filtering", "auto") != "off"


def install(shell: Any) -> None:
    """Have IPython fold them. Where its own name for it has moved it folds what JAX says."""
    renderer = shell.InteractiveTB
    get_records = getattr(renderer, "get_records", None)
    if get_records is None:
        return

    def folded(etb: TracebackType, *args: Any, **kwargs: Any) -> Any:
        if not is_on():
            return get_records(etb, *args, **kwargs)
        _hide(etb)
        records = list(get_records(etb, *args, **kwargs))
        while records and _is_hidden(records[-1]):
            records.pop()  # IPython would show the last one, hidden or not
        return records

    renderer.get_records = folded


def _hide(etb: TracebackType | None) -> None:
    for frame, _ in traceback.walk_tb(etb):
        if is_folded(frame.f_code) and frame.f_code.co_name != "<module>":
            frame.f_locals[HIDE] = True


def _is_hidden(record: Any) -> bool:
    frame = getattr(record, "frame", None)
    return frame is not None and is_folded(frame.f_code)


def fold(told: traceback.TracebackException) -> traceback.TracebackException:
    """The same without these frames, in all exceptions that belong to it."""
    if is_on():
        seen: set[int] = set()
        todo: list[traceback.TracebackException | None] = [told]
        while todo:
            one = todo.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            own = [frame for frame in one.stack if not is_folded_file(frame.filename)]
            one.stack[:] = own
            todo += [one.__cause__, one.__context__, *(one.exceptions or [])]
    return told


def format_frames(etb: TracebackType | None) -> list[str]:
    """A traceback's frames as text, without these; all of them where nothing else is there."""
    stack = traceback.extract_tb(etb)
    own = [frame for frame in stack if not is_folded_file(frame.filename)]
    return traceback.StackSummary.from_list(own if own and is_on() else stack).format()
