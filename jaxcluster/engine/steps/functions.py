"""What functions and classes keep besides their code: closures, attributes, defaults.

The cell that is run again makes its functions again, with what they begin with. Those that a loop
has changed are kept as variables are. Whether it has is seen by a *look* before the loop, and one
at each step that is kept: only what may have changed is pickled for that, and no function's code.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxcluster.engine import changes, user_names, value_copies
from jaxcluster.engine.arrays import is_array
from jaxcluster.engine.user_names import is_of_module, is_of_own_module

MOST = 5_000  # values that are looked at for one name
DATA_NBYTES = 1 << 20  # a numpy array beyond it is taken to be the same while it is the same object
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_HOLDERS = (staticmethod, classmethod)
_BOUND = (types.MethodType, types.BuiltinFunctionType)
Texts = Callable[[dict[str, Any]], Mapping[str, bytes]]
Look = dict[str, list[Any]]  # by the name of what was looked at


def is_code(value: Any) -> bool:
    """Whether a cell makes it again, but for what it keeps."""
    if isinstance(value, _BOUND):
        owner = value.__self__
        return owner is None or isinstance(owner, types.ModuleType | type)
    if isinstance(value, types.ModuleType):
        return changes.is_imported(value)
    if isinstance(value, types.FunctionType | type):
        return True
    return callable(value) and hasattr(value, "__wrapped__")  # a jitted function


def look(code: Mapping[str, Any], texts_of: Texts) -> Look:
    """What each of these functions and classes keeps now, to be compared.

    Args:
      texts_of: hashes of values that hold no arrays.
    """
    found: Look = {name: [] for name in code}
    unclear: dict[str, Any] = {}
    for name, value in code.items():
        for one in _leaves(value):
            if len(found[name]) > MOST:
                found[name].append(object())  # equal to nothing
                break
            token = _token(one)
            if token is None:
                token = key = f"{name} {len(found[name])}"
                unclear[key] = one
            found[name].append(token)
    texts = texts_of(unclear) if unclear else {}
    return {
        name: [texts.get(t) or object() if isinstance(t, str) else t for t in tokens]
        for name, tokens in found.items()
    }


def changed(before: Look, now: Look) -> set[str]:
    """The names of those that may be others now."""
    return {name for name, tokens in now.items() if before.get(name) != tokens}


def pairs(before: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """What is to be replaced by what, where ``before`` is by the same as it was kept.

    They themselves, and what both functions keep at the same place.
    """
    todo, seen = [(before, value)], set[int]()
    while todo:
        old, new = todo.pop()
        if old is new or type(old) is not type(new) or id(old) in seen:
            continue
        seen.add(id(old))
        yield old, new
        if isinstance(old, types.CellType):
            todo += zip(_kept_by(old), _kept_by(new), strict=False)
        elif isinstance(old, types.MethodType):
            todo.append((old.__self__, new.__self__))
        elif isinstance(old, types.FunctionType):
            if old.__code__.co_freevars == new.__code__.co_freevars:
                todo += zip(old.__closure__ or (), new.__closure__ or (), strict=False)
                todo += zip(old.__defaults__ or (), new.__defaults__ or (), strict=False)
                todo += _same_names(old.__kwdefaults__ or {}, new.__kwdefaults__ or {})
                todo += _same_names(vars(old), vars(new))
        elif is_code(old) and not isinstance(old, type):
            todo.append((old.__wrapped__, new.__wrapped__))


def _same_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(old[name], new[name]) for name in old if name in new]


def with_cells(value: Any, others: Mapping[int, tuple[Any, Any]]) -> Any:
    """A function that shares variables with replaced ones, with theirs; else the value itself.

    Args:
      others: by the id of a cell it, and what replaces it.
    """
    closure = value.__closure__ or () if type(value) is types.FunctionType else ()
    if not any(id(cell) in others for cell in closure):
        return value
    cells = tuple(others[id(cell)][1] if id(cell) in others else cell for cell in closure)
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(made, name, getattr(value, name))
    vars(made).update(vars(value))
    return made


def file_of(value: Any) -> str:
    """The module of the user's own that a function or class comes from again; "" if from none."""
    while hasattr(value, "__wrapped__") and not isinstance(value, type):
        value = value.__wrapped__
    module = getattr(value, "__module__", None)
    if not user_names.is_own_module(module):
        return ""
    is_made = isinstance(value, types.FunctionType) and not changes.is_in_module(value)
    return "" if is_made else str(module)


def _token(value: Any) -> Any:
    """What is equal where a value is the same; None where it is to be hashed."""
    if type(value) in _PLAIN:
        return type(value), repr(value)
    if isinstance(value, types.CodeType):
        return (value,)
    if is_array(value) or (isinstance(value, np.ndarray) and value.nbytes > DATA_NBYTES):
        return id(value), weakref.ref(value)  # another one may get a dead one's id
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.shape, str(value.dtype), value.tobytes()
    return None


def _leaves(value: Any) -> Iterator[Any]:
    """The values that are kept by functions, and the functions' code, always in the same order."""
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, _HOLDERS):
            one = one.__func__
        is_container = isinstance(one, tuple) or type(one) in (list, dict)
        if is_container and not (type(one) is dict and "__name__" in one):
            if id(one) in seen:
                continue
            seen[id(one)] = one
            yield f"{type(one).__name__} {len(one)}"
            todo += [*one, *one.values()] if isinstance(one, dict) else one
        elif not (is_code(one) or isinstance(one, types.CellType | property)):
            yield one
        elif id(one) not in seen:
            seen[id(one)] = one
            if isinstance(one, types.FunctionType) and not _is_library(one):
                yield one.__code__
            todo += _kept_by(one)


def _kept_by(one: Any) -> list[Any]:
    if isinstance(one, types.CellType):
        try:
            return [one.cell_contents]
        except ValueError:  # it is empty
            return []
    if isinstance(one, property):
        return [one.fget, one.fset, one.fdel]
    if isinstance(one, types.FunctionType):
        if _is_library(one):
            return []
        defaults = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        return [*defaults, *_items(vars(one)), *(one.__closure__ or ())]
    if isinstance(one, type):
        if not value_copies.is_users_class(one):
            return []
        own = {n: v for n, v in vars(one).items() if not _is_pythons(n, v)}
        return [*_items(own), *one.__bases__]
    if isinstance(one, (types.ModuleType, *_BOUND)):
        return []
    attributes = next(iter(value_copies.attributes_of(one)), {})
    return _items({**attributes, "__wrapped__": one.__wrapped__})


def _items(values: Mapping[str, Any]) -> list[Any]:
    """Values with their names: one that was added is seen, and the order does not count."""
    return [part for name in sorted(values) for part in (name, values[name])]


def _is_library(function: types.FunctionType) -> bool:
    names = function.__globals__
    is_installed = is_of_module(names) and not is_of_own_module(names)
    return is_installed and changes.is_in_module(function)


def _is_pythons(name: str, value: Any) -> bool:
    """Whether Python has put it into a class."""
    if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
        return True
    is_special = name.startswith("__") and name.endswith("__")
    return is_special and not isinstance(value, types.FunctionType | property | staticmethod)
