"""Puts right after a cell what it has broken and all that comes after needs.

What a cell changes on purpose stays as it is, as in a notebook: streams, hooks, ``print``.
"""

from __future__ import annotations

import builtins
import operator
import signal
from collections.abc import Callable
from typing import Any

from jaxcluster.engine import log

_builtins: dict[str, Any] = dict(builtins.__dict__)
_callable = callable
_all, _map = all, map


def mend(on_sigint: Callable[..., Any]) -> None:
    """On the main thread: SIGINT's handler as in every Jupyter kernel, builtins, faulthandler."""
    mend_builtins()
    if signal.getsignal(signal.SIGINT) != on_sigint:
        signal.signal(signal.SIGINT, on_sigint)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    log.watch_again()


def mend_builtins() -> None:
    """Bring back what is gone from ``builtins``, or can't be called any more. Any thread; 10 us."""
    now = builtins.__dict__
    if _all(_map(operator.is_, _map(now.get, _builtins), _builtins.values())):
        return
    for name, value in _builtins.items():
        if now.get(name) is not value and (name not in now or not _callable(now[name])):
            now[name] = value
