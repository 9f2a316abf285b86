"""Classes of cells, which are made again by running their class statements.

Libraries look at a class's body when it is made (equinox, flax), and dataclasses have functions
that no source has. So the statement is taken from the cell that made the class, and run where the
names are bound that it needs. What was added to the class later is set.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from jaxcluster.engine.private import pytrees
from jaxcluster.rank.state.arrays import CannotSave

CELLS = "__main__"
FUTURE = 0x1000000  # from __future__ import annotations
PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, np.ndarray)
_of_thread = threading.local()


class Circular(Exception):
    """What a class's statement needs holds the class."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls.__qualname__)
        self.cls = cls


@dataclass(frozen=True)
class Statement:
    """A class statement.

    Attributes:
      first: its first line, in the source of that file.
      flags: of the compiler.
    """

    name: str
    source: str
    file: str
    first: int
    flags: int

    def parse(self) -> ast.ClassDef:
        """Its syntax tree."""
        node = ast.parse("\n" * (self.first - 1) + self.source).body[0]
        assert isinstance(node, ast.ClassDef)
        return node

    def needs(self, namespace: Mapping[str, Any]) -> list[str]:
        """The names of a namespace that are looked up when it runs."""
        names, called = _names_of(self.parse())
        found: dict[str, None] = {}
        left = [name for name in names if name != self.name]
        while left:
            name = left.pop()
            if name in found or name not in namespace:
                continue
            found[name] = None
            value = namespace[name]
            if isinstance(value, type):
                left += _names_in(vars(value).get("__init_subclass__"), namespace)
            elif name in called:
                left += _names_in(value, namespace)
        return list(found)


def _names_in(function: Any, namespace: Mapping[str, Any]) -> list[str]:
    """The names that a function of the namespace looks up, and those that it calls look up."""
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or function.__globals__ is not namespace:
        return []
    found, codes = list[str](), [function.__code__]
    while codes:
        code = codes.pop()
        found += code.co_names
        codes += [const for const in code.co_consts if hasattr(const, "co_names")]
    inner = [namespace[n] for n in found if isinstance(namespace.get(n), FunctionType)]
    return found + [n for one in inner if one is not function for n in one.__code__.co_names]


def _names_of(cls: ast.ClassDef) -> tuple[list[str], set[str]]:
    """The names that a class statement looks up when it runs, and those of them that it calls."""
    names: list[str] = []
    called: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            names.append(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        for decorator in getattr(node, "decorator_list", ()):
            called.update(one.id for one in ast.walk(decorator) if isinstance(one, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            run: list[Any] = [*node.decorator_list, node.args, node.returns]
        elif isinstance(node, ast.Lambda):
            run = [node.args]
        else:
            run = list(ast.iter_child_nodes(node))
        for one in filter(None, run):
            visit(one)

    visit(cls)
    return names, called


def statement_of(cls: type) -> Statement | None:
    """The statement of a cell's top level that made a class; None if it is not found."""
    name = cls.__qualname__
    if cls.__module__ != CELLS or not name.isidentifier():
        return None
    files = [one.co_filename for one in _code_of(cls) if linecache.getlines(one.co_filename)]
    for file in files[:1] or _cells():
        lines = linecache.getlines(file)
        if not any(name in line for line in lines):
            continue
        source = "".join(lines)
        for node in _classes_in(source):
            if node.name == name and _fits(node, cls):
                start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                text = "".join(lines[start - 1 : node.end_lineno])
                return Statement(name, _dedent(text), file, start, _flags(node, cls))
    return None


def _cells() -> list[str]:
    """The files that are kept without one on disk: of cells, the last one first."""
    known = list(linecache.cache.items())
    return [name for name, entry in known if len(entry) > 1 and entry[1] is None][::-1]


@functools.lru_cache(maxsize=512)
def _classes_in(source: str) -> list[ast.ClassDef]:
    """The class statements outside of functions and classes, the last one first."""
    try:
        left: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return []
    found = []
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef):
            found.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return sorted(found, key=lambda node: -node.lineno)


def _fits(node: ast.ClassDef, cls: type) -> bool:
    """Whether a statement may have made a class: by the names that it binds."""
    first = vars(cls).get("__firstlineno__")  # Python 3.13
    lines = [node.lineno, *(one.lineno for one in node.decorator_list)]
    if first is not None and first not in lines:
        return False
    names = [
        one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            names.append(one.target.id)
    known = {*vars(cls), *vars(cls).get("__annotations__", {}), *getattr(cls, "__slots__", ())}
    known |= {*getattr(cls, "_fields", ()), *_annotations(cls)}
    return known.issuperset(names)


def _annotations(cls: type) -> Mapping[str, Any]:
    found = getattr(cls, "__annotations__", None)
    return found if isinstance(found, dict) else {}


def _flags(node: ast.ClassDef, cls: type) -> int:
    """Whether its cell had annotations as text."""
    found = _annotations(cls)
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            return FUTURE if found.get(one.target.id) == ast.unparse(one.annotation) else 0
    return FUTURE if any(one.co_flags & FUTURE for one in _code_of(cls)) else 0


def _code_of(cls: type) -> list[Any]:
    """The code of a class's methods that are not a library's."""
    found = [one for one in vars(cls).values() if isinstance(one, FunctionType)]
    return [one.__code__ for one in found if one.__module__ == CELLS]


def _dedent(text: str) -> str:
    first = text[: len(text) - len(text.lstrip(" \t"))]
    return "".join(line.removeprefix(first) for line in text.splitlines(keepends=True))


# ---------------------------------------------------------------------- and made again


@contextlib.contextmanager
def making_in(namespace: dict[str, Any]) -> Iterator[None]:
    """Inside it classes of cells are made in this namespace."""
    before = getattr(_of_thread, "namespace", None)
    _of_thread.namespace = namespace
    try:
        yield
    finally:
        _of_thread.namespace = before


def run(statement: Statement, needs: Mapping[str, Any]) -> Any:
    """The class that a statement makes where these names are bound. It leaves no name behind."""
    namespace = _of_thread.namespace
    before = {n: namespace[n] for n in (*needs, statement.name) if n in namespace}
    tree = ast.Module([statement.parse()], [])
    code = compile(tree, statement.file, "exec", statement.flags, dont_inherit=True)
    try:
        namespace.update(needs)
        exec(code, namespace)
        return namespace[statement.name]
    finally:
        for name in (*needs, statement.name):
            namespace.pop(name, None)
        namespace.update(before)


def state_of(cls: type, statement: Statement) -> tuple[dict[str, Any], Any]:
    """What was added to a class after its statement, and how it is registered as a pytree."""
    added = {}
    last = statement.first + statement.source.count("\n")
    for name, value in vars(cls).items():
        if name.startswith("_") and name.endswith("_"):
            continue
        code = getattr(value, "__code__", None)
        is_new = type(value) in PLAIN or (
            type(value) is FunctionType
            and value.__module__ == CELLS
            and code is not None
            and (code.co_filename, statement.first <= code.co_firstlineno <= last)
            != (statement.file, True)
        )
        if is_new and "_member_map_" not in vars(cls):  # the values of an enum are its own
            added[name] = value
    return added, registration(cls)


def registration(cls: type) -> Any:
    """How a cell has registered a class as a pytree; None if a library or nobody has."""
    how = pytrees.registration_of(cls)
    if how is None or isinstance(how, dict):
        return how
    return how if all(map(_is_of_cells, filter(None, how))) else None


def _is_of_cells(function: Any) -> bool:
    kinds = MethodType, type(_of_methods())
    return getattr(function, "__module__", "") == CELLS or isinstance(function, kinds)


def _of_methods() -> Any:
    import operator

    return operator.methodcaller("tree_flatten")


def set_state(cls: Any, state: tuple[Mapping[str, Any], Any]) -> None:
    """Set what ``state_of`` found."""
    added, how = state
    for name, value in added.items():
        with contextlib.suppress(Exception):  # a class may refuse it
            if vars(cls).get(name) is not value:
                setattr(cls, name, value)
    if how is not None:
        pytrees.register(cls, how)


def check_by_value(cls: type) -> None:
    """Refuse a class that its library has looked at, where its statement can't run again.

    Raises:
      CannotSave: it is one.
    """
    if pytrees.registration_of(cls) is not None and registration(cls) is None:
        raise CannotSave(
            f"class {cls.__qualname__} is not at the top level of a cell whose source is known"
        )


def set_by_value(cls: Any, state: tuple[Any, Any]) -> None:
    """cloudpickle's setter, and the registration."""
    from cloudpickle import cloudpickle

    own, how = state
    cloudpickle._class_setstate(cls, own)
    if how is not None:
        pytrees.register(cls, how)
