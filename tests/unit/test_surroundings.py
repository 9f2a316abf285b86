"""Random states, kept before each cell at little cost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from jaxcluster.engine.state.surroundings import NumpyState


def is_same(a: Any, b: Any) -> bool:
    words, others = a["state"], b["state"]
    return (a["has_gauss"], a["gauss"], words["pos"]) == (
        b["has_gauss"],
        b["gauss"],
        others["pos"],
    ) and bool((words["key"] == others["key"]).all())


def test_numpys_state_is_always_the_present_one() -> None:
    found, chosen = NumpyState(), random.Random(1)
    before = np.random.get_state(legacy=False)
    own = np.random.get_bit_generator()
    another: Any = np.random.PCG64(1)
    states = [found.now()]
    changes = (
        np.random.rand,
        np.random.randn,  # draws two, and gives the second one later
        lambda: np.random.normal(size=3),
        lambda: np.random.seed(chosen.randrange(9)),
        lambda: np.random.set_state(chosen.choice(states)),
        lambda: np.random.set_bit_generator(np.random.MT19937(chosen.randrange(9))),
        lambda: None,
    )
    try:
        for _ in range(2000):
            chosen.choice(changes)()
            states = [*states[-20:], found.now()]
            assert is_same(states[-1], np.random.get_state(legacy=False))
        np.random.set_bit_generator(another)
        assert found.now()["bit_generator"] == "PCG64"
    finally:
        np.random.set_bit_generator(own)
        np.random.set_state(before)
