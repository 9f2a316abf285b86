"""Arrays in a file: each shard's bytes once, and arrays that are made of them again.

Devices and meshes are where they were, by their numbers.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jaxcluster.engine.arrays import READY_POLL_S, bounds, devices_hash, host_values, is_ready
from jaxcluster.engine.private.arrays import exactly, with_type
from jaxcluster.rank.state.file import Part, StateFile

WHY_CHARS = 200
OWN = -1  # the rank itself
READY_S = 3.0  # in which all arrays of a save have to be computed
Index: TypeAlias = tuple[tuple[int, int], ...]
Fitted: TypeAlias = Mapping[tuple[tuple[str, ...], tuple[int, ...]], Sequence[int]]


class CannotSave(Exception):
    """A value can't be saved, and why."""


class CannotLoad(Exception):
    """A value can't be made again, and why."""


class Gap:
    """Stands for a value that could not be made."""

    def __init__(self, why: str) -> None:
        self.why = why


def why(error: Exception) -> str:
    """What is told of an error, in a line."""
    told = str(error) or type(error).__name__
    return told if len(told) <= WHY_CHARS else f"{told[:WHY_CHARS]} ..."


@dataclass(frozen=True)
class SavedArray:
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
    shards: Mapping[Index, int]


class ArraysToSave:
    """The arrays of one save, in the order in which they are met.

    Attributes:
      name: the name that is being saved.
      described: the arrays, by their numbers.
      parts: the raw sections that they need; others add their own.

    Args:
      until: when all have to be computed; empty as long as all were.
    """

    def __init__(self, parts: list[Part], until: list[float]) -> None:
        self.name, self.parts, self._until = "", parts, until
        self.described: list[SavedArray] = []
        self._numbers: dict[int, tuple[int, Any]] = {}  # with the array, whose id stays its own
        self._sections: dict[Any, int] = {}  # of buffers: arrays may share one
        self._met: Counter[str] = Counter()

    def number(self, array: Any) -> int:
        """The number of an array, which is added if it is new.

        Raises:
          CannotSave: it has no values, or not soon.
        """
        if id(array) in self._numbers:
            return self._numbers[id(array)][0]
        self._wait_ready(array)
        shards: dict[Index, int] = {}
        for shard in array.addressable_shards:
            if (index := index_of(shard.index, array.shape)) not in shards:
                shards[index] = self._section(shard.data)
        what = array.shape, str(array.dtype)
        on = devices_hash(array), getattr(array.sharding, "spec", "")
        same = repr((self.name, self._met[self.name], what, on))
        kind = bool(array.weak_type), bool(array.committed), not array.is_fully_addressable
        self._met[self.name] += 1
        self._numbers[id(array)] = len(self.described), array
        self.described.append(SavedArray(same, *what, *kind, shards))
        return len(self.described) - 1

    def _wait_ready(self, array: Any) -> None:
        if array.is_deleted():
            raise CannotSave("it was deleted or donated")
        while not is_ready(array):
            self._until[:] = self._until or [time.monotonic() + READY_S]
            if time.monotonic() > self._until[0]:
                raise CannotSave("still being computed")
            time.sleep(READY_POLL_S)
        array.block_until_ready()  # raises if its computation has failed

    def _section(self, data: Any) -> int:
        key: Any = id(data)
        with contextlib.suppress(Exception):  # some kinds of devices don't tell
            key = data.unsafe_buffer_pointer(), data.nbytes, data.device
        if key not in self._sections:
            self._sections[key] = len(self.parts)
            self.parts.append(Part(data.nbytes, lambda: host_values(data)))
        return self._sections[key]


class ArraysToLoad:
    """Makes arrays of what is in files.

    Args:
      base: the rank whose file is read; shards that it lacks are taken from the others' files.
    """

    def __init__(self, files: Mapping[int, StateFile], base: int) -> None:
        self._saved: list[SavedArray] = files[base].about["arrays"]
        self._files = [files[base], *(file for rank, file in files.items() if rank != base)]
        self._by_same = [{one.same: one.shards for one in f.about["arrays"]} for f in self._files]
        self._made: dict[int, Any] = {}

    def array(self, number: int, sharding: Any) -> Any:
        """The array that had this number, with a sharding.

        Raises:
          CannotLoad: no file has a part of it.
        """
        import jax

        if number not in self._made:
            saved = self._saved[number]
            shape, dtype = saved.shape, np.dtype(saved.dtype)
            part = functools.cache(functools.partial(self._part, saved, dtype))
            at: Any = lambda index: part(index_of(index, shape))  # noqa: E731
            with exactly():
                made = jax.make_array_from_callback(shape, sharding, at, dtype=dtype)
                self._made[number] = with_type(made, saved.weak_type, saved.committed)
        return self._made[number]

    def _part(self, saved: SavedArray, dtype: Any, index: Index) -> Any:
        """A part of an array, put together of what files have of it."""
        shards = [saved.shards, *(by.get(saved.same, {}) for by in self._by_same[1:])]
        found = list(zip(shards, self._files, strict=True))[: None if saved.spans else 1]
        for own, file in found:
            if index in own:
                return file.copy(own[index]).view(dtype).reshape(shape_of(index))
        values, left = np.empty(shape_of(index), dtype), math.prod(shape_of(index))
        for held, (section, file) in {
            held: (section, file) for own, file in found for held, section in own.items()
        }.items():
            both = zip(held, index, strict=True)
            meet = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in both)
            if all(start < stop for start, stop in meet):
                piece = file.copy(section).view(dtype).reshape(shape_of(held))
                values[_within(meet, index)] = piece[_within(meet, held)]
                left -= math.prod(shape_of(meet))
        if left:
            raise CannotLoad("parts of it were on a rank that is gone")
        return values


def index_of(index: Sequence[slice], shape: Sequence[int]) -> Index:
    """A shard's index with all bounds written out."""
    return tuple((start, stop) for start, stop in bounds(index, shape))


def shape_of(index: Index) -> tuple[int, ...]:
    """The shape of a part of an array."""
    return tuple(stop - start for start, stop in index)


def _within(part: Index, whole: Index) -> tuple[slice, ...]:
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
    import jax

    found = [_place(device) for device in devices]
    is_own = all(rank == jax.process_index() for _, rank, _ in found)
    return [(platform, OWN if is_own else rank, number) for platform, rank, number in found]


def device_at(platform: str, rank: int, number: int) -> Any:
    import jax

    rank = jax.process_index() if rank == OWN else rank
    try:
        return [one for one in jax.devices(platform) if one.process_index == rank][number]
    except (RuntimeError, IndexError):
        raise CannotLoad(f"there is no device {number} of rank {rank} any more") from None


@functools.cache
def mesh_id(mesh: Any) -> Any:
    devices = mesh.devices
    return "mesh", places(devices.flat), devices.shape, mesh.axis_names, mesh.axis_types


def mesh_at(fitted: Fitted, at: Any, shape: Sequence[int], names: Any, types: Any) -> Any:
    """The same mesh; for another number of ranks the one that was fitted."""
    import jax

    if (new := fitted.get((tuple(map(str, names)), tuple(shape)))) == []:
        told = ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
        raise CannotLoad(f"its mesh {told} does not fit {len(jax.devices())} devices")
    devices = [device_at(*place) for place in at] if new is None else jax.devices(at[0][0])
    return jax.sharding.Mesh(np.array(devices).reshape(new or shape), names, axis_types=types)
