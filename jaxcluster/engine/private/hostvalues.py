"""Where values of one process become an array of several, and where such an array is read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcluster.engine.private import is_there

if TYPE_CHECKING:
    from jaxcluster.engine.journal import Journal

MAKERS = (
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
)
_heard: list[Any] = []


def hear_host_values(journal: Journal) -> bool:
    """Have the journal's ``host_values`` told of them (jax 0.10.2 and 0.12).

    What is no array that spans a program's devices comes to ``pxla.shard_arg_handlers``, on JAX's
    fast path too. Whatever reads an array on the host, by ``float``, ``print`` or numpy, does so by
    ``ArrayImpl._value``. Only arrays that span processes are told of; for others it costs 0.2 us.
    Of an array with one part here numpy would take the memory itself, by ``__buffer__``, which so
    costs 3 us of each array. Before Python 3.12 that can't be heard.

    Returns:
      False where a private name has moved: then nothing is told.
    """
    if not is_there(can_hear):
        return False
    import jax
    from jax._src import array as jax_array
    from jax._src import literals
    from jax._src.interpreters import pxla

    from jaxcluster.engine import usercode

    heard = journal.host_values
    handlers: Any = pxla.shard_arg_handlers
    cls: Any = jax_array.ArrayImpl
    own_value = cls._value.fget
    makers = [(name, getattr(jax_array, name)) for name in MAKERS]
    if _heard:
        return _heard[0] is heard
    _heard.append(heard)

    def hearing(handle: Any, is_local: Any) -> Any:
        def shard(values: Any, shardings: Any, *args: Any) -> Any:
            arrays = handle(values, shardings, *args)
            for value, sharding in zip(values, shardings, strict=False):
                if sharding.is_fully_addressable:
                    continue
                if is_local(value):
                    heard.given(value, sharding)
                else:
                    heard.held(value)
            return arrays

        return shard

    for kind in list(handlers):
        if kind is cls:
            handlers[kind] = hearing(handlers[kind], lambda array: array.is_fully_addressable)
        elif issubclass(kind, np.ndarray | np.generic) or kind in literals.typed_scalar_types:
            # Python's own numbers become arrays of numpy's.
            handlers[kind] = hearing(handlers[kind], lambda value: True)

    def value(array: Any) -> Any:
        if journal.interrupted:
            journal.raise_if_interrupted()
        values = own_value(array)
        if not array.is_fully_addressable:
            heard.read(array, values)
        return values

    cls._value = property(value)
    if (own_buffer := vars(cls).get("__buffer__")) is not None:

        def buffer(array: Any, flags: int) -> memoryview:
            if array.is_fully_addressable:
                view: memoryview = own_buffer(array, flags)  # may wait
                if not journal.interrupted:
                    return view
            raise BufferError("its value is asked for then")

        # Numpy passes over what it raises: an interrupt is raised where the value is asked for.
        usercode.WHOLE.add(buffer.__code__)
        cls.__buffer__ = buffer

    def telling(make: Any) -> Any:
        # Under its own name: by that cloudpickle finds it, and takes no part of it along.
        @functools.wraps(make)
        def make_and_tell(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            for array in jax.tree.leaves(made):  # one array, or those of a pytree
                heard.made(array)
            return made

        return make_and_tell

    for name, make in makers:
        told = telling(make)
        for module in (jax, jax_array):
            setattr(module, name, told)
    return True


def can_hear() -> bool:
    """Whether JAX takes in values, and reads arrays, where it is looked for.

    Raises:
      ImportError, AttributeError: it has none of these names.
    """
    from jax._src import array, literals
    from jax._src.interpreters import pxla

    makes = all(hasattr(array, name) for name in MAKERS)
    takes = {np.ndarray, literals.TypedNdArray, array.ArrayImpl} <= set(pxla.shard_arg_handlers)
    reads: Any = array.ArrayImpl
    return makes and takes and callable(reads._value.fget) and bool(literals.typed_scalar_types)
