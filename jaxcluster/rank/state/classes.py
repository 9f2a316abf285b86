"""Classes of cells, which are made again by running their class statements.

Libraries look at a class's body when it is made (equinox, flax), and dataclasses have functions
that no source has. So each class statement notes what it has made. It runs again where the names
are bound that it looks up. Attributes that were added to the class later are set.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import operator
import pickle
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from cloudpickle import cloudpickle

from jaxcluster.rank.private.kinds import OF_CELLS, is_by_fields, kinds, register, registration_of
from jaxcluster.rank.state.arrays import Lost

NOTE = "__jaxcluster_class__"  # the outermost decorator of classes, one of Python's builtins
FUTURE = 0x1000000  # from __future__ import annotations
PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, np.ndarray)
LOOKUPS = "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"
BODIES = "__annotate__", "<generic", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"
NESTED = ast.FunctionDef, ast.AsyncFunctionDef, ast.expr
BOUND = MethodType, operator.methodcaller
PYTHONS = re.compile(r"_(.*_)?", re.S)  # names that are, or begin and end with, an underscore
OVER_FUNCTIONS = {property: "fget", staticmethod: "__func__", classmethod: "__func__"}

# While it is set, a class that the namespace has from the same statement is not made again.
kept: ContextVar[set[type] | None] = ContextVar("kept", default=None)
Statement = tuple[str, CodeType]  # of a class: its name, and what makes it
_noted = dict[int, tuple[weakref.ref[type], Any]]()  # by their ids classes, with their statements


def install(shell: Any) -> None:
    """Have the cells of a shell note which statement makes a class."""
    setattr(builtins, NOTE, _note)
    shell.ast_transformers.append(SimpleNamespace(visit=noting))


def noting(tree: ast.AST) -> ast.AST:
    """The same cell, whose class statements note what they make, but for those in functions."""
    left = [tree]
    for node in left:
        if isinstance(node, ast.ClassDef):
            with contextlib.suppress(RecursionError):  # a long expression: the class comes by value
                what: list[ast.expr] = [ast.Constant(node.name), ast.Constant(pickle.dumps(node))]
                note = ast.Call(ast.Name(NOTE, ast.Load()), what, [])
                ast.copy_location(note, [*node.decorator_list, node][0])
                node.decorator_list.insert(0, ast.fix_missing_locations(note))
        elif not isinstance(node, NESTED):
            left += ast.iter_child_nodes(node)
    return tree


def _note(name: str, tree: bytes) -> Callable[[Any], Any]:
    cell, its = sys._getframe(1).f_code, ast.Module([pickle.loads(tree)], [])
    code = compile(its, cell.co_filename, "exec", cell.co_flags & FUTURE, dont_inherit=True)
    return functools.partial(_made_by, (name, code))


def _made_by(statement: Statement, made: Any) -> Any:
    if isinstance(made, type):  # a decorator may make anything
        own = id(made)
        _noted[own] = weakref.ref(made, lambda _: _noted.pop(own, None)), statement
    return made


def statement_of(cls: type) -> Statement | None:
    """The statement of a cell that has made a class; None if it was made otherwise."""
    return _noted[id(cls)][1] if id(cls) in _noted else None


def _needs(
    statement: Statement, names: Mapping[str, Any], namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """The names and values that it, and functions of the namespace, look up when it runs."""
    found, left = {statement[0]: None}, [*_looked_up(statement[1], is_run=False)]
    for name in left:
        if name in found or name not in names:
            continue
        found[name] = value = names[name]
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
    cls: type, by_value: Any, found: Statement | None, names: Mapping[str, Any], namespace: Any
) -> Any:
    """A class that can't be imported, as a pickle holds it.

    Args:
      by_value: what cloudpickle has of it, for one whose statement was not found.
      names: where its statement looks them up.

    Raises:
      Lost: its library has looked at its body, which can't be run again.
    """
    how = registration_of(cls)
    if how and not is_by_fields(how) and not any(map(_is_of_cells, how.keywords.values())):
        how = None  # its library registers it again
        if found is None:
            raise Lost(f"class {cls.__qualname__} is not at the top level of a cell")
    make, arguments, state, *_ = by_value
    if found is not None:
        needs = _needs(found, names, namespace)
        make, arguments, state = run, (found, namespace, [*needs], *needs.values()), _added(cls)
    return make, arguments, (state, how), None, None, set_state


def _is_of_cells(function: Any) -> bool:
    names = getattr(function, "__globals__", {})  # equinox lies about __module__
    return names.get("__name__") == OF_CELLS or isinstance(function, BOUND)


def _added(cls: type) -> dict[str, Any]:
    """The attributes of a class that may be newer than its statement."""

    def may_be(name: str, value: Any) -> bool:
        kind = type(value)
        function = getattr(value, OVER_FUNCTIONS[kind]) if kind in OVER_FUNCTIONS else value
        if type(function) is FunctionType:
            return function.__module__ == OF_CELLS and name != "__annotate_func__"
        if issubclass(kind, type):  # those in its body are made with it
            return not value.__qualname__.startswith(f"{cls.__qualname__}.")
        return kind in (*PLAIN, kinds().array)

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
        return _made_by(statement, names[name])
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
