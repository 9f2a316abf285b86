"""The rank side of the views, as far as it needs no rank."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from jaxcluster.engine import shards


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
def test_statistics_of_every_kind_of_number(dtype: type) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    found = shards.statistics(values)
    assert (found["minimum"], found["size"], found["nan"], found["inf"]) == (0, 6, 0, 0)
    assert found["mean"] == pytest.approx(float(np.mean(values.astype(np.float64))))


def test_statistics_leave_out_what_is_not_finite_and_count_it() -> None:
    found = shards.statistics(np.array([1.0, np.nan, -np.inf, 3.0, np.inf]))
    assert (found["minimum"], found["maximum"], found["mean"]) == (1, 3, 2)
    assert (found["nan"], found["inf"]) == (1, 2)
    nothing = shards.statistics(np.array([np.nan]))
    assert "minimum" not in nothing


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
