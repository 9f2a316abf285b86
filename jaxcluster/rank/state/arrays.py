"""Arrays in a file: each shard's bytes once, and arrays that are made of them again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import READY_POLL_S, bounds, devices_hash, host_values, is_ready
from jaxcluster.engine.private.arrays import exactly, with_type
from jaxcluster.rank.state.file import Part, StateFile

READY_S = 5.0  # in which all arrays of a save have to be computed
Index = tuple[tuple[int, int], ...]


class CannotSave(Exception):
    """A value can't be saved, and why."""


class CannotLoad(Exception):
    """A value can't be made again, and why."""


@dataclass(frozen=True)
class SavedArray:
    """An array in a file.

    Attributes:
      place: the name in whose section it was met first, and its number there. By it ranks find
        the same array in each other's files.
      on: equal where it lies on the same devices in the same way.
      shards: the sections that have its parts, and which parts these are.
    """

    place: tuple[str, int]
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    committed: bool
    spans: bool
    on: str
    shards: tuple[tuple[Index, int], ...]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> SavedArray:
        """One that JSON has had."""
        shards = tuple((_index(index), section) for index, section in found["shards"])
        place, shape = tuple(found["place"]), tuple(found["shape"])
        return cls(**{**found, "place": place, "shape": shape, "shards": shards})


def _index(found: Sequence[Sequence[int]]) -> Index:
    return tuple((start, stop) for start, stop in found)


class ArraysToSave:
    """The arrays of one save, in the order in which they are met.

    Attributes:
      parts: the raw sections that they need; others add their own.
      name: the name that is being saved.
    """

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.name = ""
        self.described: list[SavedArray] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # else another one may get the id of one that is gone
        self._sections: dict[Any, int] = {}  # of buffers: arrays may share one
        self._met = ("", 0)
        self._deadline: float | None = None

    def number(self, array: Any) -> int:
        """The number of an array, which is added if it is new.

        Raises:
          CannotSave: it has no values, or not soon.
        """
        if (known := self._numbers.get(id(array))) is not None:
            return known
        self._wait_ready(array)
        shards: dict[Index, int] = {}
        for shard in array.addressable_shards:
            index = _index(bounds(shard.index, array.shape))
            if index not in shards:
                shards[index] = self._section(shard.data)
        name, met = self._met
        self._met = (self.name, met + 1 if name == self.name else 0)
        saved = SavedArray(
            place=self._met,
            shape=tuple(array.shape),
            dtype=str(array.dtype),
            weak_type=bool(getattr(array, "weak_type", False)),
            committed=bool(getattr(array, "committed", True)),
            spans=not array.is_fully_addressable,
            on=f"{devices_hash(array)} {getattr(array.sharding, 'spec', '')}",
            shards=tuple(shards.items()),
        )
        self.described.append(saved)
        self._kept.append(array)
        self._numbers[id(array)] = len(self.described) - 1
        return len(self.described) - 1

    def _wait_ready(self, array: Any) -> None:
        if array.is_deleted():
            raise CannotSave("it was deleted or donated")
        while not is_ready(array):
            if self._deadline is None:
                self._deadline = time.monotonic() + READY_S
            if time.monotonic() > self._deadline:
                raise CannotSave("still being computed")
            time.sleep(READY_POLL_S)
        array.block_until_ready()  # raises if its computation has failed

    def _section(self, data: Any) -> int:
        key: Any
        try:
            key = data.unsafe_buffer_pointer(), data.nbytes, next(iter(data.devices()))
        except Exception:  # of this kind of device
            key = id(data)
        if key not in self._sections:
            self._sections[key] = len(self.parts)
            self.parts.append(Part(data.nbytes, lambda: host_values(data)))
            self._kept.append(data)
        return self._sections[key]


class ArraysToLoad:
    """Makes arrays of what is in files.

    Args:
      base: the rank whose file is read; shards that it lacks are taken from the others' files.
    """

    def __init__(self, files: Mapping[int, StateFile], base: int) -> None:
        self._files = [files[base], *(file for rank, file in files.items() if rank != base)]
        self._saved = [SavedArray.parse(one) for one in files[base].about["arrays"]]
        self._by_place: list[dict[tuple[str, int], SavedArray]] = []
        self._made: dict[int, Any] = {}
        self._pieces: dict[Any, Any] = {}
        self.met: list[SavedArray] = []

    def array(self, number: int, sharding: Any) -> Any:
        """The array that had this number, with a sharding.

        Raises:
          CannotLoad: no file has a part of it.
        """
        self.met.append(self._saved[number])
        if number not in self._made:
            self._made[number] = self._make(self._saved[number], sharding)
        return self._made[number]

    def _make(self, saved: SavedArray, sharding: Any) -> Any:
        import jax

        with exactly():
            pieces = [
                self._piece(saved, _index(bounds(index, saved.shape)), device, sharding.memory_kind)
                for device, index in sharding.addressable_devices_indices_map(saved.shape).items()
            ]
            dtype = np.dtype(saved.dtype)
            made = jax.make_array_from_single_device_arrays(
                saved.shape, sharding, pieces, dtype=dtype
            )
            return with_type(made, saved.weak_type, saved.committed)

    def _piece(self, saved: SavedArray, index: Index, device: Any, memory: str | None) -> Any:
        import jax

        file, section = self._find(saved, index)
        shape = tuple(stop - start for start, stop in index)
        source: Any = (saved.place, index) if file is None else (id(file), section)
        key = source, shape, saved.dtype, device, memory
        if key not in self._pieces:
            if file is None:
                values = self._put_together(saved, index)
            else:
                values = file.copy(section).view(np.dtype(saved.dtype)).reshape(shape)
            where = jax.sharding.SingleDeviceSharding(device, memory_kind=memory)
            self._pieces[key] = jax.device_put(values, where)
        return self._pieces[key]

    def _find(self, saved: SavedArray, index: Index) -> tuple[StateFile | None, int]:
        """The file and section that have just this part of an array; None if none has."""
        for file, shards in self._held(saved):
            for held, section in shards:
                if held == index:
                    return file, section
        return None, 0

    def _put_together(self, saved: SavedArray, index: Index) -> np.ndarray[Any, Any]:
        """A part of an array from all parts of it that ranks had."""
        dtype = np.dtype(saved.dtype)
        whole = np.empty([stop - start for start, stop in index], dtype)
        taken: set[Index] = set()
        for file, shards in self._held(saved):
            for held, section in shards:
                meet = tuple(
                    (max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, index, strict=True)
                )
                if meet in taken or any(start >= stop for start, stop in meet):
                    continue
                taken.add(meet)
                part = file.copy(section).view(dtype)
                part = part.reshape([stop - start for start, stop in held])
                whole[_within(meet, index)] = part[_within(meet, held)]
        if sum(math.prod(stop - start for start, stop in meet) for meet in taken) != whole.size:
            raise CannotLoad("parts of it were on a rank that is gone")
        return whole

    def _held(self, saved: SavedArray) -> Iterator[tuple[StateFile, tuple[tuple[Index, int], ...]]]:
        """The parts of an array that files have."""
        yield self._files[0], saved.shards
        for file, by_place in zip(self._files[1:], self._others(), strict=True):
            other = by_place.get(saved.place)
            if saved.spans and other is not None and _is_same(other, saved):
                yield file, other.shards

    def _others(self) -> list[dict[tuple[str, int], SavedArray]]:
        if not self._by_place:
            for file in self._files[1:]:
                found = map(SavedArray.parse, file.about["arrays"])
                self._by_place.append({one.place: one for one in found})
        return self._by_place


def _is_same(one: SavedArray, other: SavedArray) -> bool:
    return (one.shape, one.dtype, one.on) == (other.shape, other.dtype, other.on)


def _within(part: Index, whole: Index) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(part, whole, strict=True))
