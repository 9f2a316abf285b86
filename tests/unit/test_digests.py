"""What is told of a value: equal on two ranks only where it is the same there."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxcluster.engine import digests
from jaxcluster.engine.digests import Room, TooMuch, digest


def text(value: Any) -> str:
    return digest(value, Room()).text


class Mode(enum.Enum):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: Any
    b: Any


def scaled(by: Any) -> Any:
    def scale(x: Any) -> Any:
        return x * by

    return scale


def shifted(by: Any) -> Any:
    def scale(x: Any) -> Any:
        return x + by

    return scale


def defined(source: str, name: str = "C") -> Any:
    """What a cell defines."""
    namespace: dict[str, Any] = {
        "__name__": "__main__",
        "dataclasses": dataclasses,
        "NamedTuple": NamedTuple,
    }
    exec(source, namespace)
    return namespace[name]


MODEL = "@dataclasses.dataclass\nclass C:\n    n: int = {}\n    def f(self): return self.n {} 1"

SLOTS = (
    "@dataclasses.dataclass(slots=True)\nclass C:\n    n: object = {0}\n    def f(self): return {0}"
)
NAMED = "class C(NamedTuple):\n    {}: int = {}"


@pytest.mark.parametrize("value", [True, None, 0.5, -3, "shard-0.npz", (1, "a", (2.5, None))])
def test_a_short_plain_value_stands_for_itself(value: Any) -> None:
    assert text(value) == f"={value!r}"


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (float("inf"), float("-inf")),
        ("a" * 200, "a" * 199 + "b"),
        ([1, 2], [2, 1]),
        ([1, 2], (1, 2)),
        ([], {}),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, {1, 3}),
        (collections.Counter("ab"), collections.Counter("aab")),
        (collections.defaultdict(list), collections.defaultdict(dict)),
        (collections.deque([1]), collections.deque([1], maxlen=3)),
        (np.zeros(3), np.zeros(3, np.int64)),
        (np.zeros(4), np.zeros((2, 2))),
        (np.arange(3), np.arange(3) + 1),
        (np.float32(1), np.float64(1)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (Mode.A, Mode.B),
        (Pair(1, [2]), (1, [2])),
        (Pair(1, [2]), Pair(1, [3])),
        (scaled(1), scaled(2)),
        (scaled(1), shifted(1)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, key=len), functools.partial(max, key=abs)),
        (np, dataclasses),
        (len, abs),
        ([1].append, [2].append),
        (defined(MODEL.format(3, "+")), defined(MODEL.format(4, "+"))),
        (defined(MODEL.format(3, "+")), defined(MODEL.format(3, "-"))),
        (defined(MODEL.format(3, "+"))(1), defined(MODEL.format(3, "+"))(2)),
        (defined(SLOTS.format(1)), defined(SLOTS.format(2))),
        (defined(SLOTS.format(1))(1), defined(SLOTS.format(1))(2)),
        (defined(NAMED.format("a", 1)), defined(NAMED.format("b", 1))),
        (defined(NAMED.format("a", 1)), defined(NAMED.format("a", 2))),
        (defined("f = lambda: 1", "f"), defined("f = lambda: 2", "f")),
        (defined("f = lambda x=1: x", "f"), defined("f = lambda x=2: x", "f")),
    ],
)
def test_other_values_are_told_apart(one: Any, other: Any) -> None:
    assert text(one) != text(other)
    assert text(one)
    assert text(other)


def test_one_value_twice_is_not_two_equal_ones() -> None:
    """What one of them changes shows in the other."""
    same: list[int] = []
    assert text([same, same]) != text([[], []])


class Awkward:
    """Whatever is asked of it, a user's code answers."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemError("a user's code was called")

    def __repr__(self) -> str:
        raise SystemError("a user's code was called")

    __hash__ = None  # type: ignore[assignment]


Awkward.__module__ = "somelibrary"


def test_nothing_is_said_of_what_only_its_own_code_could_tell() -> None:
    for value in (
        Awkward(),
        [Awkward()],
        (x for x in "ab"),
        open,
        sys.stdout,
        np.array([object()]),
    ):
        assert text(value) in ("", text(open))


def test_what_holds_itself_is_told() -> None:
    one: list[Any] = [1]
    one.append(one)
    assert text(one).startswith("#")


def test_what_is_too_large_or_too_deep_is_not_looked_at() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for value in ([1] * 10**6, np.zeros(1 << 20), "a" * (1 << 21), deep):
        with pytest.raises(TooMuch):
            digest(value, Room())


def test_a_deep_tuple_costs_no_reply() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(TooMuch):
        digest(deep, Room())


def test_whether_a_value_can_change_in_place_is_known() -> None:
    fixed = [1, "a", (1, 2), len, np, np.float32, Mode.A, frozenset({1})]
    changing = [[], {}, ([],), np.zeros(3), scaled([]), np.random.default_rng(0), Awkward()]
    assert all(digest(value, Room()).is_fixed for value in fixed)
    assert not any(digest(value, Room()).is_fixed for value in changing)


def test_a_class_is_the_same_after_it_was_pickled() -> None:
    """copyreg keeps ``__slotnames__`` in it then."""
    model = defined(MODEL.format(3, "+"))
    before = text(model)
    model(1).__reduce_ex__(2)
    assert text(model) == before


PROGRAM = """
import sys, dataclasses, functools
from typing import NamedTuple
sys.path[:0] = {path!r}
import numpy as np, jax, jax.numpy as jnp
from jaxcluster.engine.digests import Room, digest

@dataclasses.dataclass
class Model:
    sizes: tuple = (1, 2)
    names: frozenset = frozenset({{"a", "b", "c"}})
    def f(self): return 1 if self.names in {{"x", "y", "z"}} else 2

class State(NamedTuple):
    mu: float
    count: int = 3

class Slots:
    __slots__ = ("a", "b")

class Frozen(Slots):
    @property
    def half(self): return self.a / 2
    @functools.cached_property
    def twice(self): return self.a * 2
    def scale(self, by): return self.a * by
    thrice = functools.partialmethod(scale, 3)

slots, frozen = Slots(), Frozen()
slots.a = frozen.b = 3
mesh = jax.make_mesh((1,), ("i",))
spec = jax.sharding.PartitionSpec("i")
values = [State, State(1.5), Slots, slots, Frozen, frozen,
    Model, Model(), {{"x", "y", "z"}}, jnp.ones(3), jax.random.key(1), mesh, spec, np.mean,
    jax.sharding.NamedSharding(mesh, spec), jax.jit(Model.f), jax.value_and_grad(lambda x: x),
    functools.partial(jnp.sum, axis=0), jnp.float32, np.random.RandomState(0), jax.jit, jnp.sin,
    jax.devices()[0]]
for value in values:
    print(digest(value, Room()).text)
"""


def test_ranks_tell_the_same_of_equal_values() -> None:
    """Also where sets have another order, and objects other addresses."""
    path = [entry for entry in sys.path if entry]
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(path=path)],
            env={"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\n")
        for seed in "12"
    ]
    assert found[0] == found[1]
    assert all(line.startswith("#") for line in found[0][:-1])
    assert len(set(found[0])) == len(found[0])


def test_arrays_are_told_by_their_numbers() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    assert text(jnp.ones(3)) == text(jnp.ones(3)) != text(jnp.zeros(3))
    assert text(jax.random.key(0)) != text(jax.random.key(1))
    deleted = jnp.ones(3)
    deleted.delete()
    assert text(deleted) == ""
    assert digests.MOST_NBYTES < 1 << 21
    with pytest.raises(TooMuch):
        digest(jnp.ones(1 << 19), Room())
