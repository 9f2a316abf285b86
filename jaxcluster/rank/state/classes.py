"""Classes of cells, which are made again by running their class statements.

Libraries look at a class's body when it is made (equinox, flax), and dataclasses have functions
that no source has. So the statement is taken from the cell that made the class, and run where the
names are bound that it looks up. What was added to the class later is set.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib
import inspect
import linecache
import operator
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
from cloudpickle import cloudpickle

from jaxcluster.rank.private.kinds import register, registration_of
from jaxcluster.rank.state.arrays import Lost

CELLS = "__main__"
FUTURE = 0x1000000  # from __future__ import annotations
PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, np.ndarray)
LOOKUPS = "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"
BODIES = "__annotate__", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"
NAMING = ast.Assign, ast.AnnAssign, ast.FunctionDef
BOUND = MethodType, operator.methodcaller

# While it is set, a class that the namespace has from the same statement is not made again.
kept: ContextVar[set[type] | None] = ContextVar("kept", default=None)


class Statement(NamedTuple):
    """A class statement: its code, and which lines of its file it has."""

    name: str
    code: CodeType
    lines: range


def annotations_of(one: Any) -> dict[str, Any]:
    """Its annotations; as text where Python 3.14 looks up a name in them that is not bound."""
    try:
        found: dict[str, Any] = getattr(one, "__annotations__", {})
    except NameError:
        library: Any = importlib.import_module("annotationlib")
        found = library.get_annotations(one, format=library.Format.STRING)
    return found


def statement_of(cls: type) -> Statement | None:
    """The statement at a cell's top level that made a class; None if it is not found.

    Cells may have several of that name. It is one that binds nothing which the class lacks: of
    those the one that binds most, and the last of these.
    """
    known = [*linecache.cache.items()]
    cells = {file: one[2] for file, one in known if len(one) > 1 and one[1] is None}
    functions = [one.__code__ for one in vars(cls).values() if isinstance(one, FunctionType)]
    own = [code for code in functions if code.co_filename in cells]
    annotations, found = annotations_of(cls), list[tuple[int, str, ast.ClassDef, range]]()
    is_text = {*map(type, annotations.values())} == {str} or any(c.co_flags & FUTURE for c in own)
    for file in reversed([*cells, *(code.co_filename for code in own)]):
        told = [code.co_firstlineno for code in own if code.co_filename == file]
        is_own = bool(told)
        told = [vars(cls)["__firstlineno__"]] if "__firstlineno__" in vars(cls) else told
        for node, lines, names in _classes_in("".join(cells[file]), cls.__qualname__):
            # Before Python 3.13 methods alone tell a line.
            if all(line in lines for line in told) and names <= {*vars(cls), *annotations}:
                found.append((len(names), file, node, lines))
        if is_own and found:
            break
    if not found:
        return None
    _, file, node, lines = max(found, key=lambda one: one[0])
    flags, module = FUTURE if is_text else 0, ast.Module([node], [])
    code = compile(module, file, "exec", flags, dont_inherit=True)
    return Statement(node.name, code, lines)


@functools.lru_cache(maxsize=1024)
def _classes_in(source: str, name: str) -> list[tuple[ast.ClassDef, range, set[str]]]:
    """The statements of classes of that name outside of functions and classes, the last first.

    With each come its lines, and the public names that it binds.
    """
    found, left = [], list[ast.AST]()
    with contextlib.suppress(SyntaxError, ValueError):
        left += [ast.parse(source)] if name in source else []
    for node in left:
        if isinstance(node, ast.ClassDef):
            found += [node] if node.name == name else []
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    found.sort(key=lambda node: -node.lineno)
    firsts = [min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in found]
    return [
        (node, range(first, (node.end_lineno or first) + 1), {*_bound_by(node)})
        for node, first in zip(found, firsts, strict=True)
    ]


def _bound_by(statement: ast.ClassDef) -> Iterator[str]:
    for node in statement.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        for one in targets if isinstance(node, NAMING) else ():
            name = getattr(one, "id", getattr(one, "name", "_"))
            if not name.startswith("_"):
                yield name


def _needs(
    statement: Statement, names: Mapping[str, Any], namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """What it looks up when it runs, and what functions of the namespace look up then."""
    found, left = dict[str, Any](), [*_looked_up(statement.code, is_run=False)]
    for name in left:
        if name in found or name == statement.name or name not in names:
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
            is_run or inner.co_name in BODIES or not inner.co_flags & inspect.CO_OPTIMIZED
        ):
            yield from _looked_up(inner, is_run=is_run)


def reduce(
    cls: type, by_value: Any, found: Statement | None, names: Mapping[str, Any], namespace: Any
) -> Any:
    """What a pickle has of a class that can't be imported.

    Args:
      by_value: what cloudpickle has of it, for one whose statement was not found.
      names: where its statement looks them up.

    Raises:
      Lost: its library has looked at its body, which can't be run again.
    """
    how = registration_of(cls)
    if isinstance(how, tuple) and not any(map(_is_of_cells, how)):
        how = None  # its library registers it again
        if found is None:
            raise Lost(f"class {cls.__qualname__} is not at the top level of a cell")
    if found is None:
        make, arguments, state, *_ = by_value
        return make, arguments, (state, how), None, None, set_state
    made = run, (found, _needs(found, names, namespace), namespace)
    return *made, (_added(cls, found), how), None, None, set_state


def _is_of_cells(function: Any) -> bool:
    names = getattr(function, "__globals__", {})  # equinox lies about __module__
    return names.get("__name__") == CELLS or isinstance(function, BOUND)


def _added(cls: type, statement: Statement) -> dict[str, Any]:
    """What was added to a class after its statement."""

    def is_added(name: str, value: Any) -> bool:
        if type(value) is FunctionType and value.__module__ == CELLS:
            file, line = value.__code__.co_filename, value.__code__.co_firstlineno
            return file != statement.code.co_filename or line not in statement.lines
        return type(value) in PLAIN and not (name.startswith("_") and name.endswith("_"))

    return {name: value for name, value in vars(cls).items() if is_added(name, value)}


# ---------------------------------------------------------------------- and made again


def run(statement: Statement, needs: Mapping[str, Any], names: dict[str, Any]) -> Any:
    """The class that a statement makes where what it needs is bound. It leaves no name behind."""
    if (lost := next((one for one in needs.values() if isinstance(one, Lost)), None)) is not None:
        raise Lost(*lost.args)
    there, known = names.get(statement.name), kept.get()
    if known is not None and isinstance(there, type) and statement_of(there) == statement:
        known.add(there)
        return there
    before = {name: names[name] for name in (*needs, statement.name) if name in names}
    try:
        names.update(needs)
        exec(statement.code, names)
        return names[statement.name]
    finally:
        for name in (*needs, statement.name):
            names.pop(name, None)
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
            with contextlib.suppress(Exception):  # a class may refuse it
                if vars(cls).get(name) is not value:
                    setattr(cls, name, value)
    if how is not None:
        register(cls, how)
