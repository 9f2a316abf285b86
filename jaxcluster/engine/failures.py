"""What is said of an exception, whatever its class does to those who ask."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container, Sequence
from types import TracebackType
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.engine import log, tracebacks
from jaxcluster.engine.private.arrays import why_copies_differ
from jaxcluster.engine.repair import repair_modules

T = TypeVar("T")

MESSAGE_CHARS = 20_000  # of an error's message
TRACEBACK_CHARS = 200_000  # of all its lines
MAX_CHAIN = 100  # causes and contexts
NO_DEVICE = (
    "The mesh or sharding has none of this rank's devices. A mesh of all devices has some on each "
    "rank: jax.make_mesh((jax.device_count(),), ('x',))"
)
NO_MESSAGE = "(its message is not available)"


def error_info(
    error: BaseException, lines: Sequence[Any], cells: Container[str], *, ask: bool = True
) -> wire.ErrorInfo:
    """An exception for the notebook.

    Args:
      lines: its traceback as IPython has rendered it.
      cells: the file names of cells.
      ask: call its ``__str__``, which is the user's code and may take for ever.
    """
    return wire.ErrorInfo(
        ename=wire.type_name(type(error)),
        evalue=message_of(error) if ask else NO_MESSAGE,
        traceback=_cut(lines),
        lineno=line_of(error, cells),
        hint=_hint(error) if ask else "",
    )


def _hint(error: BaseException) -> str:
    try:
        if type(error) is StopIteration and is_of_jax(traceback_of(error)):
            return NO_DEVICE
        return why_copies_differ(error)
    except Exception:  # JAX's function is another one by now
        return ""


def is_of_jax(at: TracebackType | None) -> bool:
    """Whether an exception was raised in JAX's own code."""
    name = ""
    for one in tracebacks.entries(at):
        name = str(one.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "jax"


def message_of(error: BaseException) -> str:
    """``str(error)``, or why there is none."""
    try:
        text = str.__str__(str(error))
    except BaseException as why:
        return f"<its __str__ raised {wire.type_name(type(why))}>"
    return wire.clean(wire.shorten(tracebacks.fold_text(text), MESSAGE_CHARS))


def line_of(error: BaseException, cells: Container[str]) -> int | None:
    """The innermost line of a cell that an exception has come through."""
    entries = tracebacks.entries(traceback_of(error))
    lines = [at.tb_lineno for at in entries if at.tb_frame.f_code.co_filename in cells]
    return lines[-1] if lines else None


def traceback_of(error: BaseException) -> TracebackType | None:
    """``error.__traceback__``, past what its class may have in its place."""
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def is_odd(error: BaseException) -> bool:
    """Whether IPython can't show an exception as it is: it must not be asked to.

    A group, or one whose class raises where it is asked for its name or message, or whose message
    is so long that to render it takes minutes; also where this is true of a cause or context.
    """
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if issubclass(type(one), BaseExceptionGroup) or len(seen) > MAX_CHAIN:
            return True
        try:
            kind: Any = type(one)
            f"{kind.__name__}{kind.__qualname__}{kind.__module__}".encode()
            if len(str(one)) > MESSAGE_CHARS or one.__traceback__ is not traceback_of(one):
                return True
            todo += [e for e in (one.__cause__, one.__context__) if e is not None]
        except KeyboardInterrupt:
            raise
        except BaseException:  # the error's class may do anything
            return True
    return False


def plain_lines(error: BaseException, cells: Container[str], *, ask: bool = True) -> list[str]:
    """The lines to show of an exception that ``is_odd``, from the cell's own line on.

    Args:
      ask: for its message, and so for the classes of its parts.
    """
    if ask and issubclass(type(error), BaseExceptionGroup):
        try:
            return [wire.shorten(_as_python_does(error, cells), MESSAGE_CHARS)]
        except KeyboardInterrupt:
            raise
        except BaseException:  # of one of its parts
            pass
    frames = tracebacks.format_frames(in_a_cell(traceback_of(error), cells))
    message = message_of(error) if ask else NO_MESSAGE
    name = wire.type_name(type(error))
    return [
        "Traceback (most recent call last):",
        *(f.rstrip() for f in frames),
        f"{name}: {message}",
    ]


def script_lines(error: BaseException, cells: Container[str]) -> list[str]:
    """What Python writes of an exception that has ended a script, from the script's own line on."""
    if is_odd(error):
        return plain_lines(error, cells)
    try:
        return [_as_python_does(error, cells).rstrip("\n")]
    except Exception:  # of a __notes__ or a repr
        return plain_lines(error, cells)


def _as_python_does(error: BaseException, cells: Container[str]) -> str:
    at = in_a_cell(traceback_of(error), cells)
    shown = tracebacks.fold(traceback.TracebackException(type(error), error, at))
    return wire.clean("".join(shown.format()))


def in_a_cell(at: TracebackType | None, cells: Container[str]) -> TracebackType | None:
    """A traceback from its first frame in a cell on; all of it where there is none."""
    entries = tracebacks.entries(at)
    return next((one for one in entries if one.tb_frame.f_code.co_filename in cells), at)


def of_ours(error: BaseException) -> str:
    """An exception of jaxcluster's or IPython's own code, in a line."""
    place = ""
    for at in tracebacks.entries(traceback_of(error)):
        code = at.tb_frame.f_code
        place = f" ({code.co_filename.rpartition('/')[2]}:{at.tb_lineno}, {code.co_qualname})"
    return f"{wire.type_name(type(error))}: {wire.shorten(message_of(error), 1000)}{place}"


def attempt(faults: list[str], step: Callable[..., T], *args: Any) -> T | None:
    """Take a step of ours. What it raises is told in ``faults`` and logged, and life goes on."""
    try:
        return step(*args)
    except BaseException as error:
        repair_modules()  # the cell may have broken what it takes to tell that
        faults.append(of_ours(error))
        log.error(error)
        return None


def _cut(lines: Sequence[Any]) -> list[str]:
    told = [line if isinstance(line, str) else wire.told(line) for line in lines]
    texts = [wire.clean(wire.shorten(tracebacks.fold_text(one), MESSAGE_CHARS)) for one in told]
    room = TRACEBACK_CHARS - sum(map(len, texts[-1:]))
    kept = []
    for text in texts[:-1]:
        room -= len(text)
        if room < 0:
            kept.append("[... more frames ...]")
            break
        kept.append(text)
    return kept + texts[-1:]
