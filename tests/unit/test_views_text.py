"""Arrays as plain text."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.views import arrays


def info(shape: tuple[int, ...]) -> wire.ArrayInfo:
    return wire.ArrayInfo(shape, "int64", spans=True, sharding="NamedSharding(...)")


def test_an_array_is_shown_with_shape_dtype_sharding_and_values() -> None:
    values = np.arange(6).reshape(2, 3)
    assert arrays.values(info((2, 3)), values, False) == (
        "Array(shape=(2, 3), dtype=int64)\nsharding: NamedSharding(...)\n[[0 1 2]\n [3 4 5]]"
    )


@pytest.mark.parametrize(
    "shape", [(5000,), (100, 100), (2, 5000), (5000, 2), (7, 1000), (10, 10, 50), (3, 8, 100)]
)
def test_a_large_array_is_summarized_as_numpy_does_it(shape: tuple[int, ...]) -> None:
    whole = sampled = np.arange(np.prod(shape)).reshape(shape) % 10
    for axis, size in enumerate(shape):
        if size > 7:
            kept = [*range(3), size // 2, *range(size - 3, size)]
            sampled = np.take(sampled, kept, axis)
    shown = arrays.values(info(shape), sampled, True)
    assert shown.split("\n", 2)[2] == np.array2string(whole, threshold=0, edgeitems=3)
