"""Classes that cells define are after a restart what they were, also to JAX and to metaclasses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jaxcluster

PYTREES = """
import dataclasses, jax, jax.numpy as jnp
from jax.tree_util import GetAttrKey, register_dataclass, register_pytree_node_class
from jax.tree_util import register_pytree_with_keys, register_pytree_with_keys_class
made = []

@register_pytree_with_keys_class
class Keyed:
    def __init__(self, a):
        self.a = a
    def tree_flatten_with_keys(self):
        return ((GetAttrKey("a"), self.a),), None
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)

@register_dataclass
@dataclasses.dataclass
class Data:
    a: object
    b: int = dataclasses.field(default=3, metadata={"static": True})

class Both:
    def __init__(self, a):
        self.a = a
register_pytree_with_keys(
    Both, lambda b: (((GetAttrKey("a"), b.a),), None), lambda aux, children: Both(*children),
    lambda b: ((b.a,), None),
)

@register_pytree_node_class
class Plain:
    def __init__(self, a):
        self.a = a
    def tree_flatten(self):
        return (self.a,), None
    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)

class Base:
    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        made.append(cls.__name__)
        register_dataclass(dataclasses.dataclass(cls))

class Sub(Base):
    a: object

class Meta(type):
    def __new__(meta, name, bases, names):
        made.append(name)
        cls = dataclasses.dataclass(super().__new__(meta, name, bases, names))
        register_dataclass(cls)
        return cls

class OfMeta(metaclass=Meta):
    a: object

values = [cls(1.0) for cls in (Keyed, Data, Both, Plain, Sub, OfMeta)]
"""
LOOK = """
for value in [*values, Sub(1.0), OfMeta(1.0)]:
    (path, leaf), = jax.tree_util.tree_flatten_with_path(value)[0]
    more = jax.tree.map(lambda x: x + 1, value)
    print(type(value).__name__, jax.tree_util.keystr(path), leaf, more.a)
print(made)
class Later(Base):
    a: object
print(jax.tree.leaves(Later(7)), made.pop())
"""
EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp
class Net(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    scale: float = eqx.field(static=True)
    def __init__(self, key):
        self.first, self.norm, self.scale = eqx.nn.Linear(4, 8, key=key), eqx.nn.LayerNorm(8), 2.0
    def __call__(self, x):
        return self.scale * self.norm(self.first(x))
class Child(Net):
    bias: jax.Array
    def __init__(self, key):
        super().__init__(key)
        self.bias = jnp.ones(8)
    def __call__(self, x):
        return super().__call__(x) + self.bias
class Small(eqx.Module):
    w: jax.Array
nets = [Net(jax.random.key(0)), Child(jax.random.key(1)), Small(jnp.ones(2))]
"""
LOOK_EQUINOX = """
for net in [*nets, Net(jax.random.key(2)), Child(jax.random.key(3)), Small(jnp.zeros(1))]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(net)
    print([(jax.tree_util.keystr(path), leaf.sum()) for path, leaf in leaves])
loss = lambda net: net(jnp.arange(4.0)).sum() ** 2
print([eqx.filter_jit(eqx.filter_grad(loss))(net) for net in nets[:2]])
"""


def printed(cluster: jaxcluster.Cluster, source: str) -> list[str]:
    record = cluster.run(source, show=False)
    return [record.stdout(rank) for rank in range(2)]


@pytest.mark.any_jax
def test_pytrees_have_their_keys_again_and_nothing_is_made_twice(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, name="pytrees")
    cluster.run(PYTREES)
    before = printed(cluster, LOOK)
    assert "Keyed .a 1.0 2.0" in before[0]
    for _ in range(2):
        cluster.restart()
        assert printed(cluster, LOOK) == before


@pytest.mark.any_jax
def test_equinoxs_modules_have_their_fields_again(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    pytest.importorskip("equinox")
    cluster = start(2, name="equinox")
    cluster.run(EQUINOX)
    before = printed(cluster, LOOK_EQUINOX)
    assert ".first.weight" in before[0]
    for _ in range(2):
        cluster.restart()
        assert printed(cluster, LOOK_EQUINOX) == before
