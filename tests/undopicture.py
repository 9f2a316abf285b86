"""A picture of all that variables lead to, by identity, kept by ways of its own."""

from __future__ import annotations

import collections
import contextlib
import decimal
import enum
import functools
import gc
import operator
import random
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

FIXED = (type(None), bool, int, float, str, bytes, complex, type(Ellipsis))
CLASS_VARS: Any = type.__dict__["__dict__"]
LRU = type(functools.lru_cache(len))
get = object.__getattribute__


def is_own(cls: type) -> bool:
    return CLASS_VARS.__get__(cls).get("__module__") == "__main__"


def is_users_function(value: Any) -> bool:
    return value.__globals__.get("__name__", "__main__") == "__main__"


def _slots(value: Any) -> list[Any]:
    found = []
    for base in type(value).__mro__:
        for _, one in sorted(CLASS_VARS.__get__(base).items()):
            if type(one) is types.MemberDescriptorType and is_own(base):
                found.append(one.__get__(value) if has(one, value) else None)
    return found


def has(one: Any, value: Any) -> bool:
    try:
        one.__get__(value)
    except AttributeError:
        return False
    return True


def edges(value: Any) -> tuple[Any, list[Any]]:
    """What tells a value from itself in another state, and all that it holds, in order."""
    cls = type(value)
    if cls in FIXED:
        return value, []
    if issubclass(cls, type):
        if not is_own(value):
            return None, []
        names = CLASS_VARS.__get__(value)
        kept = sorted(k for k in names if k not in ("__dict__", "__weakref__", "__doc__"))
        return tuple(kept), [*(names[k] for k in kept), *value.__bases__, cls]
    look = _EDGES.get(cls)
    own: Any = None
    held: list[Any] = []
    if issubclass(cls, enum.Enum) and not is_own(cls):
        return None, []
    if look is not None:
        own, held = look(value)
    else:
        for base, look in _EDGES.items():
            if issubclass(cls, base):
                own, held = look(value)
                break
    of_libraries = (np.generic, types.ModuleType, type(np.random.default_rng))
    if look is None and issubclass(cls, of_libraries):
        return None, []
    if cls is not types.FunctionType and cls not in _PURE:
        with contextlib.suppress(AttributeError):
            attributes = get(value, "__dict__")
            held = [*held, *attributes.values()]
            own = (own, *attributes)
        held = [*held, *_slots(value), cls]
    return own, held


def _of_dict(value: Any) -> Any:
    items = [*dict.items(value)]
    return len(items), [x for item in items for x in item]


def _of_array(value: Any) -> Any:
    plain = np.ndarray.view(value, np.ndarray)
    own = (plain.shape, str(plain.dtype), value.flags.writeable, plain.tobytes())
    held = [one for row in plain.ravel().tolist() for one in (row if type(row) is tuple else [row])]
    return own, (held if plain.dtype.hasobject else [])


def _of_function(value: Any) -> Any:
    if not is_users_function(value) and not value.__closure__:
        return None, []
    held = [*(value.__defaults__ or ()), value.__kwdefaults__, *(value.__closure__ or ())]
    return (id(value.__code__), *value.__dict__), [*held, *value.__dict__.values()]


def _of_cell(value: Any) -> Any:
    try:
        return True, [value.cell_contents]
    except ValueError:
        return False, []


def _of_cache(value: Any) -> Any:
    found = []
    for one in gc.get_referents(value):
        if type(one) is list:
            found.append(one)
        elif type(one) is dict and one is not value.__dict__:
            found += [v for v in one.values() if type(v) is list]
    return None, [value.__wrapped__, *found]


def _of_generator(value: Any) -> Any:
    frame = value.gi_frame
    return (frame.f_lasti, str(frame.f_locals.get("n"))) if frame else None, (
        [*frame.f_locals.values()] if frame else []
    )


def _of_iterator(value: Any) -> Any:
    return operator.length_hint(value), []


def _of_jitted(value: Any) -> Any:
    return None, [value.__wrapped__]


_EDGES: dict[type, Callable[[Any], Any]] = {
    dict: _of_dict,
    list: lambda v: (None, [*list.__iter__(v)]),
    tuple: lambda v: (None, [*tuple.__iter__(v)]),
    set: lambda v: (None, sorted(set.__iter__(v), key=id)),
    frozenset: lambda v: (None, sorted(v, key=id)),
    collections.deque: lambda v: (v.maxlen, [*collections.deque.__iter__(v)]),
    collections.OrderedDict: lambda v: (
        None,
        [x for i in collections.OrderedDict.items(v) for x in i],
    ),
    collections.defaultdict: lambda v: (len(v), [v.default_factory, *_of_dict(v)[1]]),
    bytearray: lambda v: (bytes(v), []),
    memoryview: lambda v: (None, [v.obj]),
    types.MappingProxyType: lambda v: (None, gc.get_referents(v)),
    type({}.values()): lambda v: (None, gc.get_referents(v)),
    np.ndarray: _of_array,
    types.ModuleType: lambda v: (None, []) if v.__name__ in sys.modules else _of_dict(vars(v)),
    random.Random: lambda v: (str(v.getstate()), []),
    np.random.Generator: lambda v: (None, [v.bit_generator]),
    np.random.BitGenerator: lambda v: (str(v.state), [v.seed_seq]),
    np.random.SeedSequence: lambda v: (v.n_children_spawned, []),
    decimal.Context: lambda v: (repr(v), []),
    weakref.ReferenceType: lambda v: (None, [v()]),
    BaseException: lambda v: (None, [v.args, v.__cause__, v.__context__]),
    types.FunctionType: _of_function,
    types.CellType: _of_cell,
    types.MethodType: lambda v: (None, [v.__self__, v.__func__]),
    types.BuiltinFunctionType: lambda v: (None, [v.__self__]),
    types.MethodWrapperType: lambda v: (None, [v.__self__]),
    staticmethod: lambda v: (None, [v.__func__]),
    classmethod: lambda v: (None, [v.__func__]),
    property: lambda v: (None, [v.fget, v.fset]),
    functools.cached_property: lambda v: (None, [getattr(v, "func", None)]),
    functools.partial: lambda v: (None, [v.func, *v.args, v.keywords]),
    LRU: _of_cache,
    operator.methodcaller: lambda v: (None, gc.get_referents(v)),
    types.GeneratorType: _of_generator,
    type(iter([])): _of_iterator,
    map: lambda v: (None, gc.get_referents(v)),
}
# Neither attributes nor slots are looked for.
_PURE = {
    *(c for c in _EDGES if c not in (BaseException, functools.partial, collections.OrderedDict)),
    *(type(object.__init__), types.GetSetDescriptorType, types.MemberDescriptorType),
    *(type("".join), types.CodeType, types.WrapperDescriptorType, type(np.sum), np.ufunc),
}


class Picture:
    """What all that the variables lead to holds, by identity. Keeps all of it alive."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.nodes: dict[int, Any] = {}
        self.states: dict[int, Any] = {}
        self.held: dict[int, list[Any]] = {}
        todo = list(names.values())
        while todo:
            value = todo.pop()
            if type(value) in FIXED or id(value) in self.nodes:
                continue
            self.nodes[id(value)] = value
            own, held = edges(value)
            self.states[id(value)] = own
            self.held[id(value)] = held
            todo += held

    def changed(self) -> set[int]:
        """The values that hold something else now."""
        found = set()
        for key, value in self.nodes.items():
            try:
                own, held = edges(value)
            except Exception:  # it has lost what makes it one of its kind
                found.add(key)
                continue
            before = self.held[key]
            if type(value) is LRU:  # entries may be gone
                same = {*map(id, held)} <= {*map(id, before)}
            else:
                same = own == self.states[key] and len(held) == len(before)
                same = same and all(map(_is_one, held, before))
            if not same:
                found.add(key)
        return found

    def differing(self, now: dict[str, Any]) -> dict[str, Any]:
        """The names that do not lead to what they led to, and what has changed of that."""
        changed = self.changed()
        found = {}
        for name in {**self.names, **now}:
            if name not in now or name not in self.names or now[name] is not self.names[name]:
                found[name] = "another value"
            elif changed and (hit := self._reaches(self.names[name], changed)) is not None:
                found[name] = hit
        return found

    def _reaches(self, value: Any, changed: set[int]) -> Any:
        seen, todo = set(), [value]
        while todo:
            one = todo.pop()
            if id(one) in changed:
                return type(one)
            if id(one) not in seen and id(one) in self.held:
                seen.add(id(one))
                todo += self.held[id(one)]
        return None


def _is_one(a: Any, b: Any) -> bool:
    return a is b or (type(a) in FIXED and type(a) is type(b) and (a == b or a != a))
