"""Private names of ipykernel and ``comm``, seen in ipykernel 7.4, comm 0.2.

``tests/unit/test_kernel_private.py`` fails loudly when one has moved; a cell runs all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace_cancelling(kernel: Any, cancelling: Callable[..., Any]) -> None:
    """Have a signal cancel a client's awaited code by ``cancelling``."""
    kernel._cancel_on_sigint = cancelling


def asker(kernel: Any) -> Any:
    """Who has sent the running cell, if its page answers questions; None where not, or unknown."""
    allows = getattr(kernel, "_allow_stdin", False)
    return getattr(kernel, "_parent_ident", {}).get("shell") if allows else None


def mark_closed(comm: Any) -> None:
    """Keep a comm from telling the page of its end, which another takes over or knows."""
    comm._closed = True
