"""Hashes of values that have to be equal on several processes.

The notebook compares hashes of the processes' copies of parts of arrays. Host values that a launch
takes must be equal on all processes of the program. A process may launch the same program as the
others with another learning rate, or another batch of ``np.random``. JAX compares them only in
``device_put``. So a launch's announcement has a hash of the host values that it takes, with those
of launches that did not wait. At a cell's end there is a hash of the rest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcluster.rank.arrays import (
    Bounds,
    bounds,
    host_values,
    is_array,
    is_ready,
    read_numbers,
    shards_of,
)
from jaxcluster.rank.private.kinds import numpy_view

WHOLE_NBYTES = 1 << 20  # of a value that is hashed whole, some 1 ms; of a larger one as much
BLOCKS = 16  # blocks of a larger value, evenly spaced, with the first and the last
LEAST_NBYTES = 1 << 12  # of a copy
LOOK_NBYTES = 1 << 24  # hashed in a look at a variable, besides a little of each part
MOST_LEAVES = 256  # of a pytree


class Given:
    """Hashes what the main thread gives to its launches. It ignores other threads."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._digests: dict[tuple[int, ...], Any] = {}  # by the processes of what was given

    def take(self, processes: tuple[int, ...]) -> int:
        """A hash of what launches of these processes were given since the last call; 0: nothing."""
        if not self._digests or threading.get_ident() != self._main:
            return 0
        digest = self._digests.pop(processes, None)
        return int.from_bytes(digest.digest(), "little") or 1 if digest is not None else 0

    def forget(self) -> None:
        """Forget the values so far: those of another cell, or of a launch that failed."""
        self._digests = {}

    def add(self, value: Any, sharding: Any) -> None:
        """A program of several processes is given a value of the host's, or a local array.

        It is to be equal on all of them, though each may bring no more than its part of it.
        """
        if threading.get_ident() != self._main or (is_array(value) and not is_cheap(value)):
            return
        values = read_numbers(value) if is_array(value) else np.asarray(value)
        self._feed(values, sharding)

    def made(self, array: Any) -> None:
        """An array was made of parts that each process has: what all have is to be equal."""
        if threading.get_ident() != self._main or array.is_fully_addressable:
            return
        if array.is_fully_replicated and is_cheap(array) and shards_of(array):
            self._feed(host_values(shards_of(array)[0].data), array.sharding)

    def _feed(self, values: np.ndarray[Any, Any], sharding: Any) -> None:
        processes = processes_of(sharding)
        if (digest := self._digests.get(processes)) is None:
            digest = self._digests[processes] = hashlib.blake2b(digest_size=8)
        digest.update(f"{values.dtype}{values.shape}".encode())
        feed(digest, values)


def feed(digest: Any, values: np.ndarray[Any, Any], limit: int = WHOLE_NBYTES) -> None:
    """Add the bytes to a hash, or blocks of them if they are more than this."""
    nbytes = values.nbytes
    if nbytes <= limit:
        digest.update(values.tobytes())
        return
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    size = limit // BLOCKS
    for start in np.linspace(0, nbytes - size, BLOCKS, dtype=np.int64):
        digest.update(flat[start : start + size].data)


@functools.lru_cache(1024)
def processes_of(sharding: Any) -> tuple[int, ...]:
    """The processes whose devices an array is on, in order."""
    return tuple(sorted({device.process_index for device in sharding.device_set}))


def is_cheap(array: Any) -> bool:
    """Whether its values are here, or few: from another device all of a shard is fetched."""
    shards = shards_of(array)
    return not shards or shards[0].device.platform == "cpu" or shards[0].data.nbytes <= WHOLE_NBYTES


# --------------------------------------------------------------------------- copies


@functools.lru_cache(1024)
def copied_parts(sharding: Any, shape: tuple[int, ...]) -> frozenset[Bounds]:
    """The parts of an array of which several processes have a copy."""
    holders: dict[Bounds, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        holders.setdefault(bounds(index, shape), set()).add(device.process_index)
    return frozenset(part for part, processes in holders.items() if len(processes) > 1)


def hashes(arrays: Sequence[tuple[int, Any]]) -> list[list[Any]]:
    """[number, part, hash] of each part of these arrays of which other processes have a copy too.

    Copies that are still being computed, or have failed, are left out.
    """
    found: list[list[Any]] = []
    # Each rank counts the same, whatever it has computed: else equal copies had other hashes.
    room_nbytes = LOOK_NBYTES // max(1, len(arrays))
    for number, one in arrays[:MOST_LEAVES]:
        array = numpy_view(one)
        if array.is_fully_addressable or not is_ready(array) or not is_cheap(array):
            continue
        parts = set(copied_parts(array.sharding, array.shape))
        limit = max(LEAST_NBYTES, min(WHOLE_NBYTES, room_nbytes) // max(1, len(parts)))
        for shard in shards_of(array):
            part = bounds(shard.index, array.shape)
            if part in parts:
                parts.remove(part)
                with contextlib.suppress(RuntimeError):
                    digest = hashlib.blake2b(digest_size=8)
                    feed(digest, host_values(shard.data), limit)
                    found.append([number, [list(b) for b in part], digest.hexdigest()])
    return found
