"""The inputs of a program in a few words: a model's step may take hundreds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")

MOST = 8  # inputs that are all told
FIRST = 4  # of more, those that are
MOST_DIFFERENT = 3  # inputs that differ, and are told one by one

_BETWEEN = re.compile(r", (?![^(]*\))(?![^\[]*\])")


def inputs_of(signature: str) -> list[str]:
    """Each input of ``float32[8,4], int32[]``."""
    return _BETWEEN.split(signature) if signature else []


def brief(signature: str) -> str:
    """It, or of many inputs the first ones and their number."""
    inputs = inputs_of(signature)
    if len(inputs) <= MOST:
        return signature
    return f"{', '.join(inputs[:FIRST])}, ... ({len(inputs)} inputs)"


def apart(signatures: Mapping[K, str]) -> dict[K, str]:
    """The same for several of one program: of many inputs those that differ.

    ``input 7 of 26: float32[5,3]``, and likewise for the others.
    """
    split = {key: inputs_of(signature) for key, signature in signatures.items()}
    lengths = {len(inputs) for inputs in split.values()}
    if len(lengths) != 1 or (most := max(lengths)) <= MOST:
        return {key: brief(signature) for key, signature in signatures.items()}
    places = [at for at in range(most) if len({inputs[at] for inputs in split.values()}) > 1]
    told = places[:MOST_DIFFERENT]
    more = f", ... ({len(places)} differ)" if len(places) > len(told) else ""
    return {
        key: ", ".join(f"input {at + 1} of {most}: {inputs[at]}" for at in told) + more
        for key, inputs in split.items()
    }
