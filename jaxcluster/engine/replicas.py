"""Copies that should be equal on all ranks, hashed here and compared by the notebook.

Processes may launch the same programs with different values: what each of them gives to a program
as its own copy (a numpy array, a number, an array of its own devices), or puts into a replicated
array. JAX compares them in ``device_put`` alone. So a cell notes a hash of what it has given and of
what it has read of replicated arrays, by line, and the reply brings it. Nothing is launched for it,
and no rank waits for another.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    host_values,
    is_array,
    is_ready,
    read_numbers,
)

WHOLE_NBYTES = 1 << 20  # of a copy that is hashed whole, some 1 ms; of a larger one as much
BLOCKS = 16  # that this is taken in, evenly spaced, the first and the last among them
LEAST_NBYTES = 1 << 12  # of a copy, when there is no room left
PLACE_NBYTES = 1 << 22  # that a line of a cell hashes
LOOK_NBYTES = 1 << 24  # that a look at a variable does
MOST_PLACES = 64  # lines of a cell that are told
MOST_LEAVES = 256  # of a pytree

Bounds = tuple[tuple[int, int], ...]


class Room:
    """How many bytes may be hashed yet.

    One is for values that all ranks have, in one order: what a rank alone has, or has not computed
    yet, would leave it less than the others, and equal copies would have other hashes.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def take(self, nbytes: int) -> int:
        """For a value of so many bytes: how many of them are hashed at most."""
        limit = max(LEAST_NBYTES, min(WHOLE_NBYTES, self.nbytes))
        self.nbytes -= min(nbytes, limit)
        return limit

    def hash(self, values: np.ndarray[Any, Any]) -> str:
        return hash_of(values, self.take(values.nbytes))


def feed(digest: Any, values: np.ndarray[Any, Any], limit: int) -> None:
    """Add the bytes to a hash, or blocks of them where they are more than this."""
    nbytes = values.nbytes
    if nbytes <= limit:
        digest.update(values.tobytes())
        return
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    size = limit // BLOCKS
    for start in np.linspace(0, nbytes - size, BLOCKS, dtype=np.int64):
        digest.update(flat[start : start + size].data)


def hash_of(values: np.ndarray[Any, Any], limit: int) -> str:
    digest = _new_hash()
    feed(digest, values, limit)
    return str(digest.hexdigest())


def _new_hash() -> Any:
    return hashlib.blake2b(digest_size=8)


@functools.lru_cache(1024)
def copied_parts(sharding: Any, shape: tuple[int, ...]) -> dict[Bounds, str]:
    """The parts of an array of which several processes have a copy -> these processes."""
    holders: dict[Bounds, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        part = tuple((a, b) for a, b in bounds(index, shape))
        holders.setdefault(part, set()).add(device.process_index)
    return {
        part: ",".join(map(str, sorted(processes)))
        for part, processes in holders.items()
        if len(processes) > 1
    }


def _is_cheap(array: Any) -> bool:
    """Whether its values are at hand, or few: from another device all of a shard is fetched."""
    shards = array.addressable_shards
    return not shards or shards[0].device.platform == "cpu" or shards[0].data.nbytes <= WHOLE_NBYTES


@functools.lru_cache(1024)
def _processes_of(sharding: Any) -> str:
    return ",".join(map(str, sorted({device.process_index for device in sharding.device_set})))


def hashes(leaves: Iterable[tuple[int, Any]], room: Room) -> list[list[Any]]:
    """[leaf, part, hash] of each part of these arrays of which other processes have a copy too.

    Of what is still being computed nothing is told: nobody waits for it. Nor of what has failed.
    """
    found: list[list[Any]] = []
    for number, leaf in leaves:
        if len(found) >= MOST_LEAVES:
            break
        array = base_array(leaf)
        if array.is_fully_addressable:
            continue
        parts = dict(copied_parts(array.sharding, array.shape))
        if not parts:
            continue
        # As much on each rank, however many parts are there, and whether they are computed.
        limit = max(LEAST_NBYTES, room.take(array.nbytes) // len(parts))
        if not is_ready(array) or not _is_cheap(array):
            continue
        for shard in array.addressable_shards:
            part = tuple((a, b) for a, b in bounds(shard.index[: array.ndim], array.shape))
            if parts.pop(part, None):
                with contextlib.suppress(RuntimeError):
                    digest = hash_of(host_values(shard.data), limit)
                    found.append([number, [list(b) for b in part], digest])
    return found


@dataclass
class _Noted:
    count: int = 0
    digest: Any = field(default_factory=_new_hash)
    room: Room = field(default_factory=lambda: Room(PLACE_NBYTES))


_Place = tuple[int | None, int | None]
_Key = tuple[str, _Place, Any, tuple[int, ...], Any]


class HostValues:
    """What the running cell has given to programs, or read of arrays, as a copy of its own.

    Of the main thread alone: of others nobody knows which of them belong together.

    Args:
      place: tells the cell and line that the caller is in.

    Attributes:
      announced: in strict mode: what has been given to the launch that comes, as processes, and
        dtype, shape and hash. None: nobody asks.
    """

    def __init__(self, place: Callable[[], _Place]) -> None:
        self.announced: list[tuple[str, str]] | None = None
        self._place = place
        self._noted: dict[_Key, _Noted] | None = None
        self._room = Room(WHOLE_NBYTES)  # of the launch that comes
        self._main = threading.main_thread().ident

    def begin(self) -> None:
        """A cell begins."""
        self._noted = {}
        self._forget_announced()

    def end(self) -> list[wire.CopyNote]:
        """What the cell has noted."""
        noted, self._noted = self._noted or {}, None
        return [
            wire.CopyNote(
                kind,
                cell or 0,
                line or 0,
                f"{dtype}{list(shape)}",
                on if isinstance(on, str) else _processes_of(on),
                one.count,
                one.digest.hexdigest(),
            )
            for (kind, (cell, line), dtype, shape, on), one in noted.items()
        ]

    def take_announced(self, processes: str) -> list[str]:
        """What is given to the launch of these processes that is about to be made."""
        given = self.announced or []
        self._forget_announced()
        return [what for on, what in given if on == processes]

    def _forget_announced(self) -> None:
        self._room = Room(WHOLE_NBYTES)
        if self.announced is not None:
            self.announced = []

    def given(self, value: Any, sharding: Any) -> None:
        """A program of several processes gets a value of the host's, or an array of this one's.

        It is to be equal on all of them, though each may bring no more than its part of it.
        """
        if not self._is_heard() or (is_array(value) and not _is_cheap(value)):
            return
        values = read_numbers(value) if is_array(value) else np.asarray(value)
        self._note("given", values, values.shape, sharding)
        self._announce(values, sharding)

    def held(self, array: Any) -> None:
        """A program gets an array of which each of its processes has a copy.

        Where it came from has been noted. In strict mode the copies are compared once more, and for
        that it is waited for: all have announced the launch that computes it.
        """
        if self.announced is None or not self._is_heard():
            return
        if array.is_fully_replicated and _is_cheap(array) and array.addressable_shards:
            with contextlib.suppress(RuntimeError):  # the launch raises it too
                self._announce(host_values(array.addressable_shards[0].data), array.sharding)

    def _announce(self, values: np.ndarray[Any, Any], sharding: Any) -> None:
        if self.announced is not None:
            what = f"{values.dtype}{list(values.shape)} #{self._room.hash(values)[:6]}"
            self.announced.append((_processes_of(sharding), what))

    def made(self, array: Any) -> None:
        """An array was made of parts that each process has brought."""
        if not self._is_heard() or array.is_fully_addressable or not _is_cheap(array):
            return
        parts = dict(copied_parts(array.sharding, array.shape))
        for shard in array.addressable_shards if parts else ():
            part = tuple((a, b) for a, b in bounds(shard.index[: array.ndim], array.shape))
            if processes := parts.pop(part, ""):
                self._note("made", host_values(shard.data), array.shape, processes)

    def read(self, array: Any, values: np.ndarray[Any, Any]) -> None:
        """The values of an array that processes share have been read."""
        if self._is_heard() and array.is_fully_replicated:
            self._note("read", values, values.shape, array.sharding)

    def _is_heard(self) -> bool:
        return self._noted is not None and threading.get_ident() == self._main

    def _note(
        self, kind: str, values: np.ndarray[Any, Any], shape: tuple[int, ...], on: Any
    ) -> None:
        noted = self._noted
        assert noted is not None
        key = (kind, self._place(), values.dtype, shape, on)
        if (one := noted.get(key)) is None:
            if len(noted) >= MOST_PLACES:
                return
            one = noted[key] = _Noted()
        one.count += 1
        feed(one.digest, values, one.room.take(values.nbytes))
