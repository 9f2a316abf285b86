"""Which names have equal values on several ranks, by what these have saved."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import spans_processes
from jaxcluster.engine.digests import is_imported
from jaxcluster.engine.state import memory
from jaxcluster.engine.state.saved import Saved, SavedArray, SavedPickle


def digests_of(
    names: Mapping[str, SavedPickle], saved: Saved, section: Callable[[int], Any]
) -> dict[str, str]:
    """For each of these names what is equal on ranks where it has equal values.

    Args:
      section: the bytes of a section, by its number.
    """
    views: list[memory.View] = pickle.loads(section(saved.views))
    return {name: _digest(one, saved, section, views) for name, one in names.items()}


def _digest(
    one: SavedPickle,
    saved: Saved,
    section: Callable[[int], Any],
    views: Sequence[memory.View],
) -> str:
    digest = hashlib.blake2b(section(one.section), digest_size=12)
    for number in one.buffers:
        digest.update(section(number))
    for view in (views[n] for n in one.views):
        digest.update(f"{view.shape} {view.dtype}".encode())
        data = section(saved.memories[view.memory])
        values: Any = np.ndarray(view.shape, view.dtype, data, view.offset, view.strides)
        for part in memory.content(values):
            digest.update(part)
    for array in (saved.arrays[n] for n in one.arrays):
        digest.update(array_digest(array, section))
    return digest.hexdigest()


def array_digest(array: SavedArray, section: Callable[[int], Any]) -> bytes:
    """Of one that spans processes its metadata alone: each has its own part of it."""
    digest = hashlib.blake2b(f"{array.shape} {array.dtype} {array.key_impl}".encode())
    if not array.local:
        digest.update(array.text.encode())
    for where, number in array.shards if array.local else ():
        digest.update(str(where).encode())
        digest.update(section(number))
    return digest.digest()


def is_common(value: Any, depth: int = 8) -> bool:
    """Whether a value says nothing of the rank that holds it.

    So modules, whatever is imported from them, meshes and shardings of all processes, arrays that
    span processes, and functions, classes and containers that hold nothing else. They shape
    programs: were they another rank's own after all, it would show as a divergence, which a number
    of its own would not.
    """
    import jax

    if depth < 0:
        return False
    held: list[Any]
    if value is None or isinstance(value, (ModuleType, jax.sharding.PartitionSpec)):
        return True
    if isinstance(value, jax.sharding.Mesh):
        return _on_all_processes(value.devices.flat)
    if isinstance(value, jax.sharding.Sharding):
        return _on_all_processes(value.device_set)
    if spans_processes(value):
        return True
    if type(value) in (list, tuple, dict):
        return all(is_common(v, depth - 1) for v in _inside(value))
    if callable(value) and is_imported(value):
        return True
    if isinstance(value, FunctionType):
        cells = value.__closure__ or ()
        held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        try:
            held += [cell.cell_contents for cell in cells]
        except ValueError:  # one that is still empty
            return False
    elif isinstance(value, (staticmethod, classmethod)):
        held = [value.__func__]
    elif isinstance(value, property):
        held = [value.fget, value.fset, value.fdel]
    elif isinstance(value, type):
        held = [v for name, v in vars(value).items() if not name.startswith("__")]
        held += [b for b in value.__bases__ if b is not object]
    elif type(value).__module__.startswith("jaxlib") and hasattr(value, "__wrapped__"):
        held = [value.__wrapped__]  # a jitted function
    else:
        return False
    return all(is_common(one, depth - 1) for one in held)


def _on_all_processes(devices: Iterable[Any]) -> bool:
    import jax

    return bool(len({device.process_index for device in devices}) == jax.process_count())


def _inside(value: Any) -> tuple[Any, ...]:
    """What a container holds, but for a dict's names."""
    if not isinstance(value, dict):
        return tuple(value)
    return (*value.values(), *(key for key in value if type(key) is not str))
