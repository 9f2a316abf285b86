"""What a cell may change in place, kept from before it, so that it can be put back.

Names are the smaller half of a cell's effects: ``state["step"] += 1`` and ``losses.append(x)`` bind
none. So shallow copies are kept of the mutable values that a cell can reach by the names in its
source, and by those in the functions behind them. What is put back are values whose whole state is
in sight: dicts, lists, sets, deques, small numpy arrays, random generators, functions' closures,
and objects and classes of the user's. Of everything else (generators, open files, data frames, what
is too large) nothing is claimed: it is *opaque*, and named.

Nothing here calls a user's code or compares values: two values are the same if they are one object.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import random
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from jaxcluster.engine.arrays import is_tracer
from jaxcluster.engine.private.arrays import pytree_functions
from jaxcluster.engine.state.saving import is_users

MOST_ELEMENTS = 5_000  # that are looked at before a cell: some 0.1 ms
ONE_VALUE = 40  # elements that a container costs beside its own
MOST_NBYTES = 1 << 19  # of numpy arrays that are copied before a cell: some 0.05 ms
SMALL_NBYTES = 1 << 16  # a numpy array beyond it is not copied

_WORD = re.compile(r"[^\W\d]\w*")
_APART = bytes(c if chr(c).isalnum() or c == ord("_") else ord(" ") for c in range(128)).ljust(256)
_EMPTY = object()

# Values of these never change, or hold nothing of a session.
_FIXED = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis)),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.GenericAlias),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
    *(np.generic, np.dtype, np.ufunc, type(np.sum), np.random.SeedSequence),
    *(enum.Enum, weakref.ReferenceType),
)
_FIXED_MODULES = (
    *("jax", "jaxlib", "typing", "re", "enum", "pathlib", "datetime", "decimal", "fractions"),
    *("uuid", "zoneinfo", "operator", "ipaddress", "inspect", "dataclasses", "_abc"),
)
# What a class may be made of and still have no state but its attributes.
_HARMLESS_BASES = ("abc", "typing", "collections.abc", "dataclasses", "contextlib", "_py_abc")


# --------------------------------------------------------------------------- kinds of values


def _nothing(value: Any, copy: Any) -> None:
    """How a value is put back that can't change, but leads to others that can."""


@dataclass(frozen=True, eq=False)
class Kind:
    """How values of a type are kept: a shallow copy, and what of it must be looked at further.

    ``inside`` is what of a copy is to be looked at further. ``size`` is what counts against the
    budget, before anything is copied. ``can_put_back`` is asked of values that have changed.
    """

    name: str
    copy: Callable[[Any], Any] = lambda value: None
    inside: Callable[[Any], Iterable[Any]] = lambda copy: ()
    is_same: Callable[[Any, Any], bool] = lambda value, copy: True
    put_back: Callable[[Any, Any], None] = _nothing
    can_put_back: Callable[[Any, Any], bool] = lambda value, copy: True
    size: Callable[[Any], int] = lambda value: 1
    nbytes: Callable[[Any], int] | None = None


def _same_items(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    return len(a) == len(b) and all(map(is_, a, b)) and all(map(is_, a.values(), b.values()))


def _same_elements(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(is_, a, b))


def _refill(value: Any, copy: dict[Any, Any]) -> None:
    value.clear()
    for key, one in copy.items():  # not update(): a Counter's adds
        value[key] = one


def _refill_list(value: Any, copy: list[Any]) -> None:
    value[:] = copy


def _refill_deque(value: Any, copy: list[Any]) -> None:
    value.clear()
    value.extend(copy)


def _refill_set(value: Any, copy: set[Any]) -> None:
    value.clear()
    value.update(copy)


def _copy_numpy(value: Any) -> Any:
    if not value.flags.writeable and not isinstance(value.base, np.ndarray):
        return None  # nobody can change it
    return value.copy()


def _numpy_inside(copy: Any) -> Iterable[Any]:
    return copy.ravel().tolist() if copy is not None and copy.dtype.hasobject else ()


def _same_numpy(value: Any, copy: Any) -> bool:
    return copy is None or (
        value.shape == copy.shape
        and value.dtype == copy.dtype
        and value.tobytes() == copy.tobytes()  # of objects: their addresses
    )


def _can_refill_numpy(value: Any, copy: Any) -> bool:
    same = value.shape == copy.shape and value.dtype == copy.dtype
    return bool(same and value.flags.writeable)


def _refill_numpy(value: Any, copy: Any) -> None:
    value[...] = copy


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return found


def _refill_object(value: Any, copy: dict[str, Any]) -> None:
    attributes = _attributes(value)
    attributes.clear()
    attributes.update(copy)


def _in_class(copy: dict[str, Any]) -> list[Any]:
    """Its methods and attributes, without what Python and libraries have put there."""
    return [
        one
        for name, one in copy.items()
        if isinstance(one, types.FunctionType)
        or not (
            (name.startswith("__") and name.endswith("__"))
            or (kind_of(type(one)) is OPAQUE and hasattr(type(one), "__get__"))
        )
    ]


def _refill_class(value: Any, copy: dict[str, Any]) -> None:
    for name in set(vars(value)) - set(copy):
        delattr(value, name)
    for name, one in copy.items():
        if vars(value).get(name, _EMPTY) is not one:
            setattr(value, name, one)


def _copy_function(value: Any) -> list[Any]:
    """What a function holds: its cells' contents, then its attributes and defaults."""
    contents = []
    for cell in value.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(_EMPTY)
    attributes = value.__dict__
    if not (attributes or value.__defaults__ or value.__kwdefaults__):
        return contents
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    return [*contents, *defaults, *attributes, *attributes.values()]


def _same_function(value: Any, copy: list[Any]) -> bool:
    return _same_elements(_copy_function(value), copy)


def _can_refill_function(value: Any, copy: list[Any]) -> bool:
    cells = len(value.__closure__ or ())
    return _same_elements(_copy_function(value)[cells:], copy[cells:])


def _refill_function(value: Any, copy: list[Any]) -> None:
    for cell, content in zip(value.__closure__ or (), copy, strict=False):
        if content is not _EMPTY:
            cell.cell_contents = content
        else:
            with contextlib.suppress(ValueError):  # it is empty
                del cell.cell_contents


def _copy_cache(value: Any) -> tuple[Any, Any]:
    return value.__wrapped__, value.cache_info().misses


def _state_of_generator(value: Any) -> Any:
    return value.bit_generator.state


def _set_generator(value: Any, state: Any) -> None:
    value.bit_generator.state = state


_CONTAINERS = (dict, list, set, tuple, collections.deque)
FIXED = Kind("fixed")
OPAQUE = Kind("opaque")
DICT = Kind("dict", dict, dict.values, _same_items, _refill, size=len)
TUPLE = Kind("tuple", tuple, iter, size=len)
OBJECT = Kind(
    "object",
    lambda value: dict(_attributes(value)),
    dict.values,
    lambda value, copy: _same_items(_attributes(value), copy),
    _refill_object,
    size=lambda value: len(_attributes(value)),
)
CLASS = Kind(
    "class",
    lambda value: dict(vars(value)),
    _in_class,
    lambda value, copy: _same_items(vars(value), copy),
    _refill_class,
    size=lambda value: len(vars(value)),
)
FUNCTION = Kind(
    "function",
    _copy_function,
    iter,
    _same_function,
    _refill_function,
    _can_refill_function,
)
NUMPY = Kind(
    "numpy",
    _copy_numpy,
    _numpy_inside,
    _same_numpy,
    _refill_numpy,
    _can_refill_numpy,
    lambda value: value.size if value.dtype.hasobject else 1,
    lambda value: value.nbytes,
)

WRAPPER = Kind("wrapper", lambda value: (getattr(value, "__wrapped__", None),), iter)

# By exact type: a subclass may do anything.
_KINDS: dict[type, Kind] = {
    object: FIXED,
    dict: DICT,
    collections.OrderedDict: DICT,
    collections.defaultdict: DICT,
    collections.Counter: DICT,
    list: Kind("list", list, iter, _same_elements, _refill_list, size=len),
    collections.deque: Kind("deque", list, iter, _same_elements, _refill_deque, size=len),
    set: Kind("set", set, iter, lambda a, b: a == b, _refill_set, size=len),
    tuple: TUPLE,
    frozenset: TUPLE,
    bytearray: Kind(
        "bytearray",
        bytes,
        is_same=lambda value, copy: bytes(value) == copy,
        put_back=_refill_list,
        nbytes=len,
    ),
    np.ndarray: NUMPY,
    np.random.Generator: Kind(
        "random",
        _state_of_generator,
        is_same=lambda value, state: repr(_state_of_generator(value)) == repr(state),
        put_back=_set_generator,
    ),
    np.random.RandomState: Kind(
        "random",
        lambda value: value.get_state(legacy=False),
        is_same=lambda value, state: repr(value.get_state(legacy=False)) == repr(state),
        put_back=lambda value, state: value.set_state(state),
    ),
    random.Random: Kind(
        "random",
        lambda value: value.getstate(),
        is_same=lambda value, state: value.getstate() == state,
        put_back=lambda value, state: value.setstate(state),
    ),
    types.SimpleNamespace: OBJECT,
    types.FunctionType: FUNCTION,
    types.MethodType: Kind("method", lambda value: (value.__self__, value.__func__), iter),
    staticmethod: Kind("method", lambda value: (value.__func__,), iter),
    classmethod: Kind("method", lambda value: (value.__func__,), iter),
    property: Kind("method", lambda value: (value.fget, value.fset, value.fdel), iter),
    functools.partial: Kind(
        "partial", lambda value: (value.func, *value.args, *value.keywords.values()), iter
    ),
    type(functools.lru_cache(len)): Kind(
        "cache",
        _copy_cache,
        iter,
        lambda value, copy: _copy_cache(value)[1] == copy[1],
        lambda value, copy: value.cache_clear(),  # what it has kept may be of the cell's numbers
    ),
}


_fixed_types: set[type] = {object}


class _Plain:
    """What an object without any state but its attributes takes; see ``_is_plain``."""


def kind_of(cls: type) -> Kind:
    """How values of exactly this type are kept. Remembered for each type."""
    found = _KINDS.get(cls)
    if found is None:
        found = _KINDS[cls] = _classify(cls)
        if found is FIXED:
            _fixed_types.add(cls)
    return found


def _classify(cls: type) -> Kind:
    module = str(getattr(cls, "__module__", "") or "").partition(".")[0]
    if module in ("jax", "jaxlib"):
        return _classify_jax(cls)
    if issubclass(cls, _FIXED) or module in _FIXED_MODULES:
        return FIXED
    if issubclass(cls, type):
        return CLASS
    if issubclass(cls, tuple):
        return TUPLE
    if _is_plain(cls):
        return OBJECT
    return OPAQUE


def _classify_jax(cls: type) -> Kind:
    """JAX's own values don't change, but for references; functions lead to those they are of."""
    import jax

    if issubclass(cls, getattr(jax, "Ref", ())):
        return OPAQUE
    return WRAPPER if any("__call__" in vars(base) for base in cls.__mro__) else FIXED


def _has_size_of(cls: type, base: type) -> bool:
    return cls.__basicsize__ == base.__basicsize__ and cls.__dictoffset__ == base.__dictoffset__


def _is_plain(cls: type) -> bool:
    """Whether an object's state is its attributes, all of it, and it may be set without asking.

    There is no room for more in it (slots, a part in C), and it stands for nothing outside: a
    thread's or a process's attributes only mirror what goes on elsewhere. So: classes of the
    user's, on whatever bases that are not the standard library's, dataclasses, and what JAX takes
    for a pytree.
    """
    if not _has_size_of(cls, _Plain) or cls.__itemsize__:
        return False
    if cls.__module__ == "__main__":
        outside = {base.__module__ for base in cls.__mro__[:-1]} - {"__main__"}
        return not any(
            name.partition(".")[0] in sys.stdlib_module_names and name not in _HARMLESS_BASES
            for name in outside
        )
    return dataclasses.is_dataclass(cls) or pytree_functions(cls) is not None


# --------------------------------------------------------------------------- a cell's reach


class Watched(NamedTuple):
    """A value that a cell can reach, and its copy. ``root`` is the name that led to it."""

    root: str
    value: Any
    kind: Kind
    copy: Any


@dataclass
class Watch:
    """What is kept of the values that a cell may change in place.

    Attributes:
      mentioned: the names that it can reach.
      watched: those that can change, in the order in which they were met.
      opaque: names that lead to values of which nothing can be said, and what those are.
      too_large: names that lead to more than is looked at.
    """

    mentioned: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)
    too_large: set[str] = field(default_factory=set)

    def changed(self) -> list[Watched]:
        """Those that are not any more what they were."""
        return [one for one in self.watched if not _is_same(one)]

    def copies(self) -> dict[int, Any]:
        """By a value's id what it was made of."""
        return {id(one.value): one.copy for one in self.watched}

    def put_back(self, leave: Iterable[str] = ()) -> set[str]:
        """Make the changed ones what they were; returns the names where that can't be done.

        Args:
          leave: names behind which nothing is to be touched.
        """
        left, failed = set(leave), set()
        for one in self.changed():
            if one.root in left or not one.kind.can_put_back(one.value, one.copy):
                continue
            try:
                one.kind.put_back(one.value, one.copy)
            except Exception:
                failed.add(one.root)
        return failed


def _is_same(one: Watched) -> bool:
    try:
        return one.kind.is_same(one.value, one.copy)
    except Exception:  # the main thread changes it at this moment
        return False


def watch(namespace: Mapping[str, Any], source: str) -> Watch:
    """What a cell with this source may change in place.

    Looks at the same values in the same order on all ranks, as far as they have the same. Some
    20 us, half a microsecond for each container that the cell can reach and 20 ns for each of its
    elements, up to ``MOST_ELEMENTS``.
    """
    found = Watch()
    seen: set[int] = set()
    keep = found.watched.append
    room, bytes_left = MOST_ELEMENTS, MOST_NBYTES
    known = identifiers(source).intersection(namespace)
    mine = [n for n in known if is_users(n, namespace[n])]
    # The small ones first: what is large may be more than is looked at.
    names = found.mentioned = sorted(mine, key=lambda name: (_length(namespace[name]), name))
    for root in names:  # it grows
        stack = [namespace[root]]
        while stack:
            value = stack.pop()
            cls = type(value)
            if cls in _fixed_types or id(value) in seen:
                continue
            seen.add(id(value))
            kind = _KINDS.get(cls) or kind_of(cls)
            if kind is FIXED:
                continue
            if kind is OPAQUE:
                found.opaque.setdefault(root, describe(value))
                continue
            try:
                if (kind is FUNCTION and value.__globals__ is not namespace) or (
                    kind is CLASS and value.__module__ != "__main__"
                ):
                    continue
                if kind.nbytes is not None:
                    bytes_left -= (nbytes := kind.nbytes(value))
                    if nbytes > SMALL_NBYTES or bytes_left < 0:
                        bytes_left += nbytes
                        found.too_large.add(root)
                        continue
                size = kind.size(value)
                if size > room:
                    found.too_large.add(root)
                    continue
                copy = kind.copy(value)
                inside = kind.inside(copy)
            except Exception:  # a thread of the user's changes it at this moment
                found.opaque.setdefault(root, describe(value))
                continue
            room -= size + ONE_VALUE
            if kind.put_back is not _nothing:
                keep(Watched(root, value, kind, copy))
            if not _fixed_types.issuperset(map(type, inside)):
                stack += [v for v in kind.inside(copy) if type(v) not in _fixed_types]
            if kind is OBJECT:
                stack.append(cls)  # what its methods may reach
            elif kind is FUNCTION:
                more = known_names(value.__code__).intersection(namespace) - known
                known |= more
                names += sorted(n for n in more if is_users(n, namespace[n]))
    return found


def _length(value: Any) -> int:
    return len(value) if type(value) in _CONTAINERS else 0


def identifiers(source: str) -> set[str]:
    """All that may be a name in a cell's source, also in its strings: ``exec`` may run them."""
    if source.isascii():  # a fifth of the time
        return {word.decode() for word in set(source.encode().translate(_APART).split())}
    return set(_WORD.findall(source))


@functools.lru_cache(maxsize=1024)
def known_names(code: types.CodeType) -> frozenset[str]:
    """The global names (and attributes) in a function's code, and in what is defined in it."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= known_names(const)
    return frozenset(names)


def describe(value: Any) -> str:
    """What an opaque value is, in a word or two."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def arrays_within(
    value: Any, copies: Mapping[int, Any], seen: dict[int, Any] | None = None
) -> list[Any]:
    """The jax and numpy arrays that a value reaches, also deleted ones.

    Args:
      copies: by a value's id, what is to be taken for its contents: it may have changed since.
      seen: by their ids the values that are passed over; it grows.
    """
    seen = {} if seen is None else seen
    found = []
    stack = [value]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        kind = kind_of(type(value))
        array = _is_array_type(type(value)) and not is_tracer(value)
        if array:
            found.append(value)
        elif kind in (FIXED, OPAQUE, CLASS):
            continue
        seen[id(value)] = value
        if array and not (kind is NUMPY and value.dtype.hasobject):
            continue
        try:
            copy = copies.get(id(value), _EMPTY)
            inside = kind.inside(kind.copy(value) if copy is _EMPTY else copy)
            stack += [v for v in inside if type(v) not in _without_arrays]
        except Exception:  # it changes at this moment
            continue
    return found


_array_types: dict[type, bool] = {}
_without_arrays: set[type] = {object}


def _is_array_type(cls: type) -> bool:
    """Whether values of a type are arrays; asking the values might run a user's code."""
    if (known := _array_types.get(cls)) is None:
        known = _array_types[cls] = _holds_array(cls)
    return known


def _holds_array(cls: type) -> bool:
    import jax

    if cls.__module__.partition(".")[0] in ("jax", "jaxlib"):
        found = issubclass(cls, jax.Array)
    else:
        found = issubclass(cls, np.ndarray)
    if not found and kind_of(cls) is FIXED:
        _without_arrays.add(cls)
    return found
