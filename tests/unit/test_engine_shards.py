"""The rank side of the views, as far as it needs no rank."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcluster.rank import values as module
from jaxcluster.rank.arrays import Patience, Unavailable, is_ready, leaves_of
from jaxcluster.rank.values import Values
from jaxcluster.wire.ops.arrays import Arrays


def test_a_digest_tells_bits_apart() -> None:
    zero, minus = np.zeros(3), -np.zeros(3)
    assert module.digest_of(zero) == module.digest_of(np.zeros(3))
    assert module.digest_of(zero) != module.digest_of(minus)
    assert module.digest_of(np.zeros((0, 4))) == module.digest_of(np.zeros(0))


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64", jnp.bfloat16])
def test_statistics_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    values = np.arange(64).reshape(8, 8).astype(dtype)
    if dtype != "int8":
        values[0, 0], values[0, 5], values[7, 7] = np.nan, np.inf, np.nan
    whole = np.abs(values) if dtype == "complex64" else values.astype(np.float32)
    found, finite = module.statistics(values), whole[np.isfinite(whole)]
    assert (found["minimum"], found["maximum"]) == (finite.min(), finite.max())
    assert found["mean"] == pytest.approx(finite.mean())
    assert (found["nan"], found["inf"]) == (np.isnan(whole).sum(), np.isinf(whole).sum())
    assert module.statistics(np.zeros((0, 3)))["size"] == 0


@pytest.mark.parametrize("kind", ["bomb", "hollow", "loop", "deep"])
def test_a_tree_that_can_not_be_listed_is_refused(kind: str) -> None:
    """By JAX's own functions the process would run out of memory, or of recursion for good."""
    value: Any = [] if kind != "bomb" else [1]
    for _ in range(60 if kind != "deep" else 100_000):
        value = [value] if kind == "deep" else [value, (value, None)]
    if kind == "loop":
        value = []
        value.append(value)
    with pytest.raises(Unavailable, match=r"more than 262,144 parts|nested too deeply"):
        leaves_of(value)


def test_a_tree_of_too_many_leaves_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    values = Values(0)
    values.last_result = lambda: [jnp.ones(2)] * 3
    with pytest.raises(Unavailable) as refused:
        values.report(SimpleNamespace(body=Arrays("", [])))  # type: ignore[arg-type]
    told = "the last result has 3 leaves, and 2 can be shown: look at a part of it"
    assert str(refused.value) == told


# --------------------------------------------------------------------------- a namespace

CELL = """
import jax, numpy as np
mesh = jax.make_mesh((1,), ("i",), devices=jax.devices()[:1])
large = jax.device_put(np.ones(1 << 20, np.float32), jax.devices()[0])
alias, hidden = large, lambda box=jax.device_put(np.ones(1 << 19), jax.devices()[0]): box
class Lies:
    __class__ = jax.Array
class LiesOfMesh:
    __class__ = jax.sharding.Mesh
class Raises:
    @property
    def __class__(self): raise RuntimeError("no class")
    def __getattr__(self, name): raise RuntimeError(name)
    __hash__ = None
lies, liesofmesh, raises = Lies(), LiesOfMesh(), Raises()
tree = {"a": lies, "b": [raises, alias], "c": liesofmesh}
"""


def test_objects_that_lie_or_raise_hide_no_others_and_a_buffer_counts_once() -> None:
    values = Values(0)
    exec(CELL, values.namespace)
    asked = SimpleNamespace(body=None)
    memory = values.memory(asked)  # type: ignore[arg-type]
    assert memory.names == {"large": [4 << 20, *[0] * (len(memory.devices) - 1)]}
    assert memory.other[0] >= 2 << 20
    assert "mesh" in {one.name for one in values.meshes(asked)}  # type: ignore[arg-type]
    found = values.variables(asked)  # type: ignore[arg-type]
    assert found.keys() >= {"large", "alias"} and found["large"].infos[0].nbytes == 4 << 20


# --------------------------------------------------------------------------- deleted arrays


def test_a_deleted_array_is_not_ready() -> None:
    """jax 0.10.2 ends in a segmentation fault where it is asked."""
    array, key = jnp.ones(1 << 16), jax.random.key(0)
    jax.block_until_ready((array, key))
    assert is_ready(array)
    assert is_ready(key)
    array.delete()
    assert not is_ready(array)
    with pytest.raises(Unavailable, match="x is deleted or was donated"):
        Patience(10.0, "x").wait(array)
    values = Values(0)
    values.namespace["x"] = array
    told = values.memory(SimpleNamespace(body=None))  # type: ignore[arg-type]
    assert "x" not in told.names


def test_arrays_that_are_deleted_while_they_are_looked_at() -> None:
    arrays = [jnp.ones(8) + n for n in range(3000)]
    jax.block_until_ready(arrays)

    def delete() -> None:
        for array in arrays:
            array.delete()

    deleting = threading.Thread(target=delete)
    deleting.start()
    while deleting.is_alive():
        for array in arrays:
            is_ready(array)
    deleting.join()
    assert not any(map(is_ready, arrays))
