"""What a value is, in a few characters: ranks where these are equal have equal values.

Told with each reply (``engine.names``), so that it is known what a rank had after it has died.
Short plain values stand for themselves (``=0.5``), others by a hash (``#1f...``); of what can't be
known without running a user's code, or would take long, nothing is said ("").

Nothing here calls a user's code. Of an array that spans processes only what it is counts: each
process has its own part of it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import pathlib
import random
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcluster.engine import value_copies
from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    is_array,
    is_ready,
    is_tracer,
    read_numbers,
)

MOST_ELEMENTS = 2_000  # of one value: some 1 ms
MOST_NBYTES = 1 << 20  # of numbers and texts: as long
LITERAL_CHARS = 80
FEW = 64  # objects in a value whose ids are kept
DEPTH = 60

LITERAL, HASH = "=", "#"  # what begins a text that ``literal_eval`` reads, and a hash


class Unknown(Exception):
    """Nothing can be said of a value."""


class TooMuch(Unknown):
    """There is no room for it."""


class NotReady(Unknown):
    """It is still being computed."""


@dataclass
class Room:
    """How much of a value may be looked at yet."""

    elements: int = MOST_ELEMENTS
    nbytes: int = MOST_NBYTES

    def take(self, elements: int, nbytes: int = 0) -> None:
        if elements > self.elements or nbytes > self.nbytes:
            raise TooMuch
        self.elements -= elements
        self.nbytes -= nbytes


@dataclass(frozen=True)
class Digest:
    """What is said of a value.

    Attributes:
      text: "" if nothing is known.
      is_fixed: the value can't change in place.
      inside: the ids of what it is made of, itself among them; None where they are many.
    """

    text: str
    is_fixed: bool
    inside: frozenset[int] | None = None


def digest(value: Any, room: Room) -> Digest:
    """What a value is. Some 0.3 us for an atom or an element, 1 ms for each MiB.

    Raises:
      TooMuch: there is no room for it.
      NotReady: it is still being computed.
    """
    if is_literal(value) and len(text := repr(value)) <= LITERAL_CHARS:
        room.take(1)
        return Digest(LITERAL + text, True)
    walk = _Walk(room)
    try:
        walk.feed(value, 0)
    except (TooMuch, NotReady):
        raise
    except Exception:  # unknown; or a thread of the user's changes it at this moment
        return Digest("", False)
    hashed = hashlib.blake2b(b"\0".join(walk.parts), digest_size=12)
    return Digest(HASH + hashed.hexdigest(), walk.is_fixed, walk.inside())


def is_literal(value: Any, depth: int = 4) -> bool:
    """Whether a value is what ``literal_eval`` makes of its text, and can't change."""
    cls = type(value)
    if cls is tuple:
        short = depth > 0 and len(value) <= LITERAL_CHARS // 3
        return short and all(is_literal(one, depth - 1) for one in value)
    if cls is float:
        return bool(value - value == 0.0)  # neither infinite nor NaN, whose text is a name
    if cls is int:
        return bool(value.bit_length() < 4 * LITERAL_CHARS)
    return value is None or cls is bool or (cls is str and len(value) < LITERAL_CHARS)


class _Walk:
    """One value, taken apart into ``parts``."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.parts: list[bytes] = []
        self.is_fixed = True
        self._places: dict[int, int] = {}

    def inside(self) -> frozenset[int] | None:
        return frozenset(self._places) if len(self._places) <= FEW else None

    def put(self, text: str) -> None:
        data = text.encode(errors="surrogatepass")
        self.room.take(0, len(data))
        self.parts.append(data)

    def each(self, kind: str, values: Iterable[Any], depth: int) -> None:
        values = list(values)
        self.room.take(len(values))
        self.put(f"{kind} {len(values)}")
        for value in values:
            self.feed(value, depth + 1)

    def feed(self, value: Any, depth: int) -> None:
        cls = type(value)
        if (atom := _ATOMS.get(cls)) is not None:
            if cls in (str, bytes):
                self.room.take(1, len(value))
            self.put(f"{cls.__name__} {atom(value)}")
            return
        if depth > DEPTH:
            raise TooMuch
        self.room.take(1)
        if id(value) in self._places:
            self.put(f"again {self._places[id(value)]}")
            return
        self._places[id(value)] = len(self._places)
        handler = _HANDLERS.get(cls) or _handler_of(value)
        handler(self, value, depth)


# --------------------------------------------------------------------------- kinds of values


Handler = Callable[[_Walk, Any, int], None]


def _list(walk: _Walk, value: Any, depth: int) -> None:
    walk.is_fixed = False
    walk.each(f"{type(value).__name__} {getattr(value, 'maxlen', '')}", value, depth)


def _dict(walk: _Walk, value: Any, depth: int) -> None:
    walk.is_fixed = False
    if isinstance(value, collections.defaultdict):
        walk.feed(value.default_factory, depth + 1)
    walk.each(type(value).__name__, value.keys(), depth)
    walk.each("values", value.values(), depth)


def _tuple(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(_name_of(type(value)))
    walk.each("tuple", tuple.__iter__(value), depth)
    if attributes := getattr(value, "__dict__", None):
        _dict(walk, dict(attributes), depth)


def _set(walk: _Walk, value: Any, depth: int) -> None:
    if type(value) is set:
        walk.is_fixed = False
    walk.room.take(len(value))
    if not all(type(one) in _ATOMS for one in value):
        raise Unknown
    walk.put(f"{type(value).__name__} {sorted(f'{type(one).__name__} {one!r}' for one in value)}")


def _numpy(walk: _Walk, value: Any, depth: int) -> None:
    if value.dtype.hasobject:
        raise Unknown
    walk.is_fixed = False
    walk.put(f"numpy {value.dtype.str} {value.dtype} {value.shape}")
    _bytes(walk, value)


def _bytes(walk: _Walk, value: Any) -> None:
    walk.room.take(1, value.nbytes)
    walk.parts.append(value.tobytes())


def _numpy_scalar(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(f"scalar {value.dtype}")
    _bytes(walk, value)


def _generator(walk: _Walk, value: Any, depth: int) -> None:
    walk.is_fixed = False
    walk.put(repr(value.bit_generator.state))


def _random_state(walk: _Walk, value: Any, depth: int) -> None:
    walk.is_fixed = False
    walk.put(repr([*value.get_state(legacy=False).items()]))
    walk.parts.append(value.get_state(legacy=False)["state"]["key"].tobytes())


def _python_random(walk: _Walk, value: Any, depth: int) -> None:
    walk.is_fixed = False
    walk.put(repr(value.getstate()))


def _array(walk: _Walk, array: Any, depth: int) -> None:
    base = base_array(array)
    if is_tracer(array) or base.is_deleted():
        raise Unknown
    walk.put(f"array {array.dtype} {base.dtype} {base.shape} {base.weak_type}")
    walk.put(f"{_text(base.sharding)} {getattr(base, 'committed', True)}")
    if not base.is_fully_addressable:
        return
    if not is_ready(base):
        raise NotReady
    for shard in base.addressable_shards:
        walk.put(str(bounds(shard.index, base.shape)))
        _bytes(walk, read_numbers(shard.data))


def _function(walk: _Walk, value: Any, depth: int) -> None:
    """By its code and what it holds. What it finds in the namespace are names of their own."""
    if is_imported(value):
        walk.put(_name_of(value))
        return
    walk.put(f"function {value.__qualname__}")
    _code(walk, value.__code__)
    walk.each("defaults", value.__defaults__ or (), depth)
    _dict_of(walk, value.__kwdefaults__ or {}, depth)
    _dict_of(walk, value.__dict__, depth)
    cells = value.__closure__ or ()
    if cells or value.__dict__:
        walk.is_fixed = False
    walk.each("closure", [cell.cell_contents for cell in cells], depth)


def _dict_of(walk: _Walk, values: dict[Any, Any], depth: int) -> None:
    walk.each("keys", values.keys(), depth)
    walk.each("values", values.values(), depth)


def _code(walk: _Walk, code: types.CodeType) -> None:
    text, nbytes = _code_text(code)
    walk.room.take(1, nbytes)
    walk.parts.append(text)


@functools.lru_cache(maxsize=1024)
def _code_text(code: types.CodeType) -> tuple[bytes, int]:
    """A hash of what code does, wherever it stands; and what that has cost."""
    hashed = hashlib.blake2b(code.co_code, digest_size=12)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount)
    hashed.update(repr((names, code.co_kwonlyargcount, code.co_flags)).encode())
    nbytes = len(code.co_code)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner, more = _code_text(const)
            hashed.update(inner)
            nbytes += more
        else:
            text = str(sorted(map(repr, const))) if type(const) is frozenset else repr(const)
            hashed.update(f"{type(const).__name__} {text}".encode(errors="surrogatepass"))
            nbytes += len(text)
    return hashed.digest(), nbytes


def _builtin(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(f"builtin {value.__module__} {value.__qualname__}")
    owner = value.__self__
    if owner is not None and not isinstance(owner, types.ModuleType):
        walk.feed(owner, depth + 1)


def _partial(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(_name_of(type(value)))
    walk.each("partial", (value.func, *value.args), depth)
    _dict_of(walk, value.keywords, depth)


def _wrapped(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(type(value).__name__)
    walk.feed(value.__func__, depth + 1)


def _class(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(_name_of(value))
    if value.__module__ != "__main__":
        if not is_imported(value):
            raise Unknown
        return
    walk.is_fixed = False
    walk.each("bases", value.__bases__, depth)
    _dict_of(walk, {n: v for n, v in vars(value).items() if _is_of_class(n, v)}, depth)


def _is_of_class(name: str, value: Any) -> bool:
    """Whether it is more than what Python keeps there for itself, at times only later."""
    if name.startswith("__") and name.endswith("__"):
        return isinstance(value, _METHODS) and "annotat" not in name
    return name != "_abc_impl"


_METHODS = (types.FunctionType, staticmethod, classmethod, property)


def _object(walk: _Walk, value: Any, depth: int) -> None:
    cls = type(value)
    walk.is_fixed = False
    walk.feed(cls, depth + 1)
    if cls.__dictoffset__:
        _dict_of(walk, object.__getattribute__(value, "__dict__"), depth)
    found = {name: read(value) for name, read in value_copies.slots_of(cls).items()}
    _dict_of(walk, {n: v for n, v in found.items() if v is not value_copies.MISSING}, depth)


def _cached(walk: _Walk, value: Any, depth: int) -> None:
    """A function with ``functools.lru_cache``: what it has cached is no part of it."""
    if is_imported(value):
        walk.put(_name_of(value))
        return
    walk.put(f"cached {sorted(value.cache_parameters().items())}")
    walk.feed(value.__wrapped__, depth + 1)


def _repr(walk: _Walk, value: Any, depth: int) -> None:
    walk.put(f"{_name_of(type(value))} {value!r}")


def _jax(walk: _Walk, value: Any, depth: int) -> None:
    """What JAX has of its own: meshes, shardings, devices, functions that it has wrapped."""
    import jax

    if isinstance(value, jax.sharding.Mesh | jax.sharding.Sharding):
        walk.put(_text(value))
    elif isinstance(value, jax.sharding.PartitionSpec):
        walk.put(repr(value))
    elif isinstance(value, jax.Device):
        walk.put(f"device {value.id}")
    elif is_imported(value):
        walk.put(_name_of(value))
    elif hasattr(value, "__wrapped__") and callable(value):
        walk.put(_name_of(type(value)))
        walk.feed(value.__wrapped__, depth + 1)
    else:
        raise Unknown


@functools.lru_cache(maxsize=256)
def _text(value: Any) -> str:
    """A mesh or a sharding; one of this process's own devices by their places, as it is saved."""
    import jax

    kind: Any
    if isinstance(value, jax.sharding.Mesh):
        devices, kind = list(value.devices.flat), (value.axis_names, value.axis_types)
        shape = value.devices.shape
    else:
        mesh = getattr(value, "mesh", None)
        devices = list(mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else []
        devices = devices or sorted(value.device_set, key=lambda device: device.id)
        shape = mesh.devices.shape if isinstance(mesh, jax.sharding.Mesh) else ()
        kind = (type(value).__name__, getattr(value, "spec", None), value.memory_kind)
    local = {device.id: f"local {place}" for place, device in enumerate(jax.local_devices())}
    ids = [device.id for device in devices]
    if all(i in local for i in ids):
        return f"{kind} {shape} {[local[i] for i in ids]}"
    return f"{kind} {shape} {ids} {'' if shape else value}"


def is_imported(value: Any) -> bool:
    """Whether a value is what its module has under its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return bool(found is value)


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _handler_of(value: Any) -> Handler:
    """How a value is taken apart, where its type alone does not say it."""
    cls = type(value)
    if is_array(value):
        return _array
    if issubclass(cls, np.generic) and not issubclass(cls, np.void | np.object_):
        return _numpy_scalar
    if issubclass(cls, type):
        return _class
    if issubclass(cls, enum.Enum):
        return lambda walk, value, depth: walk.put(f"enum {_name_of(type(value))} {value.name}")
    if issubclass(cls, functools.partial):
        return _partial
    if cls.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return _jax
    if issubclass(cls, pathlib.PurePath) and cls.__module__.partition(".")[0] == "pathlib":
        return _repr
    if issubclass(cls, np.dtype | np.ufunc):
        return _repr
    if issubclass(cls, tuple):
        return _tuple
    if value_copies.kind_of(cls) is value_copies.OBJECT or value_copies.slots_of(cls):
        return _object
    if callable(value) and not hasattr(cls, "__getattr__") and is_imported(value):
        return lambda walk, value, depth: walk.put(f"import {_name_of(value)}")
    raise Unknown


_Field = collections.namedtuple("_Field", "a")
# Of these the text says all. A float's is exact.
_ATOMS: dict[type, Callable[[Any], str]] = dict.fromkeys(
    (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis)), repr
)
_HANDLERS: dict[type, Handler] = {
    **dict.fromkeys((list, collections.deque, bytearray), _list),
    **dict.fromkeys(
        (dict, collections.OrderedDict, collections.defaultdict, collections.Counter), _dict
    ),
    **dict.fromkeys((set, frozenset), _set),
    tuple: _tuple,
    np.ndarray: _numpy,
    np.random.Generator: _generator,
    np.random.RandomState: _random_state,
    random.Random: _python_random,
    types.ModuleType: lambda walk, value, depth: walk.put(f"module {value.__name__}"),
    types.FunctionType: _function,
    types.MethodType: lambda walk, value, depth: walk.each(
        "method", (value.__self__, value.__func__), depth
    ),
    types.BuiltinFunctionType: _builtin,
    functools._lru_cache_wrapper: _cached,
    **dict.fromkeys((staticmethod, classmethod), _wrapped),
    property: lambda walk, value, depth: walk.each(
        "property", (value.fget, value.fset, value.fdel), depth
    ),
    functools.cached_property: lambda walk, value, depth: walk.each(
        "cached_property", (value.func, value.attrname), depth
    ),
    functools.partialmethod: _partial,
    types.MemberDescriptorType: lambda walk, value, depth: walk.put(f"slot {value.__name__}"),
    type(_Field.a): lambda walk, value, depth: walk.put(f"field {value.__reduce__()[1]}"),
    **dict.fromkeys(
        (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
        _repr,
    ),
    **dict.fromkeys((decimal.Decimal, fractions.Fraction, uuid.UUID), _repr),
}
