"""Private names of ipykernel and ``comm``, seen in ipykernel 7.4, comm 0.2.

``tests/unit/test_kernel_private.py`` fails loudly when one has moved; a cell runs all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
