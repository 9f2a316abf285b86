"""The names of a rank that are arrays or hold arrays, for a list that a user looks at.

Answered on a side thread while the main thread may run a cell: nothing is computed, no shard is
touched, and it ends within about two seconds whatever there is.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.arrays import check_leaves, is_array, is_living, shorten

TIME_S = 1.5  # past it containers are not entered any more
LONG = 10_000  # a list that begins with so many plain values is not looked through for an array
PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST = 1000  # variables that are told of


def variables(namespace: Mapping[str, Any]) -> list[wire.VariableInfo]:
    """What a namespace has of arrays and of pytrees with arrays, in the order of its names."""
    until = time.monotonic() + TIME_S
    found = []
    for name, value in namespace.items():
        if name.startswith("_") or name in ("In", "Out") or issubclass(type(value), type):
            continue
        if not is_array(value) and time.monotonic() > until:
            continue
        try:
            arrays = list(arrays_in(value))
        except Exception:  # a user's object that raises whatever it is asked hides no others
            continue
        if arrays:
            found.append(_describe(name, value, arrays))
        if len(found) == MOST:
            break
    return found


def arrays_in(value: Any) -> Iterator[Any]:
    """The living arrays in a pytree, and in dataclasses that are not pytrees."""
    import jax

    if isinstance(value, list | tuple) and all(isinstance(v, PLAIN) for v in value[:LONG]):
        return
    try:
        check_leaves(value)
        leaves = jax.tree_util.tree_leaves(value)
    except Exception:  # a list that holds itself; a user's class that can't be taken apart
        return
    for leaf in leaves:
        if is_array(leaf):
            if is_living(leaf):
                yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                part = getattr(leaf, field.name, None)
                if not isinstance(part, PLAIN):
                    yield from arrays_in(part)


def _describe(name: str, value: Any, arrays: list[Any]) -> wire.VariableInfo:
    # Arrays that look alike are described once: a model has thousands of a few kinds.
    alike = Counter((array.shape, array.dtype, array.sharding) for array in arrays)
    held: Counter[int] = Counter()
    nbytes = 0
    for (shape, dtype, sharding), count in alike.items():
        nbytes += count * math.prod(shape) * dtype.itemsize
        part = count * math.prod(sharding.shard_shape(shape)) * dtype.itemsize
        for device in sharding.device_set:
            held[device.id] += part
    one = arrays[0] if is_array(value) else None
    return wire.VariableInfo(
        name=name,
        type="array" if one is not None else _kind(value, len(arrays)),
        shape=list(one.shape) if one is not None else None,
        dtype=_common(str(dtype) for _, dtype, _ in alike),
        sharding=_common(_spell(sharding) for _, _, sharding in alike),
        nbytes=nbytes,
        nbytes_per_device=max(held.values(), default=0),
    )


def _kind(value: Any, count: int) -> str:
    return f"{type(value).__name__} of {count} array{'s' if count != 1 else ''}"


def _common(words: Iterator[str]) -> str:
    """The one word that all share, or how many there are."""
    different = list(dict.fromkeys(words))
    return (
        different[0]
        if len(different) == 1
        else ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")
    )


def _spell(sharding: Any) -> str:
    """``P('i', None)``, ``one device``, or what else it is called."""
    spec = getattr(sharding, "spec", None)
    if spec is not None:
        return shorten(str(spec)).replace("PartitionSpec(", "P(", 1)
    kind = type(sharding).__name__
    return "one device" if kind == "SingleDeviceSharding" else kind
