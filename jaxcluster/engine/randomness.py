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


def states() -> dict[str, Any]:
    """Both states, and whether a user has seeded numpy's: a seeded one has no seed sequence."""
    np_random: Any = np.random
    generator = np_random.get_bit_generator()
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "seeded": generator.seed_seq is None,
        "generator": type(generator).__name__,
    }


def digest(saved: dict[str, Any]) -> str:
    """Equal on ranks that would draw the same numbers."""
    text = pickle.dumps((saved["random"], saved["numpy"]), 4)
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def restore(saved: dict[str, Any]) -> None:
    random.setstate(saved["random"])
    np_random: Any = np.random
    if saved["generator"] != type(np_random.get_bit_generator()).__name__:
        np_random.set_bit_generator(getattr(np_random, saved["generator"])())
    if saved["seeded"]:
        np.random.seed(0)  # for its mark; the state follows
    np.random.set_state(saved["numpy"])
