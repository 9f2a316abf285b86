"""Where values of one process become an array of several."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from jaxcluster.rank.given import Given
from jaxcluster.rank.private import needs_names

MAKERS = (
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
)


@needs_names(
    "host values",
    "values that should be equal on all ranks are compared only where arrays are pulled",
)
def hear_host_values(given: Given) -> None:
    """Have ``given`` told of them (jax 0.9.1 to 0.12).

    What is no array that spans a program's devices comes to ``pxla.shard_arg_handlers``, on JAX's
    fast path too.
    """
    from jax._src import array as jax_array
    from jax._src import literals
    from jax._src.interpreters import pxla

    handlers: Any = pxla.shard_arg_handlers
    cls: Any = jax_array.ArrayImpl
    # Python's own numbers become arrays of numpy's. jax 0.9 has all numpy arrays become its own
    # type, which is none of numpy's.
    given_types = {literals.TypedNdArray, *literals.typed_scalar_types}
    makers = [(name, getattr(jax_array, name)) for name in MAKERS]

    def hearing(handle: Any, is_local: Any) -> Any:
        def shard(values: Any, shardings: Any, *args: Any) -> Any:
            arrays = handle(values, shardings, *args)
            for value, sharding in zip(values, shardings, strict=False):
                if not sharding.is_fully_addressable and is_local(value):
                    given.add(value, sharding)
            return arrays

        return shard

    for kind in list(handlers):
        if kind is cls:
            handlers[kind] = hearing(handlers[kind], lambda array: array.is_fully_addressable)
        elif issubclass(kind, np.ndarray | np.generic) or kind in given_types:
            handlers[kind] = hearing(handlers[kind], lambda value: True)

    def telling(make: Any) -> Any:
        # Under its own name: by that cloudpickle finds it, and takes no part of it along.
        @functools.wraps(make)
        def make_and_tell(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            for array in jax.tree.leaves(made):  # one array, or those of a pytree
                given.made(array)
            return made

        return make_and_tell

    for name, make in makers:
        told = telling(make)
        for module in (jax, jax_array):
            setattr(module, name, told)
