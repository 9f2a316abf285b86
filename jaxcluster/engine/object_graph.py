"""What values lead to: arrays, and what is shared with others. For when a cell is undone.

By Python's garbage collector, many values at once: a million objects in some 0.4 s. All of it has
an end: what was not looked through by then is said, and whoever asked has to name it.
"""

from __future__ import annotations

import contextlib
import gc
import time
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxcluster.engine import value_copies
from jaxcluster.engine.arrays import base_array, is_array, is_tracer
from jaxcluster.engine.changes import is_imported, is_in_module, length
from jaxcluster.engine.user_names import is_of_module, is_users
from jaxcluster.engine.value_copies import FIXED, WEAK, WRAPPER, kind_of

LOOK_S = 0.7  # for how long values are looked through
MAY_CHANGE_S = 0.02  # and one alone, for what of it may change
_AT_ONCE = 4096

# What runs the cells leads to all variables, and to what is kept of them.
_AROUND = ("IPython", "ipykernel", "ipyparallel", "jaxcluster", "asyncio", "tornado", "zmq")
_SKIP, _TAKE, _ASK, _ARRAY = range(4)
_ways: dict[type, int] = {}


def arrays_within(
    values: Iterable[Any],
    copies: Mapping[int, Any],
    seen: dict[int, Any] | None = None,
    most_s: float = LOOK_S,
) -> list[Any]:
    """The jax and numpy arrays that values reach, also deleted ones.

    Args:
      copies: by a value's id, what is to be taken for its contents: it may have changed since.
      seen: by their ids the values that are passed over; it grows.

    Raises:
      TimeoutError: there is more than can be looked through.
    """
    seen = {} if seen is None else seen
    found = []
    # What is opaque may lead anywhere, to what is kept here too.
    for new in _walk(values, copies, seen, time.monotonic() + most_s, known_alone=True):
        found += [one for one in new if _ways[type(one)] == _ARRAY and not is_tracer(one)]
    return found


def reachable_from(values: Iterable[Any]) -> tuple[dict[int, Any], bool]:
    """By their ids what may change of what ``values`` lead to, and they themselves.

    And whether that is all of it: it is not if there is more than can be looked through.
    """
    found: dict[int, Any] = {}
    are_all = True
    try:
        for _ in _walk(values, {}, found, time.monotonic() + LOOK_S):
            pass
    except TimeoutError:
        are_all = False
    # An empty one is everybody's. What others hold has been met as well.
    found = {at: one for at, one in found.items() if type(one) not in (tuple, frozenset)}
    unknown = [one for one in found.values() if kind_of(type(one)).opaque]
    return found | {id(d): d for one in unknown for d in value_copies.attributes_of(one)}, are_all


def sharing(
    names: Mapping[str, Any],
    targets: AbstractSet[int],
    copies: Mapping[int, Any],
    most_s: float = LOOK_S,
) -> tuple[set[str], set[str]]:
    """The user's names that lead to one of these values (ids), and those not looked through.

    Args:
      copies: see ``arrays_within``.
    """
    until = time.monotonic() + most_s
    found, late = set[str](), set[str]()
    clean: dict[int, Any] = {}  # what leads to none of them
    for name, value in sorted(users_among(names), key=lambda item: length(item[1])):
        seen = dict[int, Any]()
        try:  # one that is large leaves time for the others
            begun = time.monotonic()
            for new in _walk([value], copies, seen, begun + (until - begun) / 2, clean):
                if not targets.isdisjoint(map(id, new)):
                    found.add(name)
                    break
            else:
                clean |= seen
        except TimeoutError:
            late.add(name)
    return found, late


def leading_to_deleted(
    names: Mapping[str, Any], suspects: Iterable[str], copies: Mapping[int, Any]
) -> list[str]:
    """The names that lead to deleted arrays: those of the suspects, and what shares theirs.

    Args:
      copies: see ``arrays_within``.
    """
    until = time.monotonic() + LOOK_S
    deleted, seen = set[int](), dict[int, Any]()
    values = [names[name] for name in suspects if name in names]
    for value in sorted(values, key=length):
        with contextlib.suppress(TimeoutError):  # one that is large leaves time for the others
            most_s = (until - time.monotonic()) / 2
            deleted |= {
                id(one) for one in arrays_within([value], copies, seen, most_s) if _is_deleted(one)
            }
    return sorted(sharing(names, deleted, copies)[0]) if deleted else []


def _is_deleted(array: Any) -> bool:
    return is_array(array) and bool(base_array(array).is_deleted())


def users_among(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(n, v) for n, v in names.items() if type(n) is str and is_users(n, v)]


def _walk(
    values: Iterable[Any],
    copies: Mapping[int, Any],
    seen: dict[int, Any],
    until: float,
    clean: Mapping[int, Any] = MappingProxyType({}),
    *,
    known_alone: bool = False,
) -> Iterator[Collection[Any]]:
    """All that values lead to, and they themselves: some thousand at a time, each once.

    Args:
      seen: what is passed over, by its id; it grows, and keeps what has been seen alive.
      clean: what is passed over as well.
      known_alone: go neither through what is opaque nor through weak references.

    Raises:
      TimeoutError: it is later than ``until``.
    """
    todo = [one for one in values if _way_of(type(one)) != _SKIP]
    while todo:
        if time.monotonic() > until:
            raise TimeoutError
        part = todo[-_AT_ONCE:]
        del todo[-_AT_ONCE:]
        new = {id(one): one for one in part if id(one) not in seen and id(one) not in clean}
        seen |= new
        yield new.values()
        through: Iterable[Any] = new.values()
        if known_alone:
            through = [one for one in through if not kind_of(type(one)).opaque]
        todo += _inside(through, copies, follow_weak=not known_alone)


def _inside(
    values: Iterable[Any], copies: Mapping[int, Any], *, follow_weak: bool = True
) -> list[Any]:
    """What they lead to, without what libraries and modules hold."""
    plain: list[Any] = []
    found: list[Any] = []
    for one in values:
        kind = kind_of(type(one))
        if (
            copies
            and (copy := copies.get(id(one), value_copies.MISSING)) is not value_copies.MISSING
        ):
            found += kind.inside(copy)
        elif kind is WRAPPER or (follow_weak and kind is WEAK):
            found += kind.inside(kind.copy(one))
        elif issubclass(type(one), np.ndarray):
            if one.dtype.hasobject:
                found += np.ndarray.ravel(one).tolist()
            found.append(one.base)
            if type(one) is not np.ndarray:  # its attributes
                plain.append(one)
        else:
            plain.append(one)
        found.append(type(one))  # gc passes over a class's own
    found += gc.get_referents(*plain)
    ways = {cls: _way_of(cls) for cls in {*map(type, found)}}
    return [v for v in found if (way := ways[type(v)]) and (way != _ASK or _is_the_users(v))]


def may_change(value: Any) -> bool:
    """Whether a value leads to anything that can change, at all."""
    try:
        for new in _walk([value], {}, {}, time.monotonic() + MAY_CHANGE_S):
            kinds_of_new = {kind_of(type(one)) for one in new}
            if any(kind.is_watched or kind.opaque for kind in kinds_of_new):
                return True
    except TimeoutError:
        return True
    return False


def _way_of(cls: type) -> int:
    if (known := _ways.get(cls)) is None:
        known = _ways[cls] = _find_way(cls)
    return known


def _find_way(cls: type) -> int:
    import jax

    if value_copies.library_of(cls) in ("jax", "jaxlib"):
        if issubclass(cls, jax.Array):
            return _ARRAY
    elif issubclass(cls, np.ndarray):
        return _ARRAY
    if kind_of(cls) is FIXED or cls is types.FrameType or value_copies.library_of(cls) in _AROUND:
        return _SKIP
    if cls is dict or issubclass(cls, (type, types.ModuleType, types.FunctionType)):
        return _ASK
    return _TAKE


def _is_the_users(value: Any) -> bool:
    """Whether it is not what a library, or a module, has for itself."""
    if type(value) is dict:
        # A function of the user's leads to all variables, and to none of them.
        name = value.get("__name__")
        return not (name is not None and (name == "__main__" or is_of_module(value)))
    if issubclass(type(value), type):
        return value_copies.is_users_class(value)
    if issubclass(type(value), types.ModuleType):
        return not is_imported(value)
    return not is_in_module(value)
