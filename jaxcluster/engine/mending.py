"""Puts right after a cell what it has broken and all that comes after needs.

What a cell changes on purpose stays as it is, as in a notebook: streams, hooks, ``print``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see ``mend``
import builtins
import operator
import signal
from collections.abc import Callable
from typing import Any

from jaxcluster.engine import log

_builtins: dict[str, Any] = dict(builtins.__dict__)
_whole: tuple[list[str], list[Any]] = ([], [])  # names and values when they were last found whole
_all, _callable, _len, _list, _map = all, callable, len, list, map


def mend(on_sigint: Callable[..., Any]) -> None:
    """On the main thread: SIGINT's handler as in every Jupyter kernel, builtins, faulthandler."""
    mend_builtins()
    # ``signal.getsignal`` looks for the answer in an enum first: 18 us between cells, this takes 1.
    if _signal.getsignal(signal.SIGINT) != on_sigint:
        signal.signal(signal.SIGINT, on_sigint)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    log.watch_again()


def mend_builtins() -> None:
    """Bring back what is gone from ``builtins``, or can't be called any more. Any thread; 5 us.

    Mostly nothing has changed since the last look, not even the order: then no name is looked up.
    """
    global _whole
    now = builtins.__dict__
    names, values = _list(now), _list(now.values())  # at once: another thread may change it
    if (
        _len(names) == _len(values) == _len(_whole[0])
        and _all(_map(operator.is_, values, _whole[1]))
        and _all(_map(operator.is_, names, _whole[0]))
    ):
        return
    for name, value in _builtins.items():
        if now.get(name) is not value and (name not in now or not _callable(now[name])):
            now[name] = value
    _whole = (_list(now), _list(now.values()))
