"""What a rank asks of its arrays, whatever the main thread does to them meanwhile."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from jaxcluster.engine.arrays import NotReady, is_ready, wait_ready
from jaxcluster.engine.shards import Buffers


def test_a_deleted_array_is_not_ready() -> None:
    """jax 0.10.2 ends in a segmentation fault where it is asked."""
    array, key = jnp.ones(1 << 16), jax.random.key(0)
    jax.block_until_ready((array, key))
    assert is_ready(array)
    assert is_ready(key)
    array.delete()
    assert not is_ready(array)
    with pytest.raises(NotReady, match="x is deleted or was donated"):
        wait_ready(array, "x", 10.0)
    assert Buffers({0: 0}, set()).take([array]) == [0]


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
