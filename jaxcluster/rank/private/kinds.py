"""The types of JAX's values, arrays of given types, and what jitted functions are made of."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import jax
from cloudpickle import cloudpickle


@dataclass(frozen=True)
class Kinds:
    """Types that JAX has no public names for."""

    array: type
    key: type
    jitted: type


@functools.cache
def kinds() -> Kinds:
    """They are (jax 0.10.2 and 0.12: ``array.ArrayImpl`` and ``random.prng.PRNGKeyArray``)."""
    from jax._src.array import ArrayImpl
    from jax._src.random import prng  # a package of its own since jax 0.10

    return Kinds(ArrayImpl, prng.PRNGKeyArray, type(jax.jit(len)))


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


def numpy_view(array: Any) -> Any:
    """What of an array numpy can hold: itself, or the numbers of a PRNG key array.

    JAX's ``key_data`` raises where a cell has set ``jax_no_tracing`` (jax 0.10.2 and 0.12:
    ``_base_array``).
    """
    return getattr(array, "_base_array", array)


def is_imported(value: Any) -> bool:
    """Whether an imported module has this very function or class under its name."""
    module = getattr(value, "__module__", None)
    found: Any = sys.modules.get(str(module)) if module != "__main__" else None
    for part in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is value


def number_class(cls: type, number: str) -> None:
    """Have cloudpickle know a class by this number, which it makes at random (cloudpickle 3)."""
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = number
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number] = cls


def info_of(function: Any) -> Any:
    """The options of a jitted function.

    JAX has no public way to ask (jax 0.10.2 and 0.12: ``_jit_info``, a ``PjitInfo``).

    Raises:
      AttributeError: the name has moved.
    """
    return function._jit_info


def jitted(function: Any, info: Any) -> Any:
    """A function, jitted with the options that another one had."""
    make, unspecified = pjit_names()

    def leaves(name: str) -> tuple[Any, ...]:
        kind = type(unspecified)
        return tuple(unspecified if type(one) is kind else one for one in getattr(info, name))

    known = {name: leaves(name) for name in ("in_shardings_leaves", "out_shardings_leaves")}
    return make(function, info._replace(**known))


def pjit_names() -> tuple[Any, Any]:
    """What makes a jitted function of its options, and what stands in them for no sharding.

    Raises:
      ImportError, AttributeError: a name has moved.
    """
    from jax._src import pjit
    from jax._src.sharding_impls import UNSPECIFIED

    return pjit._cpp_pjit, UNSPECIFIED
