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
from collections.abc import Callable, Container, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.engine import log
from jaxcluster.engine.library_code import (
    CELL_DIRECTORY,
    OURS,
    is_folded,
    is_folded_file,
    name_cells,
)

T = TypeVar("T")

DEEP = 100  # frames of a traceback that IPython renders
HIDE = "__tracebackhide__"  # IPython's sign, in the local variables of a frame
MESSAGE_CHARS = 20_000  # of an error's message, and of a frame
_FRAME = re.compile(r'^ *File "([^"\n]*)", line \d+.*\n(?:    .*\n)*', re.MULTILINE)


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
        for frame, _ in traceback.walk_tb(etb):
            if is_folded(frame.f_code) and frame.f_code.co_name != "<module>":
                frame.f_locals[HIDE] = True
        records = list(get_records(etb, *args, **kwargs))
        while records and is_folded_file(getattr(records[-1], "filename", None) or ""):
            records.pop()  # IPython would show the last one, hidden or not
        return records

    renderer.get_records = folded


def entries(etb: TracebackType | None) -> Iterator[TracebackType]:
    """Those of a traceback, outermost first."""
    while etb is not None:
        yield etb
        etb = etb.tb_next


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


def fold_text(text: str) -> str:
    """A message that has a traceback in it without these frames, and those around the cell's.

    XLA puts one into the error of a program whose callback has failed, from the process's first
    frame on.
    """
    if OURS not in text or not is_on():
        return text
    files = [(at.start(), at[1]) for at in _FRAME.finditer(text)]
    begin = next((start for start, file in files if file.startswith(CELL_DIRECTORY)), 0)

    def own(at: re.Match[str]) -> str:
        return "" if at.start() < begin or is_folded_file(at[1]) else at[0]

    return name_cells(_FRAME.sub(own, text))


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
    told = [line if isinstance(line, str) else wire.told(line) for line in lines]
    return wire.ErrorInfo(
        ename=wire.type_name(type(error)),
        evalue=message_of(error),
        traceback=[wire.clean(wire.shorten(fold_text(one), MESSAGE_CHARS)) for one in told],
        lineno=line_of(error, cells),
    )


def message_of(error: BaseException) -> str:
    """``str(error)``, or why there is none."""
    try:
        text = str.__str__(str(error))
    except BaseException as why:  # of the user's class
        return f"<its __str__ raised {wire.type_name(type(why))}>"
    return wire.clean(wire.shorten(fold_text(text), MESSAGE_CHARS))


def line_of(error: BaseException, cells: Container[str]) -> int | None:
    """The innermost line of a cell that an exception has come through."""
    files = [(at.tb_frame.f_code.co_filename, at.tb_lineno) for at in entries(error.__traceback__)]
    return next((line for file, line in reversed(files) if file in cells), None)


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
        frames = [at for at in entries(error.__traceback__) if not is_folded(at.tb_frame.f_code)]
        if isinstance(error, BaseExceptionGroup) or is_long or len(frames) > DEEP:
            return True
        error = error.__cause__ or error.__context__ or error
    return False


def plain_lines(error: BaseException, cells: Container[str]) -> list[str]:
    """What Python writes of an exception, from the cell's own line on."""
    with contextlib.suppress(Exception):  # of the user's class
        at = in_a_cell(error.__traceback__, cells)
        shown = fold(traceback.TracebackException(type(error), error, at))
        told = wire.clean(name_cells("".join(shown.format()))).rstrip("\n")
        return [wire.shorten(told, MESSAGE_CHARS)]
    return [f"{wire.type_name(type(error))}: {message_of(error)}"]


def in_a_cell(at: TracebackType | None, cells: Container[str]) -> TracebackType | None:
    """A traceback from its first frame in a cell on; all of it where there is none."""
    return next((one for one in entries(at) if one.tb_frame.f_code.co_filename in cells), at)


def of_ours(error: BaseException) -> str:
    """An exception of jaxcluster's or IPython's own code, in a line."""
    place = ""
    for at in entries(error.__traceback__):
        code = at.tb_frame.f_code
        place = f" ({code.co_filename.rpartition('/')[2]}:{at.tb_lineno}, {code.co_qualname})"
    return f"{wire.type_name(type(error))}: {wire.shorten(message_of(error), 1000)}{place}"


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
