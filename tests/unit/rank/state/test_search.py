"""Random namespaces, saved and loaded, compared in depth.

``PYTHONPATH=tests python tests/unit/rank/state/test_search.py SEED COUNT`` runs more of them.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import numpy as np
import pytest
from savednames import Comparison, alone, memory_of, namespace, run_cell

COUNT, PARTS = int(os.environ.get("JAXCLUSTER_SEARCH", "800")), 4
CELL = """
import dataclasses, enum, functools, typing
import jax, jax.numpy as jnp, numpy as np
import equinox as eqx, optax
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
offset = 3

@dataclasses.dataclass
class Config:
    lr: float = 0.1
    layers: list = dataclasses.field(default_factory=list)

@functools.partial(jax.tree_util.register_dataclass, data_fields=["params"], meta_fields=["step"])
@dataclasses.dataclass
class State:
    params: object
    step: int = 0

class Pair(typing.NamedTuple):
    left: object
    right: object = None

class Color(enum.Enum):
    RED = 1
    BLUE = "b"

class Odd:
    def __setstate__(self, state): raise ValueError("not again")

class Slots:
    __slots__ = ("value",)
    def __init__(self, value): self.value = value

class Node:
    def __init__(self, value):
        self.value, self.me = value, self
    def again(self):
        return Node(self.value)

class Model(eqx.Module):
    weight: object
    size: int = eqx.field(static=True, default=2)
    def __call__(self, x): return self.weight * x

class Deep(Model):
    inner: object = None

def add(a, b=1, *, c=None):
    return a + b + offset

def counter(value):
    def get(): return value
    def put(new):
        nonlocal value
        value = new
    def both(): return get(), put
    return get, put, both

@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def scaled(x, n): return x * n
"""
START = namespace()


class Maker:
    """Makes random values, of which some hold others."""

    def __init__(self, seed: int) -> None:
        if len(START) < 2:
            run_cell(START, CELL)
        self.random, self.names, self.made = random.Random(seed), dict(START), list[Any]()
        self.made += [START["mesh"], START["offset"]]

    def value(self, depth: int = 3) -> Any:
        pick = self.random
        if self.made and pick.random() < 0.2:
            return pick.choice(self.made)
        kinds = LEAVES if depth == 0 or pick.random() < 0.4 else HOLDERS
        made = pick.choice(kinds)(self, depth - 1)
        self.made.append(made)
        return made


def atom(maker: Maker, depth: int) -> Any:
    pick = maker.random
    return pick.choice([1, -5, 2**70, 0.5, float("nan"), "text", b"bytes", None, True, 1j, (), ...])


def numbers(maker: Maker, depth: int) -> Any:
    pick = maker.random
    dtype = pick.choice(["float32", "int8", "bool", "complex64", "U3", "M8[s]"])
    array = np.zeros(pick.choice([(), (0,), (3,), (2, 3), (4, 2, 2)]), dtype)
    return np.asfortranarray(array) if pick.random() < 0.3 else array


def large(maker: Maker, depth: int) -> Any:
    array = np.arange(maker.random.choice([20_000, 70_000]), dtype=np.float32)
    array.flags.writeable = maker.random.random() < 0.7
    return array


def view(maker: Maker, depth: int) -> Any:
    known = [one for one in maker.made if type(one) is np.ndarray and one.ndim and one.size > 2]
    whole = maker.random.choice(known) if known else np.arange(12.0).reshape(3, 4)
    cut = [lambda a: a[1:], lambda a: a[::-1], lambda a: a[::2], lambda a: a.T, lambda a: a[:0]]
    return maker.random.choice(cut)(whole)


def array(maker: Maker, depth: int) -> Any:
    import jax
    import jax.numpy as jnp

    pick, names = maker.random, START
    spec = names["P"](*pick.choice([(), ("data",), ("data", "model"), (None, "model")]))
    host = np.arange(8, dtype=pick.choice(["float32", "int32", "bfloat16"])).reshape(4, 2)
    way = pick.randrange(5)
    if way == 0:
        return jax.device_put(host, names["NamedSharding"](names["mesh"], spec))
    if way == 1:
        return jax.device_put(host, jax.devices()[pick.randrange(4)])
    if way == 2:
        return jnp.asarray(pick.choice([2.0, 3, True]))  # weakly typed
    if way == 3:
        return jax.random.key(pick.randrange(9))
    return jnp.asarray(host[: pick.randrange(5)])


def holder(maker: Maker, depth: int) -> Any:
    pick, value = maker.random, maker.value
    count = range(pick.randrange(4))
    kind = pick.randrange(4)
    if kind == 0:
        made: Any = [value(depth) for _ in count]
        if pick.random() < 0.2:
            made.append(made)
        return made
    if kind == 1:
        return {f"k{n}": value(depth) for n in count}
    if kind == 2:
        return tuple(value(depth) for _ in count)
    return {pick.randrange(9) for _ in count}


def instance(maker: Maker, depth: int) -> Any:
    names, value = START, maker.value
    kind = maker.random.randrange(8)
    if kind == 0:
        return names["Config"](0.5, [value(depth)])
    if kind == 1:
        return names["State"](value(depth), 4)
    if kind == 2:
        return names["Pair"](value(depth))
    if kind == 3:
        return names["Color"]("b")
    if kind == 4:
        return names["Node"](value(depth))
    if kind == 5:
        return names["Model"](array(maker, depth), 5)
    if kind == 6:
        return names["Deep"](array(maker, depth), 1, names["Model"](numbers(maker, depth)))
    return names["Slots"](value(depth))


def function(maker: Maker, depth: int) -> Any:
    import functools

    names, pick = START, maker.random
    kind = pick.randrange(6)
    if kind == 0:
        return functools.partial(names["add"], maker.value(depth), c=maker.value(depth))
    if kind == 1:
        return names["counter"](maker.value(depth))[: pick.choice([1, 2, 3])]
    if kind == 2:
        return names["scaled"]
    if kind == 3:
        return names["jax"].jit(names["add"], static_argnames="c")
    if kind == 4:
        return names["Node"](1).again
    return names["jax"].vmap(names["add"])


def optimizer(maker: Maker, depth: int) -> Any:
    import jax.numpy as jnp

    transformation = START["optax"].adam(0.1)
    state = transformation.init({"w": jnp.ones(2)})
    return maker.random.choice([transformation, state])


LEAVES = [atom, numbers, large, view, array, function, optimizer]
HOLDERS = [holder, holder, instance, function]


def look_at(seed: int) -> None:
    """One namespace.

    Raises:
      AssertionError: a value has changed.
    """
    maker = Maker(seed)
    own = {f"n{n}": maker.value() for n in range(maker.random.randrange(1, 6))}
    whole, is_odd = [*own], seed % 5 == 0  # one can't be made again, and shares what others have
    if is_odd:
        odd = START["Odd"]()
        odd.held = maker.random.choice(maker.made)
        own = dict(sorted([*own.items(), (f"m{seed % 2 * 9}", odd), ("n00", [odd])]))
    START.update(own)
    try:
        after, lost = alone(START, own)
        assert lost == dict.fromkeys(own.keys() - whole, "not again"), lost
        Comparison(START, after).names(whole)
        own = {name: own[name] for name in whole}
        views = [name for name, value in own.items() if type(value) is np.ndarray]
        for one in views:
            for other in views:
                is_shared = memory_of(own[one])[0] == memory_of(own[other])[0]
                assert is_shared == (memory_of(after[one])[0] == memory_of(after[other])[0])
    finally:
        for name in [name for name in START if name[0] in "mn" and name[1:].isdigit()]:
            del START[name]


def search(first: int, count: int) -> None:
    failed = {}
    for seed in range(first, first + count):
        try:
            look_at(seed)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {str(error)[:500]}"
    told = "\n".join(f"seed {seed}: {why}" for seed, why in list(failed.items())[:9])
    assert not failed, f"{len(failed)} of {count}:\n{told}"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_namespaces_come_back_as_they_were(part: int) -> None:
    search(part * COUNT // PARTS, COUNT // PARTS)


if __name__ == "__main__":
    search(int(sys.argv[1]), int(sys.argv[2]))
