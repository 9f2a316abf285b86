"""Where a loop is in what it goes over, and how another one gets there."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

_STATES = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
_BUILT_IN = (range, list, tuple, str, bytes)


class Began(RuntimeError):
    """A loop can't go on: what it goes over has no beginning any more."""


def state_of(iterable: Any) -> Any:
    """Its own account of where it is; None where it has none, and items are counted instead."""
    ways = _ways(iterable)
    return None if ways is None else ways[0]()


def _ways(iterable: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    for read, write in _STATES:
        found = getattr(iterable, read, None), getattr(iterable, write, None)
        if callable(found[0]) and callable(found[1]):
            return found  # type: ignore[return-value]
    return None


def start(iterable: Any, step: int, state: Any) -> Iterator[Any]:
    """Its items from ``step`` on; those before it are passed over at once.

    Args:
      state: what ``state_of`` has said then.

    Raises:
      Began: it is a generator that has begun: what it has given is gone.
    """
    if not step:
        return iter(iterable)
    if state is not None and (ways := _ways(iterable)) is not None:
        ways[1](state)
        return iter(iterable)
    source = _source(iterable)
    if inspect.isgenerator(source) and inspect.getgeneratorstate(source) != inspect.GEN_CREATED:
        raise Began(
            "What this loop goes over is a generator that has begun, so it can't go on where it "
            "was kept. Make the generator in the cell, or begin at 0: %jaxcluster steps forget"
        )
    if isinstance(iterable, Sequence):  # also a data set that is slow to give an item
        return _from(iterable, step)
    items: Iterator[Any] = iter(iterable)
    next(itertools.islice(items, step, step), None)
    return items


def _from(items: Sequence[Any], step: int) -> Iterator[Any]:
    if isinstance(items, _BUILT_IN):
        return iter(items[step:])
    return (items[at] for at in range(step, len(items)))


def _source(iterable: Any) -> Any:
    """What an ``enumerate`` counts, else the thing itself."""
    return iterable.__reduce__()[1][0] if type(iterable) is enumerate else iterable


def total(iterable: Iterable[Any]) -> int | None:
    """How many items it has; None: nobody knows."""
    try:
        found = operator.length_hint(_source(iterable), -1)
    except Exception:  # of the user's making
        return None
    return found if found >= 0 else None
