"""Random graphs of objects: a user's classes, a library's, and a builder. See ``undosearch``."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import functools
import operator
import random
import types
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from undopokes import has_attributes, poke

from jaxcluster.engine import changes

NAMES = [f"v{n}" for n in range(7)]
ROOM = 600  # elements that are looked at before a cell, here


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
__file__ = "/lib/site-packages/undographs.py"  # what is made here is a library's


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
        able = [vars(v) for v in self.pool if has_attributes(v) and not isinstance(v, type)]
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
