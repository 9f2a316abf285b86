"""Classes that cells define are in another process what they were in the one that defined them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

STEP = """
import json, sys, traceback
from pathlib import Path
from jaxcluster.engine.private import pytrees
from jaxcluster.engine.state import classes
from jaxcluster.engine.state import saved as files
from jaxcluster.engine.state.loading import bind, load
from jaxcluster.engine.state.saving import save

def run(number, source, seen):
    place = files.state_path(Path(sys.argv[1]), number)
    names = {"__name__": "__main__"}
    if sys.argv[2] == "define":
        exec(compile(source, "/cells/3-abc.py", "exec"), names)
    else:
        found = load(files.read(place), names)
        failed = bind(found, names)
        assert not failed and not found.lost, (failed, found.lost)
        del found
    told = repr(eval(seen, names))
    made = save(names, 0)
    assert not made.now.lost, made.now.lost
    files.write(made, place)
    return told

def try_to(*case):
    try:
        return run(*case)
    except BaseException:
        return traceback.format_exc()

pytrees.remember_keys()
classes.remember_registrations()
cases = json.loads(sys.stdin.read())
print(json.dumps([try_to(number, *case) for number, case in enumerate(cases)]))
"""

BASE = "import calendar, dataclasses, enum, typing\nimport jax\nimport jax.numpy as jnp\n"
EQUINOX = BASE + "import equinox as eqx\n"
PATHS = "[jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(a)[0]]"

CASES = {
    "classes whose attributes a metaclass makes constants, and proxies": (
        """
class Const(type):
    def __setattr__(cls, name, value): raise AttributeError(f"{name} is a constant")
class Physics(metaclass=Const):
    c = 3
class More(Physics):
    def twice(self): return 2 * self.c
class Proxy:
    def __init__(self, of): self.of = of
    @property
    def __class__(self): return type(self.of)
    @property
    def __name__(self): return "of a list"
def refused():
    try: Physics.c = 4
    except AttributeError as error: return str(error)
more = More()
""",
        "more.twice(), refused(), isinstance(Proxy([]), list), Proxy([]).__name__",
    ),
    "objects that are made by code that needs names of cells": (
        BASE
        + """
import numpy as np
def vector(values): return np.asarray(values)
class State:
    made = 0
    def __init__(self): self.w = np.ones(2)
    def __getstate__(self): return self.w.tolist()
    def __setstate__(self, w): self.w, State.made = vector(w), State.made + 1
class Point:
    def __init__(self, x): self.x = x
    def __reduce__(self): return Point.of, (self.x,)
    @staticmethod
    def of(x): return Point(Other(x).x)
class Other(Point): pass
shared = [1]
a, b, c = State(), Point(3), [shared, shared]
""",
        "a.w.tolist(), State.made, b.x, c[0] is shared",
    ),
    "functions of jax.checkpoint": (
        BASE
        + """
@jax.checkpoint
def a(x): return jnp.sin(x) ** 2
b = jax.checkpoint(lambda x: x ** 3, policy=jax.checkpoint_policies.dots_saveable)
""",
        "float(a(1.0)), float(jax.grad(a)(1.0)), float(jax.grad(b)(2.0))",
    ),
    "enums whose members are made by their class": (
        BASE
        + """
class Planet(enum.Enum):
    EARTH = 5.9, 6.3
    TERRA = EARTH
    MARS = 6.4, 3.3
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
class Letter(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    A = 65, "a"
    B = 66, "b"
class Bits(enum.IntFlag):
    R, W = 1, 2
    RW = R | W
class Kind(enum.StrEnum):
    ONE = enum.auto()
    def called(self):
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls
class Op(enum.Enum):
    ADD = enum.member(lambda a, b: a + b)
    TEXT = enum.nonmember("text")
class Changing(enum.Enum):
    ONE = [1]
Kind.ONE.called(), Changing.ONE.value.append(2)
a, b = Planet.MARS, {Bits.RW: Letter.B}
""",
        "a.mass, a is Planet.MARS, [*Planet.__members__], Planet['TERRA'].radius, "
        "Planet((6.4, 3.3)), Letter(65).name, Letter(66).label, Letter.B.lower(), [*Bits], "
        "b[Bits.R | Bits.W] is Letter.B, "
        "Bits['RW'], Bits(3), Kind.ONE.calls, Kind('one') is Kind.ONE, Kind.ONE + '!', "
        "Op.ADD.value(1, 2), Op.TEXT, len(Op), Changing.ONE.value, Changing.ONE.name",
    ),
    "what a class has itself is its own, also where a base has the same": (
        BASE
        + """
class Base:
    count, name, kinds = 0, None, []
class Child(Base):
    count, name = 0, None
class Other(Child, typing.Generic[typing.TypeVar("T")]):
    kinds = Base.kinds
""",
        "[setattr(Base, 'count', Base.count + 1), Child.count, sorted(vars(Child))[-2:], "
        "Other.kinds is Base.kinds, 'kinds' in vars(Other)][1:]",
    ),
    "a module of equinox with an __init__": (
        EQUINOX
        + """
class Net(eqx.Module):
    first: eqx.nn.Linear
    scale: float = eqx.field(static=True)
    bias: jax.Array = eqx.field(converter=jnp.asarray)
    def __init__(self, key):
        self.first = eqx.nn.Linear(2, 1, key=key)
        self.scale, self.bias = 2.0, 1.0
    def __call__(self, x):
        return self.scale * self.first(x) + self.bias
    @property
    def double(self):
        return 2 * self.scale
a = Net(jax.random.key(0))
""",
        PATHS
        + ", len(jax.tree.leaves(a)), len(jax.tree.leaves(Net(jax.random.key(1)))), a.double, "
        "float(a(jnp.ones(2))[0]), float(Net(jax.random.key(1))(jnp.ones(2))[0]), "
        "jax.tree.map(lambda x: x * 2, a)(jnp.ones(2)).shape, "
        "len(jax.tree.leaves(eqx.filter_grad(lambda net: net(jnp.ones(2))[0])(a)))",
    ),
    "modules of equinox are frozen, and freed": (
        EQUINOX
        + """
import weakref
class Net(eqx.Module):
    n: int
a, b, c = Net(1), Net(2), eqx.nn.Linear(1, 1, key=jax.random.key(0))
def sets(one):
    try:
        setattr(one, next(iter(one.__dataclass_fields__)), 3)
    except dataclasses.FrozenInstanceError as error:
        return str(error)
def is_freed():
    global b
    b, gone = Net(b.n), weakref.ref(b)
    return gone() is None
""",
        "sets(a), sets(c), sets(Net(5)), is_freed()",
    ),
    "registrations of abc and functools": (
        BASE
        + """
import abc, collections.abc, functools, numbers, weakref
class Shape(abc.ABC): ...
class Square: ...
Shape.register(Square)
class Both: ...
@collections.abc.Sequence.register
class Row: ...
numbers.Number.register(Both), Shape.register(Both)
@functools.singledispatch
def kind(value, depth=2):
    "Tells."
    return "any"
@kind.register
def _(value: int, depth=2):
    return "int" if not depth else kind(value, depth - 1)
@kind.register(Square)
@kind.register(collections.abc.Mapping)
def told(value, depth=2):
    return "told"
kind.own = [kind]
class Tells:
    @functools.singledispatchmethod
    def tell(self, value): return "any"
    @tell.register
    def _(self, value: int): return "int"
def make():
    hidden = functools.singledispatch(lambda value: seen)
    seen = [hidden]
    return hidden
hidden = make()
@typing.runtime_checkable
class Area(typing.Protocol):
    side: int
    def area(self) -> int: ...
class Has:
    side = 1
    def area(self): return 1
key = Square()
weak, by_name = weakref.WeakKeyDictionary({key: 5}), weakref.WeakValueDictionary({"k": key})
def late():
    @kind.register
    def _(value: str, depth=2): return "str"
    return kind("")
""",
        "issubclass(Square, Shape), issubclass(Row, collections.abc.Sequence), "
        "issubclass(Both, numbers.Number), issubclass(Both, Shape), issubclass(Row, Shape), "
        "[kind(v) for v in (1, Square(), {}, 0.5)], kind.own == [kind], kind.__doc__, "
        "kind.__name__, kind.__wrapped__ is kind.registry[object], late(), sorted(map(str, "
        "kind.registry)), Tells().tell(1), Tells().tell(2.0), hidden(1) == [hidden], "
        "isinstance(Has(), Area), isinstance(1, Area), weak[key], by_name['k'] is key, "
        "kind.__module__, type(kind.registry)",
    ),
    "a module of equinox without": (
        EQUINOX
        + """
class Base(eqx.Module):
    x: jax.Array
    n: int = 3
    def __check_init__(self):
        if self.n < 0:
            raise ValueError("n")
    def add(self, other: int = 1):
        return self.n + other
class Own(Base):
    y: float = 0.5
a = Own(jnp.ones(2))
""",
        PATHS
        + ", vars(Own(1, 2)), vars(Own(x=1)), Base(5).add(), eqx.tree_at(lambda o: o.n, a, 7).n, "
        "type('Third', (Own,), {'__annotations__': {'z': int}, 'z': 9})(1)",
    ),
    "an abstract module of equinox": (
        EQUINOX
        + """
import abc
class Shape(eqx.Module):
    side: eqx.AbstractVar[float]
    @abc.abstractmethod
    def area(self): ...
class Square(Shape):
    side: float
    def area(self):
        return self.side ** 2
a = Square(3.0)
""",
        "a.area(), sorted(Shape.__abstractmethods__), Square(2.0), jax.tree.leaves(a)",
    ),
    "a metaclass that ends what __new__ begins": (
        BASE
        + """
begun = []
class Meta(type):
    def __call__(cls, *arguments):
        made = super().__call__(*arguments)
        begun.pop()
        return made
class Own(metaclass=Meta):
    def __new__(cls, *arguments):
        begun.append(1)
        return super().__new__(cls)
    def __init__(self, x): self.x = x
class Named(dict, metaclass=Meta):
    def __new__(cls, *arguments):
        begun.append(1)
        return super().__new__(cls)
a, b = Own(3), Named({"k": 1})
""",
        "a.x, b, type(b) is Named, begun[1:], Own(4).x",
    ),
    "a metaclass that looks at the body": (
        BASE
        + """
known = {}
class Meta(type):
    def __new__(kind, name, bases, body, **options):
        made = super().__new__(kind, name, bases, body, **options)
        calls = sorted(k for k, v in body.items() if callable(v) and not k.startswith("__"))
        known[name] = sorted(body.get("__annotations__", {})), calls, body.get("rate")
        made.told = known[name]
        made.number = len(known)
        return made
class Model(metaclass=Meta):
    rate = 0.5
    x: int
    def step(self):
        return self.x * self.rate
a = Model()
a.x = 4
""",
        "a.step(), known, Model.told, Model.number, type(a) is Model, type(Model) is Meta, "
        "type(Meta('Other', (Model,), {'y': 1})).__name__, known.pop('Other')",
    ),
    "a class with an attribute that must not be asked": (
        BASE
        + """
class Strict:
    def __call__(self): ...
    def __getattr__(self, name):
        raise RuntimeError(name) if name == "__wrapped__" else AttributeError(name)
class Base:
    def __init_subclass__(cls): ...
class Own(Base):
    strict = Strict()
a = Own()
""",
        "type(a.strict).__name__, type(a) is Own",
    ),
    "a base that registers its subclasses": (
        BASE
        + """
class Tree:
    def __init_subclass__(cls):
        names = sorted(cls.__annotations__)
        def flatten(one):
            return [getattr(one, name) for name in names], None
        def unflatten(_, leaves):
            made = object.__new__(cls)
            made.__dict__.update(zip(names, leaves))
            return made
        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
class Pair(Tree):
    x: int
    y: int
    def __init__(self, x, y):
        self.x, self.y = x, y
a = Pair(1, 2)
""",
        "jax.tree.leaves(a), vars(jax.tree.map(lambda v: v + 1, Pair(3, 4)))",
    ),
    "a dataclass with defaults": (
        BASE
        + """
@dataclasses.dataclass(order=True)
class Config:
    rate: float
    steps: int = 3
    names: list = dataclasses.field(default_factory=list)
    kept: int = dataclasses.field(default=4, init=False)
a = Config(0.5)
""",
        "a, Config(1), dataclasses.replace(a, rate=2), "
        "[f.default is dataclasses.MISSING for f in dataclasses.fields(Config)], "
        "dataclasses.make_dataclass('More', [('z', int, 5)], bases=(Config,))(1), "
        "Config(1) < Config(2)",
    ),
    "a dataclass that is registered": (
        BASE
        + """
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    params: jax.Array
    step: int = dataclasses.field(default=0, metadata={"static": True})
a = {"one": State(jnp.ones(2)), "two": [State(1.0, 5)]}
""",
        PATHS + ", str(jax.tree.structure(a)), jax.tree.map(lambda x: x + 1, a)['two']",
    ),
    "a class that is registered with its keys": (
        BASE
        + """
class Box:
    def __init__(self, x):
        self.x = x
jax.tree_util.register_pytree_with_keys(
    Box, lambda b: ([(jax.tree_util.GetAttrKey("x"), b.x)], None), lambda _, leaves: Box(*leaves)
)
@jax.tree_util.register_pytree_with_keys_class
class Own:
    def __init__(self, x):
        self.x = x
    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("x"), self.x)], None
    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)
a = [Box(1), Own(2)]
""",
        PATHS + ", [type(one) for one in jax.tree.map(lambda x: x, a)]",
    ),
    "kinds of Python's own": (
        BASE
        + """
class Color(enum.Enum):
    RED = 1
    @property
    def double(self):
        return 2 * self.value
class Point(typing.NamedTuple):
    x: int
    y: int = 2
class Half(typing.Protocol):
    def area(self) -> float: ...
T = typing.TypeVar("T")
own = calendar.c  # a library's, with a state: it comes back with that
own.mine = 5
class Stack(typing.Generic[T]):
    def __init__(self):
        self.held = []
class Options(typing.TypedDict, total=False):
    rate: float
missing = dataclasses.MISSING
a = Color.RED, Point(1), Stack[int]()
""",
        "a[0].double, a[0] is Color.RED, Point(5), a[1], a[2].held, "
        "missing is dataclasses.MISSING, Options(rate=1.0), typing.get_type_hints(Options), "
        "[Half.__name__], own.mine",
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What three processes say of each case: one defines it, and each gives it to the next."""
    folder = tmp_path_factory.mktemp("states")
    has_equinox = importlib.util.find_spec("equinox") is not None
    names = [name for name in CASES if has_equinox or "equinox" not in name]
    steps = [
        json.loads(
            subprocess.run(
                [sys.executable, "-W", "error", "-c", STEP, str(folder), step],
                input=json.dumps([CASES[name] for name in names]),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
        )
        for step in ("define", "load", "load")
    ]
    return {name: list(one) for name, one in zip(names, zip(*steps, strict=True), strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_a_class_is_the_same_in_another_process(case: str, told: dict[str, list[str]]) -> None:
    if case not in told:
        pytest.skip("no equinox")
    first, *others = told[case]
    assert "Traceback" not in first
    assert others == [first, first]
