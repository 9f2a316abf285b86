"""The rank side of the views, as far as it needs no rank."""

from __future__ import annotations

import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcluster.engine import shards
from jaxcluster.engine.arrays import TooManyLeaves
from jaxcluster.engine.values import Values
from jaxcluster.wire.ops.arrays import Arrays


def test_statistics_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    values[[3, 500]] = math.nan
    whole = shards.statistics(values)
    monkeypatch.setattr(shards, "CHUNK", 7)
    pieces = shards.statistics(values)
    assert pieces["mean"] == pytest.approx(whole["mean"])
    assert {**pieces, "mean": 0} == {**whole, "mean": 0}


def test_a_digest_tells_bits_apart() -> None:
    zero, minus = np.zeros(3), -np.zeros(3)
    assert shards.digest_of(zero) == shards.digest_of(np.zeros(3))
    assert shards.digest_of(zero) != shards.digest_of(minus)
    assert shards.digest_of(np.zeros((0, 4))) == shards.digest_of(np.zeros(0))


def test_a_path_is_a_prefix_by_steps_and_not_by_letters() -> None:
    leaves = [(("['a']", "[1]"), 1), (("['a']", "[10]"), 2), (("['ab']",), 3)]
    assert [leaf for _, leaf in shards.below(leaves, ["['a']", "[1]"])] == [1]
    assert [leaf for _, leaf in shards.below(leaves, ["['a']"])] == [1, 2]
    assert len(shards.below(leaves, [])) == 3


def test_a_tree_of_too_many_leaves_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_ROWS", 2)
    values = Values(0)
    values.last_result = lambda: [jnp.ones(2)] * 3
    with pytest.raises(TooManyLeaves) as refused:
        shards.ArrayViews(values).report(SimpleNamespace(body=Arrays("", [])))  # type: ignore[arg-type]
    told = "the last result has 3 leaves, and 2 can be shown: look at a part of it"
    assert str(refused.value) == told
