"""Notes which statement of a cell has made which class.

A restart runs it again to make the class: see ``rank.state.classes``.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import pickle
import sys
import weakref
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

NOTE = "__jaxcluster_class__"  # the outermost decorator of classes, one of Python's builtins
FUTURE = 0x1000000  # from __future__ import annotations
NESTED = ast.FunctionDef, ast.AsyncFunctionDef, ast.expr

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
    return functools.partial(made_by, (name, code))


def made_by(statement: Statement, made: Any) -> Any:
    """``made``, noted if it is a class."""
    if isinstance(made, type):  # a decorator may make anything
        own = id(made)
        _noted[own] = weakref.ref(made, lambda _: _noted.pop(own, None)), statement
    return made


def statement_of(cls: type) -> Statement | None:
    """The statement of a cell that has made a class; None if it was made otherwise."""
    return _noted[id(cls)][1] if id(cls) in _noted else None
