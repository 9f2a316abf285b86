"""The rank side of the views, as far as it needs no rank."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxcluster.engine import shards


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
