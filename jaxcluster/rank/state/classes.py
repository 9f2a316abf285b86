"""Classes of cells, which are made again by running their class statements.

Libraries look at a class's body when it is made (equinox, flax), and dataclasses have functions
that no source has. So each class statement notes what it has made. It runs again where the names
are bound that it looks up. Attributes that were added to the class later are set.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from cloudpickle import cloudpickle

from jaxcluster.rank.private.kinds import OF_CELLS, can_repeat, kinds, register, registration_of
from jaxcluster.rank.state.arrays import Lost
from jaxcluster.rank.statements import Statement, made_by, statement_of

PLAIN = int, float, complex, str, bytes, tuple, list, dict, set, frozenset, deque, type(None)
LOOKUPS = "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"
BODIES = "__annotate__", "<generic", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"
PYTHONS = re.compile(r"_(.*_)?", re.S)  # names that are, or begin and end with, an underscore
OVER_FUNCTIONS = {property: "fget", staticmethod: "__func__", classmethod: "__func__"}

# While it is set, a class that the namespace has from the same statement is not made again.
kept: ContextVar[set[type] | None] = ContextVar("kept", default=None)


def _needs(
    statement: Statement, names: Mapping[str, Any], namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """The names and values that it, and functions of the namespace, look up when it runs."""
    found, left = {statement[0]: None}, [*_looked_up(statement[1], is_run=False)]
    for name in left:
        value = names.get(name, statement)
        is_inner = isinstance(value, type) and value.__qualname__.startswith(f"{statement[0]}.")
        if name in found or value is statement or is_inner:
            continue
        found[name] = value
        function: Any = value.__init_subclass__ if isinstance(value, type) else value
        if callable(function):
            function = getattr(function, "__wrapped__", getattr(function, "__func__", function))
        if isinstance(function, FunctionType) and function.__globals__ is namespace:
            left += _looked_up(function.__code__, is_run=True)
    return found


def _looked_up(code: CodeType, *, is_run: bool) -> Iterator[str]:
    """The names that code looks up; ``is_run``: also those that its functions look up."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in LOOKUPS)
    for inner in code.co_consts:
        # Annotations and comprehensions have code of their own, as a class's body has.
        if isinstance(inner, CodeType) and (
            is_run or inner.co_name.startswith(BODIES) or not inner.co_flags & inspect.CO_OPTIMIZED
        ):
            yield from _looked_up(inner, is_run=is_run)


def reduce(
    cls: type, by_value: Any, found: Any, names: Mapping[str, Any], namespace: Mapping[str, Any]
) -> Any:
    """A class that can't be imported, as a pickle holds it.

    Args:
      by_value: what cloudpickle has of it, for one of which nothing was found.
      found: its statement, or the class in whose body it was made.
      names: where its statement looks them up.

    Raises:
      Lost: its library has looked at its body, which can't be run again.
    """
    how = registration_of(cls)
    if how and not can_repeat(how):
        how = None  # its library registers it again
        if found is None:
            raise Lost(f"class {cls.__qualname__} is not at the top level of a cell")
    make, arguments, state, *_ = by_value
    if isinstance(found, type):
        make, arguments, state = getattr, (found, cls.__name__), _added(cls, names)
    elif found is not None:
        needs, state = _needs(found, names, namespace), _added(cls, names)
        make, arguments = run, (found, namespace, [*needs], *needs.values())
    return make, arguments, (state, how), None, None, set_state


def outer_of(cls: type, names: Mapping[str, Any]) -> Any:
    """The class of a cell in whose body a class was made; None for others."""
    outer = names.get(cls.__qualname__.rpartition(".")[0])
    is_known = isinstance(outer, type) and statement_of(outer) is not None
    return outer if is_known and vars(outer).get(cls.__name__) is cls else None


def _added(cls: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a class that may be newer than its statement."""

    def may_be(name: str, value: Any) -> bool:
        kind = type(value)
        function = getattr(value, OVER_FUNCTIONS[kind]) if kind in OVER_FUNCTIONS else value
        if type(function) is FunctionType:
            return function.__module__ == OF_CELLS and name != "__annotate_func__"
        if issubclass(kind, type):  # those in its body are made with it
            is_inner = value.__qualname__.startswith(f"{cls.__qualname__}.")
            return not is_inner or outer_of(value, names) is cls
        return issubclass(kind, (*PLAIN, np.ndarray, np.generic, kinds().array, kinds().key))

    return {
        name: value
        for name, value in vars(cls).items()
        if may_be(name, value) and (type(value) is FunctionType or not PYTHONS.fullmatch(name))
    }


# ---------------------------------------------------------------------- and made again


def run(statement: Statement, names: dict[str, Any], needed: list[str], *values: Any) -> Any:
    """The class that a statement makes where what it needs is bound. It leaves no name."""
    (name, code), known = statement, kept.get()
    there = names.get(name)
    if known is not None and isinstance(there, type) and statement_of(there) == statement:
        known.add(there)
        return there
    before = {one: names[one] for one in needed if one in names}
    try:
        names.update(zip(needed, values, strict=True))
        exec(code, names)
        return made_by(statement, names[name])
    finally:
        for one in needed:
            names.pop(one, None)
        names.update(before)


def set_state(cls: Any, state: tuple[Any, Any]) -> None:
    """Set what was added, or cloudpickle's state of the whole class, and register it."""
    own, how = state
    if cls in (kept.get() or ()):  # it is the one that was there
        return
    if isinstance(own, tuple):
        cloudpickle._class_setstate(cls, own)
    else:
        for name, value in own.items():
            if vars(cls).get(name) is not value:
                with contextlib.suppress(Exception):  # a class may refuse it
                    setattr(cls, name, value)
    if how is not None:
        register(cls, how)
