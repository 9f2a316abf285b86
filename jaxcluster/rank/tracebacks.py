"""Errors of cells, as they are shown: with the user's lines, and fit for a message.

Frames of JAX, of debuggers and of ours are folded. JAX folds its own in a notebook, but its list of
what is its own has gaps, and IPython shows the innermost frame all the same.
``JAX_TRACEBACK_FILTERING=off`` shows them all.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Container, Sequence
from types import TracebackType
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.rank import log
from jaxcluster.rank.places import (
    CELL_DIRECTORY,
    OURS,
    is_folded,
    name_cells,
    owner,
)

T = TypeVar("T")

DEEP = 100  # frames of a traceback that IPython renders
HIDE = "__tracebackhide__"  # IPython's sign, in the local variables of a frame
MESSAGE_CHARS = 20_000  # of an error's message, and of a frame
# A frame as Python writes it, in a group behind bars.
_FRAME = re.compile(
    r'^(?P<bars>[ |]*?)  File "(?P<file>[^"\n]*)", line \d+.*\n(?:(?P=bars)    .*\n)*', re.M
)


def install(shell: Any) -> None:
    """Have IPython fold them. Where its own name for it has moved it folds what JAX says."""
    renderer = shell.InteractiveTB
    get_records = getattr(renderer, "get_records", None)
    if get_records is None:
        return

    def folded(etb: TracebackType, *args: Any, **kwargs: Any) -> Any:
        if not _is_on():
            return get_records(etb, *args, **kwargs)
        for frame, _ in traceback.walk_tb(etb):
            if is_folded(frame.f_code) and frame.f_code.co_name != "<module>":
                frame.f_locals[HIDE] = True
        records = list(get_records(etb, *args, **kwargs))
        while records and owner(getattr(records[-1], "filename", None) or "") == "folded":
            records.pop()  # IPython would show the last one, hidden or not
        return records

    renderer.get_records = folded


def fold(text: str) -> str:
    """Text that may have tracebacks in it, as Python writes them, without these frames.

    Nor those around a cell. XLA puts all from the process's first one on into the error of a
    program whose callback has failed.
    """
    if 'File "' not in text:
        return text
    frames = list(_FRAME.finditer(text))
    if not frames or not _is_on():
        return name_cells(text)
    begin, has_ours = 0, False
    for at in frames:
        if has_ours and at["file"].startswith(CELL_DIRECTORY):
            begin = at.start()
            break
        has_ours = has_ours or at["file"].startswith(OURS)

    def own(at: re.Match[str]) -> str:
        return "" if at.start() < begin or owner(at["file"]) == "folded" else at[0]

    return name_cells(_FRAME.sub(own, text))


def _is_on() -> bool:
    """Whether frames are to be folded."""
    import jax

    return getattr(jax.config, "jax_traceback_filtering", "auto") != "off"


# --------------------------------------------------------------------------- errors


def error_info(
    error: BaseException, lines: Sequence[Any] | None, cells: Container[str]
) -> wire.ErrorInfo:
    """An exception for the notebook.

    Args:
      lines: its traceback as IPython has rendered it; None: it has not.
      cells: the file names of cells.
    """
    lines = plain_lines(error, cells) if lines is None else lines
    told = [_fit(line if isinstance(line, str) else wire.told(line)) for line in lines]
    name = wire.type_name(type(error))
    return wire.ErrorInfo(name, message_of(error), told, line_of(error, cells))


def _fit(text: str) -> str:
    return wire.clean(wire.shorten(fold(text), MESSAGE_CHARS))


def message_of(error: BaseException) -> str:
    """``str(error)``, or why there is none."""
    try:
        return _fit(str.__str__(str(error)))
    except BaseException as why:  # of the user's class
        return f"<its __str__ raised {wire.type_name(type(why))}>"


def line_of(error: BaseException, cells: Container[str]) -> int | None:
    """The innermost line of a cell that an exception has come through."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        found = line if frame.f_code.co_filename in cells else found
    return found


def is_odd(error: BaseException) -> bool:
    """Whether IPython must not render an exception.

    It leaves out the parts of a group. It takes minutes for a very long message, and half a minute
    for a RecursionError in a process that has imported JAX: it looks through all modules for each
    frame of a cell. So too where this is true of a cause.
    """
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        try:
            is_long = len(str(error)) > MESSAGE_CHARS
        except BaseException:  # of the user's class
            return True
        walked = traceback.walk_tb(error.__traceback__)
        depth = sum(not is_folded(frame.f_code) for frame, _ in walked)
        if isinstance(error, BaseExceptionGroup) or is_long or depth > DEEP:
            return True
        error = error.__cause__ or error.__context__ or error
    return False


def plain_lines(error: BaseException, cells: Container[str]) -> list[str]:
    """What Python writes of an exception, from the cell's own line on."""
    with contextlib.suppress(Exception):  # of the user's class
        at = error.__traceback__
        while at is not None and at.tb_frame.f_code.co_filename not in cells:
            at = at.tb_next
        told = traceback.format_exception(type(error), error, at or error.__traceback__)
        return [_fit("".join(told).rstrip("\n"))]
    return [f"{wire.type_name(type(error))}: {message_of(error)}"]


def of_ours(error: BaseException) -> str:
    """An exception of jaxcluster's or IPython's own code, in a line."""
    return f"{wire.type_name(type(error))}: {wire.shorten(message_of(error), 1000)}"


def attempt(step: Callable[..., T], *args: Any) -> T | None:
    """Take a step of ours. What it raises is logged and shown, and life goes on."""
    try:
        return step(*args)
    except BaseException as error:
        log.error(error)
        with contextlib.suppress(BaseException):  # the stream may be the user's
            print(
                "jaxcluster itself failed after the cell's own code, which is not affected: "
                f"{of_ours(error)}. %jaxcluster logs has the whole traceback: please report it.",
                file=sys.stderr,
            )
        return None
