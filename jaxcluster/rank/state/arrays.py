"""Arrays in a file: each shard's bytes once, and arrays that are made of them again.

Devices and meshes are where they were, by their numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcluster.rank.arrays import Bounds, bounds, exactly
from jaxcluster.rank.private.kinds import with_type
from jaxcluster.rank.state.file import StateFile


class Lost(Exception):
    """A value can't be saved, or not be made again, and why; it stands in the value's place."""


class SavedArray(NamedTuple):
    """An array in a file; ``shards`` has for each part of it the section with its bytes."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    committed: bool
    spans: bool
    shards: Mapping[Bounds, int]


def make_array(files: Sequence[StateFile], key: str, sharding: Any) -> Any:
    """The array that has this key in files, with a sharding.

    Args:
      files: the first one's names are loaded; shards that it lacks are taken from the others.

    Raises:
      Lost: no file has a part of it.
    """
    saved: SavedArray = files[0].about["arrays"][key]
    pieces = {
        part: (file, section)
        for file in reversed(files if saved.spans else files[:1])
        if key in file.about["arrays"]
        for part, section in file.about["arrays"][key].shards.items()
    }

    def piece(part: Bounds) -> Any:
        file, section = pieces[part]
        return file.copy(section).view(np.dtype(saved.dtype)).reshape(_shape(part))

    @functools.cache
    def values_in(index: Bounds) -> Any:
        if index in pieces:
            return piece(index)
        values, left = np.empty(_shape(index), saved.dtype), math.prod(_shape(index))
        for part in pieces:
            both = zip(part, index, strict=True)
            meet = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in both)
            if all(start < stop for start, stop in meet):
                values[_within(meet, index)] = piece(part)[_within(meet, part)]
                left -= math.prod(_shape(meet))
        if left:
            raise Lost("parts of it were on a rank that is gone")
        return values

    with exactly():
        at: Any = lambda index: values_in(bounds(index, saved.shape))  # noqa: E731
        dtype = np.dtype(saved.dtype)
        made = jax.make_array_from_callback(saved.shape, sharding, at, dtype=dtype)
        return with_type(made, saved.weak_type, saved.committed)


def _shape(index: Bounds) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in index)


def _within(part: Bounds, whole: Bounds) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(part, whole, strict=True))


# ---------------------------------------------------------------------- devices and meshes


def places(devices: Iterable[Any]) -> list[tuple[str, bool, int]]:
    """The places of devices. If all are the rank's own, another rank has its own in their place."""
    found = [*devices]
    is_own = all(one.process_index == jax.process_index() for one in found)
    return [(one.platform, is_own, _there(one.platform, is_own).index(one)) for one in found]


def device_at(platform: str, is_own: bool, number: int) -> Any:
    """The device that is at a place now."""
    try:
        return _there(platform, is_own)[number]
    except (RuntimeError, IndexError):
        raise Lost(f"there is no device {number} any more") from None


@functools.cache
def _there(platform: str, is_own: bool) -> list[Any]:
    return jax.local_devices(backend=platform) if is_own else jax.devices(platform)


def reduce_mesh(mesh: Any) -> Any:
    """A mesh as a pickle holds it."""
    num_devices, devices = (jax.process_count(), jax.device_count()), mesh.devices
    how = devices.shape, mesh.axis_names, mesh.axis_types
    return make_mesh, (num_devices, places(devices.flat), *how)


def make_mesh(then: Any, at: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
    """The same mesh; one of all devices, where these are others, has as many as there are.

    The first axis that can takes the change, of those that are longer than 1.
    """
    total = math.prod(shape)
    if (jax.process_count(), jax.device_count()) == then or total != then[1]:
        there = [device_at(*place) for place in at]
    else:
        there, sizes = jax.devices(at[0][0]), [*shape]
        fits = [len(there) * size % total == 0 and size > (total > 1) for size in shape]
        if not any(fits):
            told = ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
            raise Lost(f"its mesh {told} does not fit {len(there)} devices")
        axis = fits.index(True)
        sizes[axis] = len(there) * sizes[axis] // total
        shape = sizes
    return jax.sharding.Mesh(np.array(there).reshape(shape), names, axis_types=types)
