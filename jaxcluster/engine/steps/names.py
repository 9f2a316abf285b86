"""What a loop is, and which variables it may change: by its source.

A loop is the same as an earlier one if the texts of its cell and of its own file are, and its line.
"""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxcluster.engine import changes, object_graph
from jaxcluster.engine.arrays import is_array
from jaxcluster.engine.steps import functions
from jaxcluster.engine.user_names import is_users

LOCAL = "local "  # what the name of a function's variable is kept under begins so
_OF_CELLS = ("STORE_NAME", "DELETE_NAME")  # by which a cell's own code binds
READ_NBYTES = 64 << 20  # a numpy array beyond it, which the loop only names, is taken to be data


@dataclass(frozen=True)
class Loop:
    """One loop of a cell.

    Attributes:
      key: tells it from others.
      named: what may be a variable in it.
      bound: those of them that its statements bind, or change by an index or an attribute.
    """

    key: str
    named: frozenset[str]
    bound: frozenset[str]


def find(frame: types.FrameType, cell: str, more: object = None) -> Loop:
    """The loop of the line that a frame is at.

    Args:
      cell: the source of the cell that runs.
      more: what else tells it from others.
    """
    code, line = frame.f_code, frame.f_lineno
    text = "".join(linecache.getlines(code.co_filename, frame.f_globals))
    told = json.dumps([cell, text, code.co_qualname, line, more])
    key = hashlib.blake2b(told.encode(errors="backslashreplace"), digest_size=12).hexdigest()
    body = _body(text, line) or _only_body(cell)
    if body is None:  # any of the cell's names
        names = frozenset(changes.identifiers(text or cell))
        return Loop(key, names, names)
    named = {n.id for one in body for n in ast.walk(one) if isinstance(n, ast.Name)}
    return Loop(key, frozenset(named), frozenset(name for one in body for name in _bound(one)))


def _body(text: str, line: int) -> list[ast.AST] | None:
    """The target and the statements of the innermost ``for`` whose iterable is on this line.

    Without such a ``for``, since the iterable was made on another line: all of the file. None: the
    source can't be read.
    """
    try:
        tree = ast.parse(text) if text else None
    except SyntaxError:
        tree = None
    if tree is None:
        return None
    found: list[ast.AST] = [tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            end = node.iter.end_lineno or node.iter.lineno
            if node.iter.lineno <= line <= end:
                found = [node.target, *node.body]
    return found


def _only_body(cell: str) -> list[ast.AST] | None:
    """The same where the code that runs has no source of its own, as with %%time.

    By the one loop over ``steps`` of the cell; None: it has none, or several.
    """
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in cell.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.For) and _is_ours(node.iter)]
    return [found[0].target, *found[0].body] if len(found) == 1 else None


def _is_ours(iterable: ast.expr) -> bool:
    calls = [node.func for node in ast.walk(iterable) if isinstance(node, ast.Call)]
    return any("steps" in (getattr(f, "attr", ""), getattr(f, "id", "")) for f in calls)


def _bound(root: ast.AST) -> Iterator[str]:
    for node in ast.walk(root):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()):
                yield node.id
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield node.asname or node.name.partition(".")[0]
            case (
                ast.Attribute(ctx=ast.Store() | ast.Del())
                | ast.Subscript(ctx=ast.Store() | ast.Del())
            ):
                at: ast.expr = node.value
                while isinstance(at, ast.Attribute | ast.Subscript):
                    at = at.value
                if isinstance(at, ast.Name):
                    yield at.id
            case _:
                pass


@dataclass(frozen=True)
class Values:
    """The variables that are kept of a loop.

    Attributes:
      values: by the names that they are kept under.
      fixed: those that the loop can't have changed: they are put back only where they are missing.
      doubtful: those that it does not bind, and may have changed in place.
      data: large arrays that are taken to be only read, and left out.
      functions: those and classes that it does not bind: kept where they have changed.
      unbound: globals that it binds or deletes, and that have no value.
    """

    values: dict[str, Any]
    fixed: frozenset[str]
    doubtful: frozenset[str]
    data: tuple[str, ...]
    functions: dict[str, Any] = field(default_factory=dict)
    unbound: tuple[str, ...] = ()


def values_of(frame: types.FrameType, loop: Loop, ours: type) -> Values:
    """What is kept of a loop now: what it may have changed, and what it needs besides.

    All that its statements name, and the functions behind them. Functions, classes and modules are
    made again by whoever runs the cell again, unless it binds them or they have changed.

    Args:
      ours: the class of the loops' own objects, which are not kept.
    """
    names, code = frame.f_globals, frame.f_code
    own = frame.f_locals if frame.f_locals is not frame.f_globals else {}
    is_open = not loop.named.isdisjoint({*changes.REACH_ALL, "get_ipython"})
    watched = changes.watch(names, " ".join(loop.named - {*own}), is_open=is_open)
    stored = _stored(watched)
    bound = loop.bound | stored
    values: dict[str, Any] = {}
    fixed: set[str] = set()
    doubtful: set[str] = set()
    data: list[str] = []
    made_again: dict[str, Any] = {}
    locals_ = {n: own[n] for n in own if n in loop.named or n in code.co_cellvars}
    globals_ = {n: names[n] for n in watched.mentioned if n in names and is_users(n, names[n])}
    for prefix, scope in (("", globals_), (LOCAL, locals_)):
        for name, value in scope.items():
            if isinstance(value, ours):
                continue
            if name not in bound and functions.is_code(value):
                if not isinstance(value, types.ModuleType):
                    made_again[prefix + name] = value
                continue
            if name not in bound:
                if type(value) is np.ndarray and value.nbytes > READ_NBYTES:
                    data.append(name)
                    continue
                is_fixed = is_array(value) or not object_graph.may_change(value)
                (fixed if is_fixed else doubtful).add(prefix + name)
            values[prefix + name] = value
    of_code = loop.bound & changes.bound_globals(code, *_OF_CELLS)
    unbound = sorted(n for n in of_code | stored if n not in names)
    fixed_, doubtful_ = frozenset(fixed), frozenset(doubtful)
    return Values(values, fixed_, doubtful_, tuple(data), made_again, tuple(unbound))


def _stored(watched: changes.Watch) -> set[str]:
    """The globals that functions bind which the loop may call."""
    values = [one.value for one in watched.watched]
    functions = [value for value in values if type(value) is types.FunctionType]
    return {name for one in functions for name in changes.bound_globals(one.__code__)}


def is_there(frame: types.FrameType, name: str) -> bool:
    """Whether what is kept under a name has a value now."""
    if name.startswith(LOCAL):
        return name.removeprefix(LOCAL) in frame.f_locals
    return name in frame.f_globals


def meshes(frame: types.FrameType) -> dict[tuple[str, ...], Any]:
    """The devices of the meshes of all devices that its variables are, by the axes' names."""
    import jax

    found: dict[tuple[str, ...], Any] = {}
    for value in [*frame.f_globals.values(), *frame.f_locals.values()]:
        if isinstance(value, jax.sharding.Mesh) and value.size == jax.device_count():
            found[tuple(value.axis_names)] = value.devices
    return found


def bind(frame: types.FrameType, values: Mapping[str, Any]) -> None:
    """Put kept values back.

    A list that the loop had changed in place is another one then: names that were the same object
    are bound to it too, also those of the functions that have called this one. So are functions
    that share variables with one that was put back.

    Python before 3.13 can't bind a running function's variables: there the loop is in none.
    """
    names, own = frame.f_globals, frame.f_locals
    others: dict[int, tuple[Any, Any]] = {}  # by id: what it was, and what it is to be
    for name, value in values.items():
        scope = own if name.startswith(LOCAL) else names
        before = scope.get(bare := name.removeprefix(LOCAL))
        for old, new in functions.pairs(before, value):
            if not is_array(old) and object_graph.may_change(old):
                others[id(old)] = old, new
        scope[bare] = value
    scopes = [names]
    at: types.FrameType | None = frame if own is not names else None
    while at is not None and at.f_globals is names and at.f_locals is not names:
        scopes.append(at.f_locals)
        at = at.f_back
    for scope in scopes if others else ():
        for name, value in list(scope.items()):
            if (found := others.get(id(value))) is not None:
                scope[name] = found[1]
            elif (made := functions.with_cells(value, others)) is not value:
                others[id(value)] = value, made
                scope[name] = made
