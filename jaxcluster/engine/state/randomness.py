"""The states of ``random`` and ``numpy.random``: what is saved of them, compared and restored.

A rank's own come back with its variables. Another rank's are no use to the one that took the place
of a dead one: two ranks would draw the same numbers from then on, unless all did so before.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any

import numpy as np

NUMPY, PYTHON = "np.random's state", "random's state"


def numpy_state() -> dict[str, Any]:
    """numpy's, and whether a user has seeded it: a seeded one has no seed sequence."""
    np_random: Any = np.random
    generator = np_random.get_bit_generator()
    return {
        "numpy": np.random.get_state(),
        "seeded": generator.seed_seq is None,
        "generator": type(generator).__name__,
    }


def set_numpy_state(saved: dict[str, Any]) -> None:
    np_random: Any = np.random
    if saved["generator"] != type(np_random.get_bit_generator()).__name__:
        np_random.set_bit_generator(getattr(np_random, saved["generator"])())
    if saved["seeded"]:
        np.random.seed(0)  # for its mark; the state follows
    np.random.set_state(saved["numpy"])


def digests() -> dict[str, Any]:
    """For both, what is equal on ranks that would draw the same numbers; and who was seeded."""
    numpy = numpy_state()
    states = {NUMPY: numpy["numpy"], PYTHON: random.getstate()}
    found: dict[str, Any] = {
        name: hashlib.blake2b(pickle.dumps(state, 4), digest_size=12).hexdigest()
        for name, state in states.items()
    }
    return {**found, "seeded": numpy["seeded"]}
