"""What is decided about cells: a room without sockets, threads and clocks.

Events come in, with the time as a field; what is to be done comes out, as data (``actions``).
Whoever has the link to the ranks carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

_A = TypeVar("_A")
_T = TypeVar("_T")


def carry(steps: Generator[_A, Any, _T], do: Callable[[_A], Any]) -> _T:
    """Carry through what is decided step by step: ``do`` each, and send what comes of it."""
    answer = None
    while True:
        try:
            action = steps.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        answer = do(action)
