"""Searches for what a restart parts or loses in silence: random graphs, saved and loaded.

What names lead to in new processes has the same form as before: the same values, one object where
there was one, of classes and functions that come back with it. Or the name is lost, and told.

    python tests/restoresearch.py SEED...      what is wrong with one graph
    python tests/restoresearch.py -n 100000    so many
"""

from __future__ import annotations

import contextlib
import enum
import sys
import types
import typing
import weakref
from collections import Counter
from concurrent import futures
from typing import Any

import numpy as np
import undographs
from cloudpickle import cloudpickle
from undographs import KINDS, Builder, define, wraps
from undopicture import FIXED, LRU, edges, is_own, is_users_function
from undopokes import begin, has_attributes, poke
from undosearch import Story, main, shrink, story_of, users

from jaxcluster.engine.state.loading import bind, load
from jaxcluster.engine.state.saving import save

SUBCLASSES = {
    "defaultdict": ("collections.defaultdict", "made = x(list); made['k'] = HELD"),
    "counter": ("collections.Counter", "made = x('aab')"),
    "ordered": ("collections.OrderedDict", "made = x(); made['k'] = HELD"),
    "chain": ("collections.ChainMap", "made = x({'a': HELD})"),
    "userdict": ("collections.UserDict", "made = x({'a': HELD})"),
    "userlist": ("collections.UserList", "made = x([HELD])"),
    "random": ("random.Random", "made = x(4); made.random()"),
    "date": ("datetime.datetime", "made = x(2026, 11, 26)"),
    "delta": ("datetime.timedelta", "made = x(3)"),
    "path": ("pathlib.PurePosixPath", "made = x('a/b')"),
    "decimal": ("decimal.Decimal", "made = x('1.5')"),
    "fraction": ("fractions.Fraction", "made = x(3, 4)"),
    "int": ("int", "made = x(3)"),
    "float": ("float", "made = x(2.5)"),
    "complex": ("complex", "made = x(1, 2)"),
    "bytes": ("bytes", "made = x(b'ab')"),
    "bytearray": ("bytearray", "made = x(b'ab')"),
    "frozenset": ("frozenset", "made = x((1, 2))"),
    "namespace": ("types.SimpleNamespace", "made = x(a=HELD)"),
    "arrays": ("array.array", "made = x('d', [1.0, 2.0])"),
    "deque": ("collections.deque", "made = x([HELD], 3)"),
    "pair": ("collections.namedtuple('P', 'a b')", "made = x(HELD, 2)"),
    "generic": ("typing.Generic[typing.TypeVar('T')]", "made = x()"),
    "abstract": ("abc.ABC", "made = x()"),
    "string": ("string.Template", "made = x('$a')"),
    "stringio": ("io.StringIO", "made = x('ab'); made.read(1)"),
    "bytesio": ("io.BytesIO", "made = x(b'ab'); made.read(1)"),
    "error": ("RuntimeError", "made = x(HELD)"),
    "oserror": ("OSError", "made = x(2, 'no', 'file')"),
    "list": ("list", "made = x(); list.append(made, HELD)"),
    "dict": ("dict", "made = x(); dict.__setitem__(made, 'k', HELD)"),
    "set": ("set", "made = x(); set.update(made, (1, 2))"),
    "object": ("object", "made = x()"),
}
BODIES = [
    "pass",
    "def __init__(self, *a, **k): super().__init__(*a, **k); self.b = 1",
    "def __iter__(self): return iter(())",
    "def items(self): return ()\n  def keys(self): return ()\n  def values(self): return ()",
    "def append(self, one): pass\n  def extend(self, many): pass\n  def add(self, one): pass",
    "def __setitem__(self, key, value): raise TypeError(key)",
    "def __setattr__(self, name, value): raise AttributeError(name)",
    "def __getattr__(self, name): return 5",
    "def __eq__(self, other): return True\n  __hash__ = None",
    "def __hash__(self): return hash(self.c)\n  c = 1",
    "def __len__(self): return 0\n  def __bool__(self): return False",
    "def __contains__(self, one): return True\n  def __getitem__(self, key): return 7",
    "def __call__(self): return 1\n  kept = HELD",
    "def update(self, *a, **k): raise ValueError\n  def clear(self): raise ValueError",
    "__slots__ = ('s', '__dict__')",
    "@property\n  def c(self): return 1\n  @c.setter\n  def c(self, v): vars(self)['c'] = v",
    "def __init_subclass__(cls, **k): cls.seen = 1",
    "@classmethod\n  def make(cls): return cls()\n  @staticmethod\n  def two(): return 2",
    "class Inner:\n    kept = HELD",
    "kept: int = 3\n  def __class_getitem__(cls, one): return one",
]
SINGLE = [
    "functools.partial(int, base=2)",
    "operator.itemgetter(1, 2)",
    "operator.attrgetter('a.b')",
    "re.compile('a+', re.I)",
    "itertools.count(3)",
    "np.random.RandomState(3)",
    "np.ma.masked_array([1, 2], [True, False])",
    "np.poly1d([1, 2])",
    "np.dtype([('a', float)])",
    "np.float32(2.5)",
    "np.frompyfunc(abs, 1, 1)",
    "np.zeros((2, 3), order='F')[:, ::-1]",
    "types.GenericAlias(list, (int,))",
    "typing.TypeVar('T')",
    "list[int]",
    "int | None",
    "slice(1, None, 2)",
    "range(1, 9, 2)",
    "collections.namedtuple('P', 'a b')(1, HELD)",
    "functools.partialmethod(print, HELD)",
    "functools.singledispatchmethod(print)",
    "functools.total_ordering(type('C', (), {'__lt__': lambda s, o: True}))",
    "types.MethodType(lambda self: HELD, [1])",
    "(lambda a=HELD, *, k=HELD: a)",
    "type('Made', (), {'kept': HELD})()",
    "dataclasses.make_dataclass('Made', 'abc', namespace={'__module__': '__main__'})(1, 2, HELD)",
    "enum.Enum('Made', 'A B', module='__main__').A",
    "enum.IntFlag('Made', 'A B', module='__main__').A",
    "datetime.timezone(datetime.timedelta(hours=1))",
    "uuid.UUID(int=5)",
    "fractions.Fraction(1, 3)",
    "decimal.getcontext",
    "textwrap.TextWrapper(width=3)",
    "logging.getLogger('a.b')",
    "logging.Formatter('%(message)s')",
    "string.Formatter()",
    "argparse.Namespace(a=HELD)",
    "weakref.WeakSet()",
    "contextlib.suppress(ValueError)",
    "contextlib.ExitStack()",
    "Ellipsis",
    "NotImplemented",
    "type(None)",
    "len",
    "''.join",
    "[].append",
    "dict.fromkeys",
    "(x for x in ())",
    "zip([1], [2])",
    "reversed([1, 2])",
    "np.nditer([1, 2])",
    "asyncio.Event",
    "sys.stdout",
    "threading.Lock()",
    "threading.RLock()",
    "threading.Event()",
    "threading.Condition()",
    "threading.Semaphore(3)",
    "queue.Queue(5)",
    "threading.Thread(target=print)",
    "futures.Future()",
    "logging.StreamHandler()",
    "weakref.WeakValueDictionary()",
    "jax.random.key(3)",
    "jax.random.PRNGKey(3)",
    "jnp.arange(3)",
    "jnp.float32(2)",
    "jax.ShapeDtypeStruct((2,), 'float32')",
    "jax.sharding.PartitionSpec('i', None)",
    "jax.jit(lambda a: (a, HELD), static_argnums=())",
    "jax.vmap(lambda a: a)",
    "jax.custom_jvp(lambda a: a)",
    "jax.tree.structure({'a': 1, 'b': [2, None]})",
    "jax.tree_util.Partial(max, HELD)",
    "jax.make_jaxpr(lambda a: a + 1)(1.0)",
    "jax.named_call(lambda a: a, name='n')",
    "functools.partial(jax.jit, static_argnums=0)",
    "jax.checkpoint(lambda a: a)",
    "jax.nn.relu",
    "jnp.add",
    "jax.lax.scan",
    "jax.Array",
]


class Values(Builder):
    """More kinds of values than undo is tried with, which is slower."""

    def _run(self, source: str) -> Any:
        import jax

        names = {one: __import__(one) for one in _IMPORTED}
        names |= {"HELD": self.one(), "np": np, "jax": jax, "jnp": jax.numpy, "futures": futures}
        self.namespace |= names
        made = define(self.namespace, source.replace("made", "x"))
        for name in ("HELD",):
            del self.namespace[name]
        return made

    def make_subclass(self) -> Any:
        base, how = SUBCLASSES[self.choose.choice([*SUBCLASSES])]
        body = self.choose.choice(BODIES)
        source = (
            f"class x({base}):\n  {body}\ncls, x = x, None\n{how.replace('x(', 'cls(')}\ndel cls\n"
        )
        try:
            made = self._run(source)
        except Exception:  # its body does not let it be made
            return None
        finally:
            self.namespace.pop("cls", None)
        for name in ("a", "b"):
            if self.choose.random() < 0.6:
                with contextlib.suppress(AttributeError):
                    object.__setattr__(made, name, self.one())
        return made

    def make_breaks(self) -> Any:
        """What can be saved, and not be made again."""
        source = "class x:\n  def __setstate__(self, state): raise ValueError(state)\n"
        made = define(self.namespace, source)()
        made.a = self.one()
        return made

    def make_single(self) -> Any:
        return self._run(f"made = {self.choose.choice(SINGLE)}\n")

    def make_vars(self) -> Any:
        """Of what nobody but the user's classes has a say in."""
        able = [
            vars(value)
            for value in self.pool
            if all(map(is_own, type(value).__mro__[:-1])) and has_attributes(value)
        ]
        return self.choose.choice(able) if able else {}


_IMPORTED = [
    *("abc", "argparse", "array", "asyncio", "collections", "contextlib", "dataclasses"),
    *("datetime", "decimal", "enum", "fractions", "functools", "io", "itertools", "logging"),
    *("operator", "pathlib", "queue", "random", "re", "string", "sys", "textwrap", "threading"),
    *("types", "typing", "uuid", "weakref"),
]
VALUES = sorted({*KINDS, *(n.removeprefix("make_") for n in dir(Values) if n.startswith("make_"))})


def make(story: Story) -> dict[str, Any]:
    """The variables of a story."""
    begin()
    namespace = _fresh()
    builder = Values(namespace)
    for kind, seed in story.makes:
        builder.make(kind, seed)
    for name, n in story.binds:
        namespace[name] = builder.pool[n % len(builder.pool)]
    _kept.append(builder)  # garbage may go at any moment
    return namespace


def _fresh() -> dict[str, Any]:
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(_oh={}, poke=poke, wraps=wraps)
    _kept.append(main)  # a module that is gone clears its variables
    return vars(main)


_kept: list[Any] = []


def try_story(story: Story) -> str:
    """Make it, save it, load it as another process does: what is wrong; "" if nothing is."""
    library = types.ModuleType("somelibrary")
    library.Library, library.Descriptor = undographs.Library, undographs.Descriptor  # type: ignore[attr-defined]
    main = sys.modules["__main__"]
    sys.modules["somelibrary"] = library
    try:
        before = make(story)
        saved = save(before, 0)
        forget_classes()
        now = _fresh()
        loaded = load(saved, now)
        left = bind(loaded, now)
        lost = {**saved.now.lost, **loaded.lost}
        LOST.update(lost.values())
        return compare(before, now, lost) or "; ".join(left)
    finally:
        sys.modules["__main__"] = main
        _kept.clear()
        del sys.modules["somelibrary"]


LOST: Counter[str] = Counter()


def forget_classes() -> None:
    """Else cloudpickle finds the classes that it has saved in this process."""
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()


def compare(before: dict[str, Any], now: dict[str, Any], lost: dict[str, str]) -> str:
    """Where the two differ in form; "" where they do not."""
    same = Same(before, now)
    for name, value in users(before).items():
        if name in lost:
            continue
        if name not in now:
            return f"{name} is neither there nor lost"
        if wrong := same.look(value, now[name], name):
            return wrong
    return same.look_at_gone()


class Same:
    """Walks two graphs at once, and says where they differ."""

    def __init__(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        self._gone: list[tuple[str, Any]] = []
        self._now: dict[int, Any] = {id(before): now}
        self._before: dict[int, Any] = {id(now): before}
        self._keep: list[Any] = [before, now]

    def look(self, before: Any, now: Any, path: str) -> str:
        todo = [(before, now, path)]
        while todo:
            a, b, path = todo.pop()
            if type(a) in FIXED:
                if type(a) is not type(b) or not (a == b or (a != a and b != b)):
                    return f"{path}: {a!r} has become {b!r}"
                continue
            if type(a) is type(b) is tuple and self._now.get(id(a)) == b:
                continue  # Python itself keeps some apart, or one
            if id(a) in self._now or id(b) in self._before:
                if self._now.get(id(a), self) is not b:
                    met = "parted" if id(a) in self._now else "made one"
                    return f"{path}: what was one object is {met}: {type(a)}"
                continue
            self._now[id(a)], self._before[id(b)] = b, a
            self._keep += [a, b]
            if a is b:
                if _is_bound_to_stay(a):
                    continue
                return f"{path}: it is the old object: {type(a)}"
            if not (is_own(type(a)) and is_own(type(b))) and type(a) is not type(b):
                return f"{path}: {type(a)} has become {type(b)}"
            if type(a) is weakref.ref and b() is None:
                self._gone.append((path, a()))
                continue
            own_a, held_a = _edges(a)
            own_b, held_b = _edges(b)
            if own_a != own_b:
                return f"{path}: {type(a)} has other values: {_text(own_a)}, {_text(own_b)}"
            if len(held_a) != len(held_b):
                return f"{path}: {type(a)} held {len(held_a)} values and holds {len(held_b)}"
            kind = type(a).__name__
            todo += [
                (one, other, f"{path}>{kind}.{n}")
                for n, (one, other) in enumerate(zip(held_a, held_b, strict=True))
            ]
        return ""

    def look_at_gone(self) -> str:
        """What nothing but a lost name, or garbage, has held may be gone for a weak reference."""
        left = [path for path, value in self._gone if value is not None and id(value) in self._now]
        return f"{left[0]}: it leads to nothing any more" if left else ""


def _text(value: Any) -> str:
    try:
        return f"{value!r:.300}"
    except Exception:  # of what it holds
        return "what can't be shown"


def _is_bound_to_stay(value: Any) -> bool:
    """Whether a value is the same object in each process: it is imported, or constant."""
    return (
        isinstance(value, (type, enum.Enum, types.ModuleType, types.BuiltinFunctionType))
        or type(value) in (tuple, frozenset)
        or (isinstance(value, types.FunctionType) and not is_users_function(value))
        or type(value).__module__ in ("builtins", "numpy", "enum", "functools")
        or not hasattr(value, "__dict__")
        or value in (sys.stdout, sys.stderr)
        or type(value).__module__ == "logging"
        or "cython" in type(value).__name__
        or type(value).__module__.startswith("jax")
    )


def _edges(value: Any) -> tuple[Any, list[Any]]:
    cls = type(value)
    if issubclass(cls, (set, frozenset)):
        own, held = edges(value)
        return sorted(map(repr, (x for x in held if type(x) in FIXED))), [
            *(held[len(list(set.__iter__(value) if issubclass(cls, set) else iter(value))) :])
        ]
    own, held = edges(value)
    if cls is types.FunctionType:
        own = value.__code__.co_name, value.__code__.co_code, _module_of(value), *value.__dict__
        if "poke" in value.__globals__ and "_oh" in value.__globals__:
            held = [*held, value.__globals__]
        elif _module_of(value) is None:  # all else of them comes back where somebody needs it
            known = value.__globals__
            held = [*held, *(known[n] for n in value.__code__.co_names if n in known)]
    elif issubclass(cls, np.ndarray) and value.dtype.hasobject:
        own = own[:3]
    elif cls is types.ModuleType and own is not None:
        own, held = sorted(vars(value).keys() - {"__builtins__"}), []
        held = [vars(value)[name] for name in own]
    elif cls is weakref.WeakKeyDictionary:
        own, held = None, [value.data]
    elif is_own(cls) and not issubclass(cls, type) and hasattr(value, "__dict__"):
        held = [*held, object.__getattribute__(value, "__dict__")]
    elif cls is typing.TypeVar:
        own, held = value.__name__, []
    elif cls is LRU:
        held = [value.__wrapped__]
    elif issubclass(cls, type) and is_own(value):
        own = tuple(k for k in own if k not in _OF_PYTHON)
        names = vars(value)
        held = [*(names[k] for k in own), *value.__bases__, cls]
        own = own, value.__hash__ is None
    return own, held


def _module_of(function: types.FunctionType) -> str | None:
    """The module whose variables are the function's globals."""
    found = sys.modules.get(function.__globals__.get("__name__", ""))
    is_its = vars(found or types) is function.__globals__
    return found.__name__ if found and is_its and found.__name__ != "__main__" else None


_OF_PYTHON = {"__firstlineno__", "__static_attributes__", "_abc_impl", "__hash__", "_use_args_"}


def search(first: int, many: int, kinds: list[str] = VALUES) -> tuple[int, str]:
    """Look at so many graphs; the first that is wrong, shrunk and told, or (-1, "")."""
    for seed in range(first, first + many):
        story = story_of(seed, kinds)
        if wrong := try_story(story):
            least = shrink(story, lambda smaller: bool(try_story(smaller)))
            return seed, f"seed {seed}\n{least}\n{try_story(least) or wrong}"
    return -1, ""


if __name__ == "__main__":
    main(search)
    for why, count in LOST.most_common(30):
        print(count, why)
