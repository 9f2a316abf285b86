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

OWN = -1  # the rank itself


class Lost(Exception):
    """A value can't be saved, or not be made again, and why.

    One that stands in the place of such a value takes what would have been put into it.
    """

    def _ignore(self, *_: Any) -> None:
        pass

    append = extend = __setitem__ = _ignore
    __setstate__: Any = _ignore


class SavedArray(NamedTuple):
    """An array in a file.

    Attributes:
      same: equal where another rank has other parts of it: the name in which it was met first, its
        number there, what it is, and how it lies on which devices.
      shards: for each part of it the section that has it.
    """

    same: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    committed: bool
    spans: bool
    shards: Mapping[Bounds, int]


class ArraysToLoad:
    """Makes arrays, and the meshes that they lie on, of what is in files.

    Args:
      base: the rank whose file is read; shards that it lacks are taken from the others' files.
    """

    def __init__(self, files: Mapping[int, StateFile], base: int) -> None:
        self._saved: list[SavedArray] = files[base].about["arrays"]
        self._own, others = files[base], (file for rank, file in files.items() if rank != base)
        self._others = [(f, {one.same: one.shards for one in f.about["arrays"]}) for f in others]
        self._made: dict[int, Any] = {}

    def array(self, number: int, sharding: Any) -> Any:
        """The array that had this number, with a sharding.

        Raises:
          Lost: no file has a part of it.
        """
        if number not in self._made:
            saved = self._saved[number]
            shape, dtype = saved.shape, np.dtype(saved.dtype)
            part = functools.cache(functools.partial(self._part, saved))
            at: Any = lambda index: part(bounds(index, shape))  # noqa: E731
            with exactly():
                made = jax.make_array_from_callback(shape, sharding, at, dtype=dtype)
                self._made[number] = with_type(made, saved.weak_type, saved.committed)
        return self._made[number]

    def _part(self, saved: SavedArray, index: Bounds) -> Any:
        """A part of an array, put together of what files have of it."""
        pieces = {part: (section, self._own) for part, section in saved.shards.items()}
        for file, by_same in self._others if saved.spans else ():
            for part, section in by_same.get(saved.same, {}).items():
                pieces.setdefault(part, (section, file))

        def piece(part: Bounds) -> Any:
            section, file = pieces[part]
            return file.copy(section).view(np.dtype(saved.dtype)).reshape(shape_of(part))

        if index in pieces:
            return piece(index)
        values, left = np.empty(shape_of(index), saved.dtype), math.prod(shape_of(index))
        for part in pieces:
            both = zip(part, index, strict=True)
            meet = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in both)
            if all(start < stop for start, stop in meet):
                values[_within(meet, index)] = piece(part)[_within(meet, part)]
                left -= math.prod(shape_of(meet))
        if left:
            raise Lost("parts of it were on a rank that is gone")
        return values

    def mesh(self, at: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
        """The same mesh; one of all devices, where these are others, has as many as there are.

        The first axis that can takes the change, of those that are longer than 1.
        """
        then, total = self._own.about["devices"], math.prod(shape)
        if devices() == then or total != then[1]:
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


def devices() -> tuple[int, int]:
    """How many ranks and devices there are."""
    return jax.process_count(), jax.device_count()


def shape_of(index: Bounds) -> tuple[int, ...]:
    """The shape of a part of an array."""
    return tuple(stop - start for start, stop in index)


def _within(part: Bounds, whole: Bounds) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(part, whole, strict=True))


# ---------------------------------------------------------------------- devices and meshes


@functools.cache
def _place(device: Any) -> tuple[str, int, int]:
    """Where a device is: its platform, its rank, its number there."""
    rank = device.process_index
    peers = [one for one in device.client.devices() if one.process_index == rank]
    return device.platform, rank, peers.index(device)


def places(devices: Iterable[Any]) -> list[tuple[str, int, int]]:
    """Where devices are. If all are the rank's own, another rank has its own in their place."""
    found = [_place(device) for device in devices]
    is_own = all(rank == jax.process_index() for _, rank, _ in found)
    return [(platform, OWN if is_own else rank, number) for platform, rank, number in found]


def device_at(platform: str, rank: int, number: int) -> Any:
    """The device that is at a place now."""
    rank = jax.process_index() if rank == OWN else rank
    try:
        return [one for one in jax.devices(platform) if one.process_index == rank][number]
    except (RuntimeError, IndexError):
        raise Lost(f"there is no device {number} of rank {rank} any more") from None


@functools.cache
def mesh_id(mesh: Any) -> Any:
    """What stands for a mesh in a pickle."""
    devices = mesh.devices
    return "mesh", places(devices.flat), devices.shape, mesh.axis_names, mesh.axis_types
