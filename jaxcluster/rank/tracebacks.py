"""Errors of cells, as they are shown: with the user's lines, and fit for a message.

Frames of JAX, of debuggers and of ours are folded. JAX folds its own frames in a notebook, but
misses some, and IPython shows the innermost frame in any case. ``JAX_TRACEBACK_FILTERING=off``
shows them all.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcluster import wire
from jaxcluster.rank.names import explain_lost
from jaxcluster.rank.places import OURS, cell_number, is_folded, name_cells

DEEP = 100  # frames of a traceback that IPython renders
MESSAGE_CHARS = 20_000  # of an error's message, and of a frame
# A frame as Python writes it (in a group, after bars), and such frames in a row.
_FRAME = re.compile(
    r'^(?P<bars>[ |]*?)  File "(?P<file>[^"\n]*)", line \d+.*\n(?:(?P=bars)    .*\n)*', re.M
)
_FRAMES = re.compile(rf"(?:{_FRAME.pattern})+", re.M)


def install(shell: Any, lost: Mapping[str, str]) -> None:
    """Have IPython fold them, and fail of no exception.

    Args:
      lost: why names were lost, which an error about one says.
    """
    renderer = shell.InteractiveTB
    render, get_records = renderer.structured_traceback, getattr(renderer, "get_records", None)

    def rendered(kind: Any, error: BaseException, *args: Any, **kwargs: Any) -> Any:
        explain_lost(error, lost, shell.user_ns)
        return plain_lines(error) if is_odd(error) else render(kind, error, *args, **kwargs)

    def folded(*args: Any, **kwargs: Any) -> Any:
        assert get_records is not None
        records = get_records(*args, **kwargs)
        return [one for one in records if not (_is_on() and is_folded(one.filename or ""))]

    renderer.structured_traceback = rendered
    if get_records is not None:  # else its own name has moved: it folds what JAX says
        renderer.get_records = folded


def fold(text: str) -> str:
    """Text that may have tracebacks in it, as Python writes them, without these frames.

    Nor those around a cell. XLA puts all from the process's first one on into the error of a
    program whose callback has failed.
    """
    if 'File "' not in text:
        return text
    return name_cells(_FRAMES.sub(_own, text) if _is_on() else text)


def _own(found: re.Match[str]) -> str:
    """The frames that are shown, among frames in a row."""
    frames = list(_FRAME.finditer(found[0]))
    files = [frame["file"] for frame in frames]
    begin = next((n for n, file in enumerate(files) if cell_number(file) is not None), 0)
    if not any(file.startswith(OURS) for file in files[:begin]):
        begin = 0
    return "".join(frame[0] for frame in frames[begin:] if not is_folded(frame["file"]))


def _is_on() -> bool:
    """Whether frames are to be folded."""
    import jax

    return getattr(jax.config, "jax_traceback_filtering", "auto") != "off"


# --------------------------------------------------------------------------- errors


def error_info(error: BaseException, lines: Sequence[Any] | None = None) -> wire.ErrorInfo:
    """An exception for the notebook.

    Args:
      lines: its traceback as IPython has rendered it; None: it has not.
    """
    lines = plain_lines(error) if lines is None else lines
    told = [_fit(line if isinstance(line, str) else wire.told(line)) for line in lines]
    name = wire.type_name(type(error))
    return wire.ErrorInfo(name, message_of(error), told, line_of(error))


def _fit(text: str) -> str:
    return wire.clean(wire.shorten(fold(text), MESSAGE_CHARS))


def message_of(error: BaseException) -> str:
    """``str(error)``, or why there is none."""
    try:
        return _fit(str.__str__(str(error)))
    except BaseException as why:  # of the user's class
        return f"<its __str__ raised {wire.type_name(type(why))}>"


def line_of(error: BaseException) -> int | None:
    """The innermost line of a cell that an exception has come through."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        found = line if cell_number(frame.f_code.co_filename) is not None else found
    return found


def is_odd(error: BaseException) -> bool:
    """Whether IPython must not render an exception.

    It leaves out the parts of a group. It takes minutes for a very long message. With JAX imported
    it takes half a minute for a RecursionError. For each frame of a cell it looks through all
    modules. So too where this is true of a cause.
    """
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        try:
            is_long = len(str(error)) > MESSAGE_CHARS
        except BaseException:  # of the user's class
            return True
        walked = traceback.walk_tb(error.__traceback__)
        depth = sum(not is_folded(frame.f_code.co_filename) for frame, _ in walked)
        if isinstance(error, BaseExceptionGroup) or is_long or depth > DEEP:
            return True
        error = error.__cause__ or error.__context__ or error
    return False


def plain_lines(error: BaseException) -> list[str]:
    """The traceback as Python writes it, from the cell's own line on."""
    with contextlib.suppress(Exception):  # of the user's class
        at = error.__traceback__
        while at is not None and cell_number(at.tb_frame.f_code.co_filename) is None:
            at = at.tb_next
        told = traceback.format_exception(type(error), error, at or error.__traceback__)
        return [_fit("".join(told).rstrip("\n"))]
    return [f"{wire.type_name(type(error))}: {message_of(error)}"]
