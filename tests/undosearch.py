"""Searches for what undo misses: random graphs and cells, and a picture before and after.

A picture is kept by this module alone, by ways of its own: for each object that any variable leads
to, what it holds, by identity. After a cell was taken back each variable leads to what it led to
before, or undo has named it. Where all is of the kinds that can be put back, nothing may be named.

    python tests/undosearch.py SEED...      what one graph is and does
    python tests/undosearch.py -n 100000    so many
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
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxcluster.cluster.undoing import Undone, plan_of
from jaxcluster.engine import changes
from jaxcluster.engine.held import Memory
from jaxcluster.engine.undo import Leave, Undo

NAMES = [f"v{n}" for n in range(7)]
FIXED = (type(None), bool, int, float, str, bytes, complex, type(Ellipsis))
ROOM = 600  # elements that are looked at before a cell, here


# ------------------------------------------------------------------------- a user's classes


def define(namespace: dict[str, Any], source: str) -> Any:
    """What a cell's source binds as ``x``, without that name; compiled once."""
    exec(_compiled(source), namespace)
    return namespace.pop("x")


@functools.cache
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<cell>", "exec")


CLASSES = {
    "plain": "class x:\n  shared = SHARED\n  def act(self, *a): self.acted = a; return A\n",
    "slots": (
        "class x:\n  __slots__ = ('a', 'b', '__weakref__')\n"
        "  @property\n  def prop(self): poke(A, 3); return self\n"
    ),
    "list": (
        "class x(list):\n  def __len__(self): return 7\n  def __iter__(self): return iter(())\n"
    ),
    "dict": "class x(dict):\n  __slots__ = ('a',)\n  def keys(self): return ()\n",
    "set": "class x(set): pass\n",
    "deque": "class x(collections.deque): pass\n",
    "tuple": "class x(tuple): pass\n",
    "str": "class x(str): pass\n",
    "array": "class x(np.ndarray): pass\n",
    "error": "class x(ValueError): pass\n",
    "partial": "class x(functools.partial): pass\n",
    "meta": (
        "class M(type):\n  log = SHARED\n  def make(cls): poke(A, 4)\n"
        "class x(metaclass=M): kept = SHARED\ndel M\n"
    ),
    "descriptor": (
        "class D:\n  log = SHARED\n  def __get__(self, o, t=None): poke(A, 5); return 1\n"
        "class x:\n  d = D()\n  @functools.cached_property\n  def c(self): poke(A, 6); return []\n"
        "  @staticmethod\n  def s(): return A\n  @classmethod\n  def k(cls): return poke(A, 8)\n"
        "del D\n"
    ),
    "data": "@dataclasses.dataclass\nclass x:\n  a: object = None\n  b: object = SHARED\n".replace(
        "= SHARED", "= None"
    ),
    "frozen": "@dataclasses.dataclass(frozen=True)\nclass x:\n  a: object = None\n",
    "slotted": "@dataclasses.dataclass(slots=True)\nclass x:\n  a: object = None\n",
    "enum": "class x(enum.Enum):\n  ONE = SHARED\n  TWO = (1, SHARED)\n",
    "flag": "class x(enum.Flag):\n  ONE = 1\n  TWO = 2\nx.note = SHARED\n",
}
MODULES = (collections, dataclasses, enum, functools, np)


class Library:
    """Stands for a class of a library, of whose values undo knows nothing."""

    def __init__(self, held: Any) -> None:
        self.held = held


class Descriptor(Library):
    """A library's descriptor, or a function of its own kind."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self

    def __call__(self, *args: Any) -> Any:
        return poke(self.held, 1)


Library.__module__ = Descriptor.__module__ = "somelibrary"


def wraps(function: Any) -> Any:
    """What a library makes of a function: its globals are not the user's."""

    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def keeps(held: Any) -> Any:
    """A library's function that has a value of its caller's, of whatever type."""

    def inner(*args: Any) -> Any:
        return poke(held, 1)

    return inner


@contextlib.contextmanager
def _managed(held: Any) -> Iterator[Any]:
    yield held


# ------------------------------------------------------------------------- building

HARD = {
    *("memory", "generator", "iterator", "map", "library", "attribute", "long", "big"),
    *("context", "queue"),
}


class Builder:
    """Makes values of what was made before; ``pool`` has all of them."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.pool: list[Any] = []
        self.hard = False

    def make(self, kind: str, seed: int) -> None:
        self.choose = random.Random(seed)
        self.hard |= kind in HARD
        made = getattr(self, f"make_{kind}")()
        self.pool.append(made)

    def one(self) -> Any:
        if not self.pool or self.choose.random() < 0.2:
            return self.choose.choice([None, 1, "text", 2.5, (1, 2)])
        return self.choose.choice(self.pool)

    def some(self) -> list[Any]:
        return [self.one() for _ in range(self.choose.randint(0, 3))]

    def hashables(self) -> list[Any]:
        return [v for v in self.some() if _is_hashable(v)]

    def function(self, body: str = "", arguments: str = "*a") -> Any:
        name, seed = self.choose.choice(NAMES), self.choose.randint(0, 3)
        body = body or self.choose.choice(
            [
                f"poke({name}, {seed})",
                f"return {name}",
                f"globals()['{name}']; poke({name}, {seed})",
                f"global {name}; {name} = 5",
                f"return [poke({name}, i) for i in range(2)]",
                f"(lambda: poke({name}, {seed}))()",
            ]
        )
        return define(self.namespace, f"def x({arguments}): {body}\n")

    def cls(self, kind: str) -> Any:
        source = CLASSES[kind].replace("(A", f"({self.choose.choice(NAMES)}")
        source = source.replace("return A", f"return {self.choose.choice(NAMES)}")
        self.namespace |= {"SHARED": self.one() if kind != "enum" else [self.one()]}
        self.namespace |= {module.__name__: module for module in MODULES} | {"np": np}
        made = define(self.namespace, source)
        del self.namespace["SHARED"]
        return made

    def object_of(self, cls: Any) -> Any:
        made = cls.__new__(cls)
        for name in ("a", "b", "c"):
            if self.choose.random() < 0.6:
                with contextlib.suppress(AttributeError):
                    object.__setattr__(made, name, self.one())
        return made

    def make_list(self) -> Any:
        return self.some()

    def make_dict(self) -> Any:
        made = {str(n): value for n, value in enumerate(self.some())}
        return made | {key: self.one() for key in self.hashables()}

    def make_set(self) -> Any:
        return {1, *self.hashables()}

    def make_frozenset(self) -> Any:
        return frozenset(self.hashables())

    def make_tuple(self) -> Any:
        return tuple(self.some())

    def make_pair(self) -> Any:
        return _Pair(self.one(), self.one())

    def make_deque(self) -> Any:
        return collections.deque(self.some(), 5)

    def make_ordered(self) -> Any:
        return collections.OrderedDict(enumerate(self.some()))

    def make_counter(self) -> Any:
        return collections.Counter("aab")

    def make_chain(self) -> Any:
        return collections.ChainMap({"a": self.one()})

    def make_default(self) -> Any:
        made = collections.defaultdict(self.choose.choice([list, self.function()]))
        made["a"] = self.one()
        return made

    def make_bytes(self) -> Any:
        return bytearray(b"abc")

    def make_array(self) -> Any:
        return np.arange(4.0)

    def make_objects(self) -> Any:
        made = np.empty(2, object)
        made[0] = self.one()
        return made

    def make_view(self) -> Any:
        arrays = [v for v in self.pool if type(v) is np.ndarray and v.ndim]
        return self.choose.choice(arrays)[1:] if arrays else np.zeros(3)[::-1]

    def make_record(self) -> Any:
        return np.zeros(2, [("a", float), ("b", object)])

    def make_memory(self) -> Any:
        return memoryview(bytearray(b"abcd"))

    def make_proxy(self) -> Any:
        return types.MappingProxyType({"a": self.one()})

    def make_keys(self) -> Any:
        return {1: self.one()}.values()

    def make_namespace(self) -> Any:
        return SimpleNamespace(a=self.one(), b=self.one())

    def make_module(self) -> Any:
        made = types.ModuleType("made")
        made.a = self.one()  # type: ignore[attr-defined]
        return made

    def make_random(self) -> Any:
        return random.Random(1)

    def make_rng(self) -> Any:
        return np.random.default_rng(1)

    def make_bits(self) -> Any:
        return np.random.PCG64(1)

    def make_draw(self) -> Any:
        return np.random.default_rng(1).normal

    def make_context(self) -> Any:
        return decimal.Context()

    def make_weak(self) -> Any:
        able = [v for v in self.pool if type(v).__weakrefoffset__ and not isinstance(v, type)]
        return weakref.ref(self.choose.choice(able)) if able else None

    def make_error(self) -> Any:
        return ValueError(self.one(), self.one())

    def make_function(self) -> Any:
        made = self.function()
        if self.choose.random() < 0.3:
            made.note = self.one()
        return made

    def make_defaults(self) -> Any:
        made = self.function("poke(b, 1), poke(k, 2)", "b=None, *a, k=None")
        made.__defaults__, made.__kwdefaults__ = (self.one(),), {"k": self.one()}
        return made

    def make_closure(self) -> Any:
        make = define(
            self.namespace,
            "def x(held):\n  n = 0\n  def f(*a):\n    nonlocal n; n += 1; return poke(held, 1)\n"
            "  return f\n",
        )
        return make(self.one())

    def make_cell(self) -> Any:
        return types.CellType(self.one())

    def make_foreign(self) -> Any:
        names: dict[str, Any] = {"held": self.one(), "poke": poke}
        exec(_compiled("def x(*a):\n  global n; n = 1; return poke(held, 1)\n"), names)
        return names["x"]

    def make_partial(self) -> Any:
        return functools.partial(self.function(), self.one(), k=self.one())

    def make_wrapped(self) -> Any:
        return wraps(self.make_closure() if self.choose.random() < 0.5 else self.function())

    def make_keeper(self) -> Any:
        return keeps(self.one())

    def make_vars(self) -> Any:
        able = [vars(v) for v in self.pool if _has_attributes(v) and not isinstance(v, type)]
        return self.choose.choice(able) if able else {}

    def make_manager(self) -> Any:
        return contextlib.contextmanager(self.function("poke(a, 1); yield"))

    def make_entered(self) -> Any:
        self.hard = True  # a generator within a library's object
        return _managed(self.one())

    def make_cached(self) -> Any:
        made = functools.lru_cache(maxsize=self.choose.choice([None, 3]))(
            self.function("return [n]", "n=0")
        )
        made(self.choose.randint(0, 1))
        return made

    def make_dispatch(self) -> Any:
        made = functools.singledispatch(self.function())
        made.register(int)(self.function())
        return made

    def make_grad(self) -> Any:
        import jax

        which = [jax.grad, jax.value_and_grad, jax.vmap, jax.checkpoint, jax.jit, jax.custom_vjp]
        return self.choose.choice(which)(self.make_closure())

    def make_tree_partial(self) -> Any:
        import jax

        return jax.tree_util.Partial(self.function(), self.one())

    def make_caller(self) -> Any:
        return operator.methodcaller("act", self.one())

    def make_builtin(self) -> Any:
        holders = [v for v in self.pool if type(v) in (list, dict, collections.deque, set)]
        holder = self.choose.choice(holders) if holders else []
        if type(holder) is list:
            return self.choose.choice([holder.append, holder.__setitem__, holder.clear])
        return self.choose.choice([holder.clear, holder.__len__])

    def make_plain(self) -> Any:
        return self.object_of(self.cls("plain"))

    def make_derived(self) -> Any:
        base = self.cls(self.choose.choice(["plain", "slots", "descriptor", "meta"]))
        self.namespace["BASE"] = base
        made = define(self.namespace, "class x(BASE):\n  own = 1\n")
        del self.namespace["BASE"]
        return self.object_of(made) if self.choose.random() < 0.6 else made

    def make_slots(self) -> Any:
        return self.object_of(self.cls("slots"))

    def make_method(self) -> Any:
        return self.make_plain().act

    def make_class(self) -> Any:
        return self.cls(self.choose.choice(["plain", "meta", "descriptor", "data", "enum"]))

    def make_data(self) -> Any:
        return self.object_of(self.cls(self.choose.choice(["data", "frozen", "slotted"])))

    def make_member(self) -> Any:
        return self.cls(self.choose.choice(["enum", "flag"])).ONE

    def make_extended(self) -> Any:
        kind = self.choose.choice(
            ["list", "dict", "set", "deque", "tuple", "str", "array", "error", "partial"]
        )
        cls = self.cls(kind)
        if kind == "array":
            made = np.zeros(3).view(cls)
        elif kind == "partial":
            made = cls(self.function(), self.one())
        elif kind == "dict":
            made = cls({"a": self.one()})
        elif kind in ("set", "str"):
            made = cls("ab")
        else:
            made = cls([self.one(), self.one()])
        if hasattr(made, "__dict__"):
            made.a = self.one()
        return made

    def make_dynamic(self) -> Any:
        return self.object_of(self.cls("descriptor"))

    # ---- of which nothing is known

    def make_generator(self) -> Any:
        name = self.choose.choice(NAMES)
        make = define(
            self.namespace,
            f"def x(held):\n  for n in range(3): yield poke(held, n), poke({name}, 1)\n",
        )
        return make(self.one())

    def make_iterator(self) -> Any:
        return iter([self.one(), self.one()])

    def make_map(self) -> Any:
        return map(self.function(), [self.one(), self.one()])

    def make_library(self) -> Any:
        return Library(self.one())

    def make_attribute(self) -> Any:
        return Descriptor(self.one())

    def make_long(self) -> Any:
        return [self.one(), *([self.one()] * ROOM)]

    def make_big(self) -> Any:
        return np.zeros(changes.SMALL_NBYTES // 8 + 1)

    def make_queue(self) -> Any:
        import queue

        made: Any = queue.Queue()
        made.put(self.one())
        return made


KINDS = sorted(name.removeprefix("make_") for name in dir(Builder) if name.startswith("make_"))
_Pair = collections.namedtuple("_Pair", "a b")


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):  # of a writable memoryview
        return False
    return True


# ------------------------------------------------------------------------- what is where

_class_vars: Any = type.__dict__["__dict__"]
_lru = type(functools.lru_cache(len))
_get = object.__getattribute__


def _is_own(cls: type) -> bool:
    return _class_vars.__get__(cls).get("__module__") == "__main__"


def _is_users_function(value: Any) -> bool:
    return value.__globals__.get("__name__", "__main__") == "__main__"


def _slots(value: Any) -> list[Any]:
    found = []
    for base in type(value).__mro__:
        for _, one in sorted(_class_vars.__get__(base).items()):
            if type(one) is types.MemberDescriptorType and _is_own(base):
                found.append(one.__get__(value) if _has(one, value) else None)
    return found


def _has(one: Any, value: Any) -> bool:
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
        if not _is_own(value):
            return None, []
        names = _class_vars.__get__(value)
        kept = sorted(k for k in names if k not in ("__dict__", "__weakref__", "__doc__"))
        return tuple(kept), [*(names[k] for k in kept), *value.__bases__, cls]
    look = _EDGES.get(cls)
    own: Any = None
    held: list[Any] = []
    if issubclass(cls, enum.Enum) and not _is_own(cls):
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
            attributes = _get(value, "__dict__")
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
    if not _is_users_function(value) and not value.__closure__:
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
    _lru: _of_cache,
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
            if type(value) is _lru:  # entries may be gone
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


# ------------------------------------------------------------------------- what a cell does


def poke(value: Any = None, seed: int = 0) -> Any:
    """Change something that ``value`` leads to, whatever that takes. A library's function."""
    global _depth
    if _depth > 3:
        return None
    _depth += 1
    try:
        choose = random.Random(seed)
        for _ in range(choose.randint(0, 5)):
            held = [one for one in edges(value)[1] if type(one) not in FIXED]
            if not held:
                break
            value = choose.choice(held)
        _change(value, choose)
    except Exception:  # a cell may fail at any point
        pass
    finally:
        _depth -= 1
    return None


_LOCK = type(threading.Lock())
_depth = 0
_spawned = False


def _change(value: Any, choose: random.Random) -> None:
    cls = type(value)
    if issubclass(cls, type):
        if _is_own(value):
            _change_class(value, choose)
        return
    if cls is types.FunctionType and not (_is_users_function(value) or value.__closure__):
        return
    if cls is type(np.random.default_rng) or (issubclass(cls, enum.Enum) and not _is_own(cls)):
        return
    bases = [base for base in _CHANGES if issubclass(cls, base)]
    if collections.OrderedDict in bases:
        bases.remove(dict)  # its methods leave the order as it is
    acts = [act for base in bases for act in _CHANGES[base]]
    if cls is not types.FunctionType or _is_users_function(value):
        if hasattr(cls, "__dict__") and _has_attributes(value):
            acts += _ON_ATTRIBUTES
        if _is_own(cls):
            acts += [_set_slot, _set_slot, _new_class]
        if callable(value) and type(getattr(value, "__self__", None)) is not _LOCK:  # it waits
            acts += [lambda v, c: v(), lambda v, c: v(c.randint(0, 3))]
    if acts:
        choose.choice(acts)(value, choose)


def _has_attributes(value: Any) -> bool:
    try:
        return type(_get(value, "__dict__")) is dict
    except AttributeError:
        return False


def _change_class(value: Any, choose: random.Random) -> None:
    names = [n for n in _class_vars.__get__(value) if not n.startswith("__")]
    way = choose.randint(0, 3)
    if way == 0 or not names:
        type.__setattr__(value, "new", [1])
    elif way == 1:
        type.__setattr__(value, choose.choice(names), 5)
    elif way == 2:
        type.__delattr__(value, choose.choice(names))
    else:
        type.__setattr__(value, "act", lambda self: None)


def _set_slot(value: Any, choose: random.Random) -> None:
    for name in ("a", "b"):
        one = getattr(type(value), name, None)
        if type(one) is types.MemberDescriptorType:
            if choose.random() < 0.3 and _has(one, value):
                one.__delete__(value)  # type: ignore[attr-defined]
            else:
                one.__set__(value, [7])  # type: ignore[attr-defined]


def _new_class(value: Any, choose: random.Random) -> None:
    cls = type(value)
    slots = {} if cls.__dictoffset__ else {"__slots__": ()}
    value.__class__ = type(cls)("Other", (cls,), {"__module__": "__main__", **slots})


def _fill(value: Any, choose: random.Random) -> None:
    value[choose.randrange(len(value))] = choose.random()


def _spawn(value: Any) -> None:
    """What it counts can't be put back."""
    global _spawned
    _spawned = True
    value.spawn(1)


def _swap_code(value: Any, choose: random.Random) -> None:
    if not value.__closure__:
        value.__code__ = (lambda *a: 5).__code__


def _advance(value: Any, choose: random.Random) -> None:
    for _ in range(choose.randint(1, 4)):
        next(value)


def _set(act: Callable[..., Any], *args: Any) -> Callable[[Any, random.Random], None]:
    return lambda value, choose: act(value, *args)


_ON_ATTRIBUTES: list[Any] = [
    lambda v, c: _get(v, "__dict__").update(new=c.random()),
    lambda v, c: _get(v, "__dict__").pop(c.choice([*_get(v, "__dict__")])),
    lambda v, c: _get(v, "__dict__").update({c.choice([*_get(v, "__dict__")]): [1]}),
]
_CHANGES: dict[type, list[Callable[[Any, random.Random], Any]]] = {
    list: [
        _set(list.append, 9),
        _set(list.clear),
        _set(list.reverse),
        lambda v, c: list.pop(v),
        lambda v, c: list.insert(v, 0, v),
    ],
    dict: [
        lambda v, c: dict.__setitem__(v, "new", c.random()),
        lambda v, c: dict.__setitem__(v, c.choice([*dict.keys(v)]), []),
        lambda v, c: dict.pop(v, c.choice([*dict.keys(v)])),
        lambda v, c: dict.__setitem__(v, k := c.choice([*dict.keys(v)]), dict.pop(v, k)),
    ],
    collections.OrderedDict: [
        lambda v, c: v.move_to_end(c.choice([*v])),
        lambda v, c: v.popitem(),
        _set(collections.OrderedDict.__setitem__, "new", [1]),
    ],
    collections.defaultdict: [_set(setattr, "default_factory", None), lambda v, c: v["b"]],
    set: [
        _set(set.add, "new"),
        _set(set.clear),
        lambda v, c: set.remove(v, 1) or set.add(v, True),
    ],
    collections.deque: [_set(collections.deque.append, 9), _set(collections.deque.rotate, 1)],
    bytearray: [_set(bytearray.append, 65), _fill],
    memoryview: [_set(memoryview.__setitem__, 0, 90)],
    np.ndarray: [
        _set(np.ndarray.fill, 7),
        lambda v, c: np.ndarray.__setitem__(v, c.randrange(len(v)), c.random()),
        lambda v, c: v.setflags(write=False),
        lambda v, c: np.ndarray.sort(v),
    ],
    random.Random: [lambda v, c: v.random()],
    np.random.Generator: [lambda v, c: v.normal(), lambda v, c: v.integers(5)],
    np.random.SeedSequence: [lambda v, c: _spawn(v)],
    np.random.BitGenerator: [lambda v, c: v.random_raw()],
    decimal.Context: [_set(setattr, "prec", 5), lambda v, c: v.divide(1, 3)],
    weakref.ReferenceType: [lambda v, c: _change(v(), c)],
    BaseException: [lambda v, c: setattr(v, "args", (1,)), _set(setattr, "__cause__", None)],
    types.FunctionType: [
        _set(setattr, "__defaults__", (1,)),
        _set(setattr, "__kwdefaults__", {"k": 1}),
        _set(setattr, "note", [1]),
        _swap_code,
    ],
    types.CellType: [_set(setattr, "cell_contents", [1]), _set(delattr, "cell_contents")],
    types.ModuleType: [_set(setattr, "new", 1), _set(setattr, "a", 1)],
    _lru: [lambda v, c: v(5), lambda v, c: v.cache_clear(), lambda v, c: v(0).append(1)],
    types.GeneratorType: [_advance],
    type(iter([])): [_advance],
    map: [_advance],
    enum.Enum: [_set(object.__setattr__, "_value_", 9)],
    property: [lambda v, c: v.fget(None)],
}
CELLS = (
    *("poke({0}, {2})", "poke({0}, {2})", "poke({0}, {2})", "poke({0}, {2}); poke({1}, {3})"),
    *("{0} = {1}", "del {0}", "{0} = [{1}]", "new = {0}", "{0}()", "{0}(1)", "next({0})"),
    *(
        "with {0}(): pass",
        "poke({0}); {0} = 1",
        "for one in [*{0}][:4]: poke(one, {2})",
        "{0}.prop",
    ),
    *(
        "{0}.append({1})",
        "{0}['k'] = 1",
        "{0}.a = {1}",
        "{0}.act(1)",
        "{0}.c",
        "{0}.d",
        "{0} += {1}",
    ),
    *("{0}.k()", "{0}.make()", "globals()['{0}'] = poke({1}, {2})", "exec('poke({0}, {2})')"),
    *("{0}.put(1)", "{0}.close()", "{0}[0] = 1", "{0}.cache_clear()", "poke({0}.held, {2})"),
)


# ------------------------------------------------------------------------- one graph


@dataclasses.dataclass(frozen=True)
class Story:
    """How a graph is made and what a cell does to it: data alone, so that it can be shrunk."""

    makes: tuple[tuple[str, int], ...]
    binds: tuple[tuple[str, int], ...]
    cell: tuple[str, ...]

    def __str__(self) -> str:
        makes = [f"  {kind} {seed}" for kind, seed in self.makes]
        binds = [f"  {name} = pool[{n}]" for name, n in self.binds]
        return "\n".join(["makes", *makes, "binds", *binds, "cell", *("  " + c for c in self.cell)])


def story_of(seed: int, kinds: list[str] = KINDS) -> Story:
    choose = random.Random(seed)
    many = choose.randint(1, 9)
    # Most graphs have nothing of which nothing is known, so that nothing may be named.
    easy = choose.random() < 0.6
    kinds = [kind for kind in kinds if kind not in HARD | {"entered"}] if easy else kinds
    makes = tuple((choose.choice(kinds), choose.randrange(1 << 16)) for _ in range(many))
    bound = choose.sample(NAMES, choose.randint(1, len(NAMES)))
    binds = tuple((name, choose.randrange(many)) for name in bound)
    cell = tuple(
        choose.choice(CELLS).format(
            choose.choice(bound), choose.choice(bound), choose.randrange(99), choose.randrange(99)
        )
        for _ in range(choose.randint(1, 3))
    )
    return Story(makes, binds, cell)


@functools.lru_cache(maxsize=100_000)
def _code(line: str) -> types.CodeType:
    return compile(line, "<cell>", "exec")


def try_story(story: Story) -> str:
    """Make it, run the cell, take it back: what is wrong then; "" if nothing is."""
    global _depth, _spawned
    _depth, _spawned = 0, False
    namespace: dict[str, Any] = {"__name__": "__main__", "_oh": {}, "poke": poke, "wraps": wraps}
    undo = Undo()
    undo._memory = _memory()  # the same for all
    undo.namespace = namespace
    undo.display_hook = SimpleNamespace(_="", __="", ___="")
    builder = Builder(namespace)
    for kind, seed in story.makes:
        builder.make(kind, seed)
    for name, n in story.binds:
        namespace[name] = builder.pool[n % len(builder.pool)]
    builder.pool.clear()
    picture = Picture(_users(namespace))
    undo.begin(1, "\n".join(story.cell))
    for line in story.cell:
        with contextlib.suppress(Exception):
            exec(_code(line), namespace)
    undo.end()
    plan = take_back(undo)
    differing = picture.differing(_users(namespace))
    named = {*plan.lost, *plan.failed, *plan.unknown}
    unnamed = {name: how for name, how in differing.items() if name not in named}
    if unnamed:
        return f"changed, and neither put back nor named: {unnamed}; {plan}"
    if both := named & {*plan.back}:
        return f"called what it was, and not: {both}; {plan}"
    if named and not (builder.hard or _spawned):
        return f"all of it could be put back: {plan}"
    return ""


@functools.lru_cache
def _memory() -> Memory:
    return Memory()


def take_back(undo: Undo) -> Undone:
    """As ``cluster.undoing`` does it, of one rank."""
    look = undo.look(1)
    plan = plan_of([look])
    leave = Leave((*plan.failed, *look["too_large"]), plan.lost)
    return plan.with_failed(undo.undo(1, leave))


def _users(namespace: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in namespace.items() if name in NAMES or name == "new"}


def shrink(story: Story, is_wrong: Callable[[Story], bool]) -> Story:
    """The least of it that still is wrong: without parts of it, and with simpler ones."""
    while True:
        for smaller in _smaller(story):
            if is_wrong(smaller):
                story = smaller
                break
        else:
            return story


def _smaller(story: Story) -> Iterator[Story]:
    for field in ("cell", "binds", "makes"):
        parts = getattr(story, field)
        for n in range(len(parts)):
            if len(parts) > 1:
                yield dataclasses.replace(story, **{field: parts[:n] + parts[n + 1 :]})
    for n, (kind, seed) in enumerate(story.makes):
        if kind != "list":
            makes = (*story.makes[:n], ("list", seed), *story.makes[n + 1 :])
            yield dataclasses.replace(story, makes=makes)


def search(first: int, many: int, kinds: list[str] = KINDS) -> tuple[int, str]:
    """Look at so many graphs; the first that is wrong, shrunk and told, or (-1, "")."""
    had = changes.MOST_ELEMENTS, changes.ONE_VALUE
    changes.MOST_ELEMENTS, changes.ONE_VALUE = ROOM, 1
    try:
        for seed in range(first, first + many):
            story = story_of(seed, kinds)
            if first := try_story(story):
                least = shrink(story, lambda smaller: bool(try_story(smaller)))
                return seed, f"seed {seed}\n{least}\n{try_story(least) or first}"
    finally:
        changes.MOST_ELEMENTS, changes.ONE_VALUE = had
    return -1, ""


if __name__ == "__main__":
    began = time.process_time()
    if sys.argv[1] == "-n":
        print(search(int((sys.argv[3:] or [0])[0]), int(sys.argv[2]))[1])
    else:
        for one in map(int, sys.argv[1:]):
            print(story_of(one), search(one, 1)[1], sep="\n")
    print(f"{time.process_time() - began:.1f} s")
