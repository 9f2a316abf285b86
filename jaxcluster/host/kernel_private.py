"""Private names of IPython, ipykernel and ``comm``, seen in IPython 9.18, ipykernel 7.4, comm 0.2.

``tests/unit/test_kernel_private.py`` fails loudly when one has moved; a cell runs all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def last_traceback(shell: Any) -> list[str]:
    """The lines of the error that IPython has shown last."""
    return getattr(shell, "_last_traceback", None) or []


def set_last_traceback(shell: Any, lines: list[str] | None) -> None:
    """``lines`` are what of an error is shown, and goes into the reply."""
    shell._last_traceback = lines


def replace_traceback_display(
    shell: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Have an error's lines shown by what ``make`` makes of the present function."""
    if (present := getattr(shell, "_showtraceback", None)) is not None:
        shell._showtraceback = make(present)


def replace_cancelling(kernel: Any, cancelling: Callable[..., Any]) -> None:
    """Have a signal cancel a client's awaited code by ``cancelling``."""
    kernel._cancel_on_sigint = cancelling


def allows_stdin(kernel: Any) -> bool:
    """Whether the page of the running cell answers questions; where it is not known, not."""
    return bool(getattr(kernel, "_allow_stdin", False)) and hasattr(kernel, "_parent_ident")


def shell_ident(kernel: Any) -> Any:
    """Who has sent the running cell: who is to be asked."""
    return kernel._parent_ident["shell"]


def mark_closed(comm: Any) -> None:
    """Keep a comm from telling the page of its end, which another takes over or knows."""
    comm._closed = True
