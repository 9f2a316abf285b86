"""numpy arrays that share memory: saved once, and views of one piece of memory again.

A pickle copies each view. Here an array is a place in a *memory*: what the array at the end of its
``base`` chain covers. Of a memory that is saved which its arrays reach, once, however many they are
and whatever overlaps; of a huge one of which only a row is left, that row.
"""

from __future__ import annotations

import array
import ctypes
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SIMPLE = (np.ndarray, np.recarray, np.matrix)  # a place and a dtype are all that they have


class Section(bytearray):
    """What was read from a file: memory that belongs to the arrays on it, and to no variable."""


@dataclass
class Memory:
    """One piece of memory while it is being saved: where the arrays on it begin and end."""

    owner: Any
    low: int
    high: int

    def take(self) -> Any:
        """Its bytes, without a copy where it is an array's own."""
        size = self.high - self.low
        if isinstance(self.owner, np.ndarray):
            return memoryview((ctypes.c_ubyte * size).from_address(self.low)).cast("B")
        start = self.low - _address(np.frombuffer(self.owner, np.uint8))
        return memoryview(self.owner).cast("B")[start : start + size]


@dataclass(frozen=True)
class View:
    """An array as a place in a memory; ``offset`` is from the lowest address that was saved.

    ``is_owner``: the memory is this array's own.
    """

    memory: int
    offset: int
    kind: type
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    writeable: bool
    is_owner: bool


class Views:
    """The arrays that are met while variables are saved."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.memories: list[Memory] = []
        self._numbers: dict[int, int] = {}
        self._memory_numbers: dict[int, int] = {}
        self._places: list[tuple[int, int]] = []  # of each array: its memory and its address

    def number(self, obj: Any) -> int:
        """The number of an array; those on one piece of memory know of each other by it."""
        if id(obj) not in self._numbers:
            low, high = _reach(obj)
            owner = find_owner(obj)
            if id(owner) not in self._memory_numbers:
                self._memory_numbers[id(owner)] = len(self.memories)
                self.memories.append(Memory(owner, low, high))
            number = self._memory_numbers[id(owner)]
            memory = self.memories[number]
            memory.low, memory.high = min(memory.low, low), max(memory.high, high)
            self._places.append((number, _address(obj)))
            self._numbers[id(obj)] = len(self.arrays)
            self.arrays.append(obj)
        return self._numbers[id(obj)]

    def table(self) -> list[View]:
        """All of them, when no more will come."""
        return [
            View(
                number,
                address - self.memories[number].low,
                type(obj),
                obj.dtype,
                obj.shape,
                obj.strides,
                obj.flags.writeable,
                _is_owner(obj, self.memories[number].owner),
            )
            for obj, (number, address) in zip(self.arrays, self._places, strict=True)
        ]


def is_view(obj: Any) -> bool:
    """Whether an array is saved as a place in a memory. Objects in it are saved as objects.

    What a dtype has as metadata may be a cell's, which needs a pickle that can be lost alone.
    """
    is_place = type(obj) in SIMPLE and not obj.dtype.hasobject and obj.size > 0
    return is_place and not _has_metadata(obj.dtype)


def _has_metadata(dtype: Any) -> bool:
    fields = [field for field, *_ in (dtype.fields or {}).values()]
    return dtype.metadata is not None or any(map(_has_metadata, {dtype.base, *fields} - {dtype}))


def find_owner(obj: Any) -> Any:
    """Whose memory an array is on: an array's, or what has lent it one block of bytes."""
    while True:
        base = obj.base
        while isinstance(base, memoryview):
            base = base.obj
        if type(base).__name__ == "DummyArray":  # as_strided and what is made by it
            base = getattr(base, "base", None)
        if isinstance(base, np.ndarray):
            obj = base
        elif isinstance(base, bytearray | array.array | mmap.mmap):
            return base
        else:
            return obj


def _is_owner(obj: Any, owner: Any) -> bool:
    """Whether a memory is this array's own: all of a section is, as it was before it was saved."""
    return obj is owner or (
        isinstance(owner, Section) and obj.base is owner and obj.nbytes == len(owner)
    )


def _address(obj: Any) -> int:
    return int(obj.__array_interface__["data"][0])


def _reach(obj: Any) -> tuple[int, int]:
    """The addresses from the first byte of an array to past its last."""
    low = _address(obj)
    high = low + obj.itemsize
    for extent, stride in zip(obj.shape, obj.strides, strict=True):
        reach = (extent - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def content(obj: Any) -> tuple[bytes, Any]:
    """What is equal where arrays of one shape and dtype are, for a hash.

    Of one that meets its elements again and again (``np.broadcast_to``, windows), which may be
    larger than any memory, its strides and what they are over.
    """
    low, high = _reach(obj)
    if obj.nbytes > high - low:
        return str(obj.strides).encode(), (ctypes.c_ubyte * (high - low)).from_address(low)
    return b"", np.ascontiguousarray(obj).reshape(-1).view(np.uint8)


def make(view: View, section: Section, owner: Any) -> Any:
    """The array again, on what was read of its memory.

    Args:
      owner: the array whose own memory it was, made before, if it was saved as well.
    """
    for buffer in (owner, section):
        if buffer is not None:
            try:
                made: Any = np.ndarray.__new__(
                    view.kind, view.shape, view.dtype, buffer, view.offset, view.strides
                )
            except (ValueError, TypeError, BufferError):  # not contiguous; a dtype without buffers
                continue
            made.flags.writeable = view.writeable
            return made
    raise ValueError(f"an array of shape {view.shape} does not fit its memory")


def make_alone(view: View, section: Section) -> Any:
    """An array whose memory no other one is on, on memory of its own: it can be resized.

    None where it did not fill its memory from end to end.
    """
    size = len(section)
    if not view.is_owner or view.offset or size != _nbytes(view):
        return None
    try:
        # Without a buffer it takes memory, and keeps the order of the axes.
        made: Any = np.ndarray.__new__(view.kind, view.shape, view.dtype, None, 0, view.strides)
    except ValueError:  # there are gaps
        return None
    if _reach(made) != (_address(made), _address(made) + size):
        return None
    ctypes.memmove(_address(made), (ctypes.c_ubyte * size).from_buffer(section), size)
    made.flags.writeable = view.writeable
    return made


def _nbytes(view: View) -> int:
    nbytes: int = math.prod(view.shape) * view.dtype.itemsize
    return nbytes


# --------------------------------------------------------------------------- other kinds


def reduce_subclass(obj: Any) -> tuple[Any, ...] | None:
    """How to pickle an array of a user's class: a plain one of its memory, and its attributes.

    numpy's own way copies the memory and drops the attributes. None where the class has a way of
    its own, and for plain arrays.
    """
    cls = type(obj)
    if cls in SIMPLE or any(getattr(cls, name) is not way for name, way in _NUMPYS_WAY.items()):
        return None
    plain = np.ndarray.view(obj, np.ndarray)
    return make_of_class, (plain, cls), vars(obj), None, None, set_attributes


_NUMPYS_WAY = {n: getattr(np.ndarray, n) for n in ("__reduce__", "__reduce_ex__", "__setstate__")}


def make_of_class(array: Any, cls: type) -> Any:
    return array.view(cls)


def set_attributes(obj: Any, attributes: dict[str, Any]) -> None:
    vars(obj).update(attributes)


def reduce(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """How to pickle an array that is more than a place in a memory, or on a user's bytes."""
    if type(obj) is np.memmap:
        return _reduce_memmap(obj)
    if type(obj) is np.ma.MaskedArray:
        mask = obj.mask if obj.mask is not np.ma.nomask else False
        return make_masked, (obj.data, mask, obj.fill_value, obj.hardmask)
    if type(obj) in SIMPLE and obj.size:
        owner = find_owner(obj)
        if isinstance(owner, bytearray | array.array) and not isinstance(owner, Section):
            offset = _address(obj) - _address(np.frombuffer(owner, np.uint8))
            return make_on, (type(obj), obj.shape, obj.dtype, owner, offset, obj.strides)
        if obj.dtype.hasobject and owner is not obj and obj.dtype == getattr(owner, "dtype", None):
            first = (_address(obj) - _reach(owner)[0]) // obj.itemsize
            strides = tuple(stride // obj.itemsize for stride in obj.strides)
            return make_of_objects, (owner, first, obj.shape, strides)
    return None


def _reduce_memmap(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    owner = obj
    while type(owner.base) is np.memmap:
        owner = owner.base
    if not isinstance(owner.base, mmap.mmap) or owner.filename is None or owner.mode == "c":
        return None
    if owner is obj:
        mode = "r" if obj.mode == "r" else "r+"
        order = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
        return np.memmap, (str(obj.filename), obj.dtype, mode, obj.offset, obj.shape, order)
    return make_on, (
        np.memmap,
        obj.shape,
        obj.dtype,
        owner,
        _address(obj) - _address(owner),
        obj.strides,
    )


def make_on(kind: type, shape: Any, dtype: Any, owner: Any, offset: int, strides: Any) -> Any:
    return np.ndarray.__new__(kind, shape, dtype, owner, offset, strides)


def make_masked(data: Any, mask: Any, fill_value: Any, hard: bool) -> Any:
    return np.ma.MaskedArray(data, mask=mask, fill_value=fill_value, hard_mask=hard, copy=False)


def make_of_objects(owner: Any, first: int, shape: Any, strides: Any) -> Any:
    """A view of an array of objects, which lends its memory to nobody but its own kind."""
    flat = owner.ravel(order="K")[first:]
    bytes_apart = tuple(stride * owner.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_apart)
