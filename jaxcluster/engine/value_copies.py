"""How values of each type are kept from before a cell: a shallow copy, and what lies inside.

What is put back are values whose whole state is in sight: dicts, lists, sets, deques, small numpy
arrays, random generators, functions with their closures, exceptions, and objects and classes of the
user's, also those that extend a builtin type or have slots. Of everything else (generators, open
files, data frames) nothing is claimed: its kind is *opaque*.

Nothing here calls a user's code or compares values: two values are the same if they are one object,
and a value is read by the methods of the builtin type, not by those of a class that extends it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import functools
import gc
import operator
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np

from jaxcluster.engine.private.pytrees import registration_of
from jaxcluster.engine.user_names import is_own_module

MISSING: Any = object()

_FUNCTIONS_OF_C = (types.BuiltinFunctionType, types.MethodWrapperType)
# Values of these never change, or hold nothing of a session.
_FIXED = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis)),
    *(types.CodeType, types.GenericAlias, types.UnionType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.FrameType, types.TracebackType, types.ClassMethodDescriptorType, enum.Enum),
    *(np.generic, np.dtype, np.ufunc, type(np.sum)),
)
_FIXED_MODULES = (
    *("jax", "jaxlib", "typing", "re", "enum", "pathlib", "datetime", "decimal", "fractions"),
    *("uuid", "zoneinfo", "ipaddress", "inspect", "dataclasses", "_abc"),
    *("_frozen_importlib", "_frozen_importlib_external"),
)
_OF_CYTHON = "__pyx_defaults"  # of a function's arguments
# What a class may be made of and still have no state but its attributes.
_HARMLESS_BASES = (
    "functools",
    *("abc", "typing", "collections", "dataclasses", "contextlib", "enum"),
    *("_py_abc", "builtins", "numbers", "types"),
)
# What only leads to others, and has no state of its own that matters.
_LEADS_ON: tuple[type, ...] = (
    *(types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items())),
    *(operator.methodcaller, operator.itemgetter, operator.attrgetter),
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
vars_of_class: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__


def _nothing(value: Any, copy: Any) -> None:
    """How a value is put back that can't change, but leads to others that can."""


@dataclass(frozen=True, eq=False)
class Kind:
    """How values of a type are kept: a shallow copy, and what of it must be looked at further.

    ``inside`` is what of a copy is to be looked at further. ``size`` is what counts against the
    budget, before anything is copied. ``can_put_back`` is asked of values that have changed.
    ``opaque``: nothing is known of its own state. ``has_class``: its methods may reach more.
    """

    name: str
    copy: Callable[[Any], Any] = lambda value: None
    inside: Callable[[Any], Iterable[Any]] = lambda copy: ()
    is_same: Callable[[Any, Any], bool] = lambda value, copy: True
    put_back: Callable[[Any, Any], None] = _nothing
    can_put_back: Callable[[Any, Any], bool] = lambda value, copy: True
    size: Callable[[Any], int] = lambda value: 1
    nbytes: Callable[[Any], int] | None = None
    opaque: bool = False
    has_class: bool = False

    @property
    def is_watched(self) -> bool:
        return self.put_back is not _nothing


def _same_items(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    return len(a) == len(b) and all(map(is_, a, b)) and all(map(is_, a.values(), b.values()))


def _same_elements(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(is_, a, b))


# --------------------------------------------------------------------------- containers


def _keys_and_values(copy: dict[Any, Any]) -> list[Any]:
    return [*copy, *copy.values()]


def _copy_dict(value: Any) -> dict[Any, Any]:
    return dict(value) if type(value) is dict else dict(dict.items(value))


def _refill(value: Any, copy: dict[Any, Any]) -> None:
    dict.clear(value)
    dict.update(value, copy)  # of a dict: keys aren't hashed again


def _copy_ordered(value: Any) -> dict[Any, Any]:
    return dict(collections.OrderedDict.items(value))


def _refill_ordered(value: Any, copy: dict[Any, Any]) -> None:
    collections.OrderedDict.clear(value)
    for key, one in copy.items():
        collections.OrderedDict.__setitem__(value, key, one)


def _copy_defaultdict(value: Any) -> tuple[Any, dict[Any, Any]]:
    return _factory.__get__(value), _copy_dict(value)


def _refill_defaultdict(value: Any, copy: tuple[Any, dict[Any, Any]]) -> None:
    _factory.__set__(value, copy[0])
    _refill(value, copy[1])


def _copy_deque(value: Any) -> list[Any]:
    return list(collections.deque.__iter__(value))


def _refill_deque(value: Any, copy: list[Any]) -> None:
    collections.deque.clear(value)
    collections.deque.extend(value, copy)


def _same_set(a: Any, b: set[Any]) -> bool:
    """Not ``==``: 1 and True are equal, and a user's class may say so of anything."""
    return {*map(id, set.__iter__(a))} == {*map(id, set.__iter__(b))}


def _refill_set(value: Any, copy: set[Any]) -> None:
    set.clear(value)
    set.update(value, copy)


_factory: Any = collections.defaultdict.__dict__["default_factory"]
DICT = Kind(
    "dict",
    _copy_dict,
    _keys_and_values,
    lambda a, b: _same_items(a if type(a) is dict else _copy_dict(a), b),
    _refill,
    size=dict.__len__,
)
TUPLE = Kind("tuple", lambda value: tuple(tuple.__iter__(value)), iter, size=tuple.__len__)

# --------------------------------------------------------------------------- numpy and random


def _copy_numpy(value: Any) -> Any:
    """A copy and whether it may be written to; None where nobody can change it."""
    flags = value.flags
    if not (flags.writeable or flags.owndata or isinstance(value.base, np.ndarray)):
        return None
    return _plain_array(value).copy(), flags.writeable


def _plain_array(value: Any) -> Any:
    return value if type(value) is np.ndarray else np.ndarray.view(value, np.ndarray)


def _numpy_inside(copy: Any) -> Iterable[Any]:
    return copy[0].ravel().tolist() if copy is not None and copy[0].dtype.hasobject else ()


def _same_numpy(value: Any, copy: Any) -> bool:
    return copy is None or (
        value.shape == copy[0].shape
        and value.dtype == copy[0].dtype
        and value.flags.writeable == copy[1]
        and _plain_array(value).tobytes() == copy[0].tobytes()  # of objects: their addresses
    )


def _can_refill_numpy(value: Any, copy: Any) -> bool:
    same = value.shape == copy[0].shape and value.dtype == copy[0].dtype
    flags = value.flags
    return bool(same and (flags.writeable or flags.owndata or isinstance(value.base, np.ndarray)))


def _refill_numpy(value: Any, copy: Any) -> None:
    if not value.flags.writeable:
        value.flags.writeable = True
    np.copyto(_plain_array(value), copy[0], casting="no")
    value.flags.writeable = copy[1]


def _state_of_bits(value: Any) -> Any:
    return value.state, getattr(value, "seed_seq", None)


def _set_bits(value: Any, state: Any) -> None:
    value.state = state[0]


def _set_python_random(value: Any, copy: tuple[Any, ...]) -> None:
    value.setstate(copy[0])
    _refill_object(value, copy[1])


def _set_decimal(value: Any, copy: Any) -> None:
    for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp"):
        setattr(value, name, getattr(copy, name))
    for signals, kept in ((value.flags, copy.flags), (value.traps, copy.traps)):
        for one in kept:
            signals[one] = kept[one]


DECIMAL = Kind(
    "decimal",
    decimal.Context.copy,
    is_same=lambda value, copy: repr(value) == repr(copy),
    put_back=_set_decimal,
)

# --------------------------------------------------------------------------- functions


def _inside_cell(value: Any) -> Any:
    try:
        return value.cell_contents
    except ValueError:  # it is empty
        return MISSING


def _refill_cell(value: Any, copy: Any) -> None:
    if copy is not MISSING:
        value.cell_contents = copy
    else:
        with contextlib.suppress(ValueError):
            del value.cell_contents


def _copy_function(value: Any) -> tuple[Any, ...]:
    """What may be set of it, then what of that is mutable, then the cells of its closure."""
    return (
        value.__code__,
        value.__defaults__,
        value.__kwdefaults__,
        dict(value.__dict__) if value.__dict__ else None,
        value.__closure__,
    )


def _inside_function(copy: tuple[Any, ...]) -> list[Any]:
    _, defaults, keywords, attributes, closure = copy
    if not (defaults or attributes or closure) and keywords is None:
        return []
    named = [] if keywords is None else [keywords]  # itself: a cell may have emptied it since
    return [*(defaults or ()), *named, *(attributes or {}).values(), *(closure or ())]


def _same_function(value: Any, copy: tuple[Any, ...]) -> bool:
    attributes = copy[3] or {}
    return (
        value.__code__ is copy[0]
        and value.__defaults__ is copy[1]
        and value.__kwdefaults__ is copy[2]
        and _same_items(value.__dict__, attributes)
    )


def _refill_function(value: Any, copy: tuple[Any, ...]) -> None:
    value.__code__, value.__defaults__, value.__kwdefaults__ = copy[:3]
    _refill(value.__dict__, copy[3] or {})


def _self_of(value: Any) -> tuple[Any, ...]:
    """Whose method it is: ``history`` of ``history.append``."""
    owner = value.__self__
    # The states of these are kept in any case.
    return () if owner is _python_random or owner is _numpy_random else (owner,)


_python_random = random.random.__self__  # type: ignore[attr-defined]
_numpy_random = getattr(np.random.random, "__self__", None)


def cached_results(value: Any) -> list[Any]:
    """The results that a cache has (and, where it has a limit, their keys)."""
    found: list[Any] = []
    attributes = _attributes(value)
    for one in gc.get_referents(value):
        if type(one) is dict and one is not attributes:
            found += one.values()  # without a limit; else links, which lead nowhere
        elif one is not attributes and not isinstance(one, type):
            found.append(one)
    return [one for one in found if type(one).__name__ != "_lru_list_elem"]


def _copy_cache(value: Any) -> tuple[Any, ...]:
    return value.__wrapped__, _attributes(value), value.cache_info().misses, cached_results(value)


def _same_cache(value: Any, copy: tuple[Any, ...]) -> bool:
    same = {*map(id, cached_results(value))} == {*map(id, copy[3])}  # in another order after a hit
    return bool(same and value.cache_info().misses == copy[2])


def _copy_partial(value: Any) -> tuple[Any, ...]:
    partial = functools.partial
    func: Any = partial.__dict__["func"]
    args: Any = partial.__dict__["args"]
    keywords: Any = partial.__dict__["keywords"]
    return func.__get__(value), *args.__get__(value), keywords.__get__(value), _attributes(value)


_PASSED_OVER = {types.FrameType, types.TracebackType, types.ModuleType, types.CodeType}


def referents(value: Any) -> list[Any]:
    """All that a value of any type leads to, as far as Python's garbage collector knows it."""
    return [one for one in gc.get_referents(value) if type(one) not in _PASSED_OVER]


def attributes_of(value: Any) -> list[dict[str, Any]]:
    """The dict of a value's attributes, if it has one: gc need not know it (Python 3.13)."""
    with contextlib.suppress(AttributeError):
        if type(found := _attributes(value)) is dict:
            return [found]
    return []


# --------------------------------------------------------------------------- objects and classes


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    return found


def _refill_object(value: Any, copy: dict[str, Any]) -> None:
    _refill(_attributes(value), copy)


def _wrapped(value: Any) -> list[Any]:
    """What a function that JAX has made is of, and its attributes; nothing for what else it has."""
    with contextlib.suppress(AttributeError):
        if "__wrapped__" in (attributes := _attributes(value)):
            return [attributes]
    return [getattr(value, "__wrapped__", None)]


def _copy_class(value: Any) -> tuple[Any, ...]:
    return dict(vars_of_class(value)), value.__bases__


def _in_class(copy: tuple[Any, ...]) -> list[Any]:
    """Its methods and attributes, without what Python has put there, and its bases."""
    kept = [
        one
        for name, one in copy[0].items()
        if type(one) in _IN_CLASSES or not (name.startswith("__") and name.endswith("__"))
    ]
    return [*kept, *copy[1]]


_IN_CLASSES = (
    *(types.FunctionType, property, staticmethod, classmethod),
    *(list, dict, set, functools.cached_property),
)


def _same_class(value: Any, copy: tuple[Any, ...]) -> bool:
    """Of a class without regard to their order, which can't be put back."""
    now = vars_of_class(value)
    return (
        _same_elements(value.__bases__, copy[1])
        and len(now) == len(copy[0])
        and all(now.get(name, MISSING) is one for name, one in copy[0].items())
    )


def _refill_class(value: Any, copy: tuple[Any, ...]) -> None:
    """The order of its attributes stays as it is."""
    now = vars_of_class(value)
    for name in set(now) - set(copy[0]):
        type.__delattr__(value, name)
    for name, one in copy[0].items():
        if now.get(name, MISSING) is not one:
            type.__setattr__(value, name, one)
    if not _same_elements(value.__bases__, copy[1]):
        value.__bases__ = copy[1]


def is_users_class(cls: type) -> bool:
    """Whether it was defined in a cell, or in a module of the user's own."""
    module = module_of(cls)
    return module == "__main__" or is_own_module(module)


def module_of(cls: type) -> Any:
    """The name of a class's module, mostly a str. Without its metaclass's code."""
    return vars_of_class(cls).get("__module__")


def has_attribute(cls: type, *names: str) -> bool:
    """Whether a class, or a base but ``object``, has one of these. Without its metaclass's code."""
    bases = [vars_of_class(base) for base in cls.__mro__ if base is not object]
    return any(name in own for own in bases for name in names)


def library_of(cls: type) -> str:
    """The package that a class is of; "" where it does not say so."""
    module = getattr(cls, "__module__", "")
    return module.partition(".")[0] if type(module) is str else ""


CLASS = Kind(
    "class",
    _copy_class,
    _in_class,
    _same_class,
    _refill_class,
    size=lambda value: len(vars_of_class(value)),
)
FUNCTION = Kind("function", _copy_function, _inside_function, _same_function, _refill_function)
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
FIXED = Kind("fixed")
OPAQUE = Kind("opaque", opaque=True)
ITERATOR = Kind("iterator", opaque=True)  # what it leads to is the user's
LEADS_ON = Kind("leads on", referents, iter)
BOUND = Kind("bound", _self_of, iter)
WEAK = Kind("weak", lambda value: (weakref.ref.__call__(value),), iter)
WRAPPER = Kind("wrapper", _wrapped, iter)
MODULE = Kind(  # one that a cell has made
    "module",
    lambda value: dict(_attributes(value)),
    dict.values,
    lambda value, copy: _same_items(_attributes(value), copy),
    _refill_object,
    size=lambda value: len(_attributes(value)),
)
_EXCEPTION = ("args", "__traceback__", "__cause__", "__context__", "__suppress_context__")
_OF_EXCEPTION: list[Any] = [BaseException.__dict__[name] for name in _EXCEPTION]


def _copy_exception(value: Any) -> tuple[Any, ...]:
    return tuple(one.__get__(value) for one in _OF_EXCEPTION)


def _refill_exception(value: Any, copy: tuple[Any, ...]) -> None:
    for one, kept in zip(_OF_EXCEPTION, copy, strict=True):
        one.__set__(value, kept)


# What a builtin type keeps besides attributes; a class of the user's may extend it.
_BUILTIN: dict[type, Kind] = {
    **dict.fromkeys((object, int, float, complex, str, bytes), FIXED),
    dict: DICT,
    collections.OrderedDict: Kind(
        "dict",
        _copy_ordered,
        _keys_and_values,
        lambda a, b: _same_items(_copy_ordered(a), b),
        _refill_ordered,
        size=dict.__len__,
    ),
    collections.defaultdict: Kind(
        "dict",
        _copy_defaultdict,
        lambda copy: [copy[0], *_keys_and_values(copy[1])],
        lambda a, b: _factory.__get__(a) is b[0] and _same_items(_copy_dict(a), b[1]),
        _refill_defaultdict,
        size=dict.__len__,
    ),
    list: Kind(
        "list",
        list.copy,
        iter,
        lambda a, b: _same_elements(list.copy(a), b),
        lambda value, copy: list.__setitem__(value, slice(None), copy),
        size=list.__len__,
    ),
    collections.deque: Kind(
        "deque",
        _copy_deque,
        iter,
        lambda a, b: _same_elements(_copy_deque(a), b),
        _refill_deque,
        size=collections.deque.__len__,
    ),
    set: Kind("set", set.copy, set.__iter__, _same_set, _refill_set, size=set.__len__),
    tuple: TUPLE,
    frozenset: Kind("set", frozenset.copy, frozenset.__iter__, size=frozenset.__len__),
    bytearray: Kind(
        "bytearray",
        lambda value: bytes(memoryview(value)),
        is_same=lambda value, copy: bytes(memoryview(value)) == copy,
        put_back=lambda value, copy: bytearray.__setitem__(value, slice(None), copy),
        nbytes=bytearray.__len__,
    ),
    np.ndarray: NUMPY,
    types.SimpleNamespace: FIXED,
    BaseException: Kind(
        "exception",
        _copy_exception,
        lambda copy: copy[0],
        lambda value, copy: _same_elements(_copy_exception(value), copy),
        _refill_exception,
    ),
}

# By exact type: a subclass may do anything.
_KINDS: dict[type, Kind] = {
    **{cls: kind for cls, kind in _BUILTIN.items() if not cls.__dictoffset__},
    np.random.Generator: Kind("random", lambda value: (value.bit_generator,), iter),
    np.random.RandomState: Kind(
        "random",
        lambda value: value.get_state(legacy=False),
        is_same=lambda value, state: repr(value.get_state(legacy=False)) == repr(state),
        put_back=lambda value, state: value.set_state(state),
    ),
    np.random.SeedSequence: Kind(
        "seeds",
        lambda value: value.n_children_spawned,
        is_same=lambda value, spawned: bool(value.n_children_spawned == spawned),
        put_back=lambda value, spawned: None,
        can_put_back=lambda value, spawned: False,
    ),
    random.Random: Kind(
        "random",
        lambda value: (value.getstate(), dict(_attributes(value))),
        is_same=lambda value, copy: (
            _same_items(_attributes(value), copy[1]) and value.getstate() == copy[0]
        ),
        put_back=_set_python_random,
    ),
    decimal.Context: DECIMAL,
    types.FunctionType: FUNCTION,
    types.CellType: Kind(
        "cell",
        _inside_cell,
        lambda copy: (copy,),
        lambda value, copy: _inside_cell(value) is copy,
        _refill_cell,
    ),
    types.ModuleType: MODULE,
    **dict.fromkeys(_FUNCTIONS_OF_C, BOUND),
    types.MethodType: Kind("method", lambda value: (value.__self__, value.__func__), iter),
    staticmethod: Kind("method", lambda value: (value.__func__,), iter),
    classmethod: Kind("method", lambda value: (value.__func__,), iter),
    property: Kind("method", lambda value: (value.fget, value.fset, value.fdel), iter),
    functools.partial: Kind("partial", _copy_partial, iter),
    weakref.ReferenceType: WEAK,
    type(functools.lru_cache(len)): Kind(
        "cache",
        _copy_cache,
        lambda copy: [*copy[:2], *copy[3]],
        _same_cache,
        lambda value, copy: value.cache_clear(),  # what it has kept may be of the cell's numbers
        size=lambda value: 2 * int(value.cache_info().currsize),
    ),
    **dict.fromkeys(_LEADS_ON, LEADS_ON),
    memoryview: Kind(
        "view",
        lambda value: (value.obj,),
        iter,
        lambda value, copy: value.obj is copy[0],  # raises where it was released
        lambda value, copy: None,
        lambda value, copy: False,
    ),
}

fixed_types: set[type] = {cls for cls, kind in _KINDS.items() if kind is FIXED}


def kind_of(cls: type) -> Kind:
    """How values of exactly this type are kept. Remembered for each type."""
    found = _KINDS.get(cls)
    if found is None:
        found = _KINDS[cls] = _classify(cls)
        if found is FIXED:
            fixed_types.add(cls)
    return found


def _classify(cls: type) -> Kind:
    if issubclass(cls, type):
        return CLASS
    if is_users_class(cls):
        return _classify_users(cls)
    module = library_of(cls)
    if module in ("jax", "jaxlib"):
        return _classify_jax(cls)
    if issubclass(cls, types.ModuleType):
        return MODULE
    if issubclass(cls, np.void):  # it may be a place in an array
        return OPAQUE
    if issubclass(cls, BaseException):
        return _composed(cls) if module == "builtins" else OPAQUE
    if issubclass(cls, _FIXED) or module in _FIXED_MODULES or cls.__name__[:14] == _OF_CYTHON:
        return FIXED
    if issubclass(cls, weakref.ReferenceType):
        return WEAK
    if cls in _BUILTIN or dataclasses.is_dataclass(cls) or registration_of(cls) is not None:
        return _composed(cls)
    if _is_value(cls) or f"{cls.__module__}.".startswith(_OF_VALUES):
        return _composed(cls)
    if module in ("collections", "weakref", "_weakrefset") and cls.__flags__ & _HEAP_TYPE:
        return _composed(cls)
    if issubclass(cls, functools.partial):
        return _KINDS[functools.partial]
    if issubclass(cls, np.random.BitGenerator):
        return _BITS
    if issubclass(cls, tuple):
        return TUPLE
    return ITERATOR if module in _OF_ITERATORS else OPAQUE


# Of libraries whose objects are their attributes alone: none stands for something outside.
_OF_VALUES = tuple(
    f"{name}."
    for name in (
        "ml_collections",
        *("flax.core", "flax.ids", "flax.linen", "flax.nnx"),
        *("haiku", "jmp", "optax", "equinox", "chex"),
        *("numpyro.distributions", "numpyro.handlers", "numpyro.infer", "numpyro.optim"),
    )
)


def _is_value(cls: type) -> bool:
    """Whether it is a mapping that is hashed by what it holds, as flax's models have."""
    hash_of: Any = cls.__hash__  # None: of none
    is_fixed_mapping = issubclass(cls, Mapping) and not issubclass(cls, MutableMapping)
    return is_fixed_mapping and hash_of not in (None, object.__hash__)


_OF_ITERATORS = ("builtins", "itertools", "collections", "_collections", "types")
_BITS = Kind(
    "random",
    _state_of_bits,
    lambda state: state[1:],
    lambda value, state: repr(value.state) == repr(state[0]),
    _set_bits,
)


def _classify_jax(cls: type) -> Kind:
    """JAX's own values don't change, but for references; functions lead to those they are of."""
    import jax

    if issubclass(cls, getattr(jax, "Ref", ())):
        return OPAQUE
    if issubclass(cls, functools.partial):
        return _KINDS[functools.partial]
    if issubclass(cls, tuple):
        return TUPLE
    if issubclass(cls, (jax.custom_jvp, jax.custom_vjp)):
        return _composed(cls)
    return WRAPPER if any("__call__" in vars(base) for base in cls.__mro__) else FIXED


def _classify_users(cls: type) -> Kind:
    """Of a class from a cell: it stands for nothing outside, unless one of its bases does.

    A thread's or a process's attributes only mirror what goes on elsewhere. Other libraries'
    classes are taken for ones without a life of their own.
    """
    for base in cls.__mro__:
        name = library_of(base) if base.__flags__ & _HEAP_TYPE else "__main__"
        if name in sys.stdlib_module_names - {"__main__", *_HARMLESS_BASES}:
            return OPAQUE
    if issubclass(cls, functools.partial):
        return _with_class(_KINDS[functools.partial])
    return _composed(cls)


def _composed(cls: type) -> Kind:
    """Of an object whose state is what its builtin type keeps, its attributes and its slots.

    OPAQUE where there is room for more in it: a part in C.
    """
    solid = _solid(cls)
    builtin = _BUILTIN.get(solid)
    if builtin is None and issubclass(solid, BaseException):
        builtin = _BUILTIN[BaseException] if _has_size_of(solid, BaseException) else None
    slots = _slots_below(cls, solid)
    has_attributes = bool(cls.__dictoffset__)
    if builtin is None or not _has_size_of(cls, _like(solid, len(slots), cls)):
        return OPAQUE
    if not slots and not has_attributes:
        return builtin if cls is solid else _with_class(builtin)
    if not slots and builtin is FIXED:
        return OBJECT
    return _with_parts(builtin, slots, has_attributes)


def _solid(cls: type) -> type:
    return next(b for b in cls.__mro__ if b in _BUILTIN or not b.__flags__ & _HEAP_TYPE)


def _slots_below(cls: type, solid: type) -> list[Any]:
    return [
        one
        for base in cls.__mro__[: cls.__mro__.index(solid)]
        for one in vars_of_class(base).values()
        if type(one) is types.MemberDescriptorType
    ]


def slots_of(cls: type) -> dict[str, Any]:
    """What reads the slots of an object that is them and its attributes alone; {} of others."""
    if kind_of(cls).opaque or _solid(cls) is not object:
        return {}
    return {one.__qualname__: functools.partial(_slot, one) for one in _slots_below(cls, object)}


def _like(solid: type, slots: int, cls: type) -> type:
    """A class of nothing but the same parts."""
    if not slots and cls.__dictoffset__ and cls.__weakrefoffset__:
        return type("Like", (solid,), {})
    if not slots and solid.__itemsize__:
        return type("Like", (solid,), {} if cls.__dictoffset__ else {"__slots__": ()})
    names = [f"s{n}" for n in range(slots)]
    if cls.__dictoffset__ and not solid.__dictoffset__:
        names.append("__dict__")
    if cls.__weakrefoffset__ and not solid.__weakrefoffset__:
        names.append("__weakref__")
    try:
        return type("Like", (solid,), {"__slots__": names})
    except TypeError:
        return object


def _has_size_of(cls: type, base: type) -> bool:
    return cls.__basicsize__ == base.__basicsize__ and cls.__itemsize__ == base.__itemsize__


def _with_class(kind: Kind) -> Kind:
    """The same of a class of the user's: which class that is may change, at least."""
    put_back = kind.put_back if kind.is_watched else lambda value, copy: None
    return dataclasses.replace(kind, name="object", put_back=put_back, has_class=True)


def _with_parts(builtin: Kind, slots: list[Any], has_attributes: bool) -> Kind:
    """See ``_composed``. A copy: what the builtin type keeps, the attributes, the slots."""

    def copy(value: Any) -> tuple[Any, ...]:
        attributes = dict(_attributes(value)) if has_attributes else {}
        return builtin.copy(value), attributes, [_slot(one, value) for one in slots]

    def inside(copy: tuple[Any, ...]) -> list[Any]:
        return [*builtin.inside(copy[0]), *copy[1].values(), *copy[2]]

    def same_parts(value: Any, copy: tuple[Any, ...]) -> bool:
        attributes = _attributes(value) if has_attributes else {}
        return _same_items(attributes, copy[1]) and all(
            _slot(one, value) is kept for one, kept in zip(slots, copy[2], strict=True)
        )

    def put_back(value: Any, copy: tuple[Any, ...]) -> None:
        if not builtin.is_same(value, copy[0]):
            builtin.put_back(value, copy[0])
        if has_attributes:
            _refill_object(value, copy[1])
        for one, kept in zip(slots, copy[2], strict=True):
            if kept is not MISSING:
                one.__set__(value, kept)
            elif _slot(one, value) is not MISSING:
                one.__delete__(value)

    return Kind(
        "object",
        copy,
        inside,
        lambda value, copy: builtin.is_same(value, copy[0]) and same_parts(value, copy),
        put_back,
        lambda value, copy: builtin.is_same(value, copy[0]) or builtin.can_put_back(value, copy[0]),
        lambda value: (
            builtin.size(value) + len(slots) + (len(_attributes(value)) if has_attributes else 0)
        ),
        builtin.nbytes,
        has_class=True,
    )


def _slot(descriptor: Any, value: Any) -> Any:
    try:
        return descriptor.__get__(value)
    except AttributeError:
        return MISSING


OBJECT = dataclasses.replace(MODULE, name="object", has_class=True)
# They hold a function, and a lock.
for _cls in (functools.cached_property, functools.partialmethod, functools.singledispatchmethod):
    _KINDS[_cls] = dataclasses.replace(
        OBJECT,
        inside=lambda copy: [one for name, one in copy.items() if name != "lock"],
        has_class=False,
    )
