"""Arrays, where JAX has no public way to make them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def with_type(array: Any, weak_type: bool, committed: bool) -> Any:
    """The same array, which may span processes, of that type. Nothing is launched.

    ``jax.make_array_from_single_device_arrays`` makes strong types alone, and commits the array to
    its devices (jax 0.10.2 and 0.12: it ends in ``ArrayImpl``, to which both are given). Where that
    has moved they stay.
    """
    if committed and not weak_type:
        return array
    try:
        aval = array.aval.update(weak_type=weak_type)
        pieces = [shard.data for shard in array.addressable_shards]
        return type(array)(aval, array.sharding, pieces, committed=committed)
    except (AttributeError, TypeError):
        return array


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Within, what is ours is made with its dtype and values, whatever the cells have set.

    An array that was made in ``jax.enable_x64`` would be cut to 32 bits outside of it, and with
    ``jax_no_tracing`` a new process could make no key. This is public.
    """
    import jax

    with (
        jax.enable_x64(True),
        jax.no_tracing(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
    ):
        yield
