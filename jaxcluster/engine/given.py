"""Hashes of values that have to be equal on several processes.

Of the copies that processes have of parts of arrays the notebook compares the hashes. What the host
gives to launches has to be equal on all processes of the program:
A process may launch the same program as the others with other values: a learning rate, a batch of
``np.random``. JAX compares them in ``device_put`` alone. So a hash of what a main thread gives to
its next launch is a part of the launch's announcement.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxcluster.agreement.refusals import Program
from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    host_values,
    is_array,
    is_ready,
    read_numbers,
)

WHOLE_NBYTES = 1 << 20  # of a value that is hashed whole, some 1 ms; of a larger one as much
BLOCKS = 16  # that this is taken in, evenly spaced, the first and the last among them
LEAST_NBYTES = 1 << 12  # of a copy, when there is no room left
LOOK_NBYTES = 1 << 24  # that a look at a variable does
MOST_LEAVES = 256  # of a pytree

Bounds = tuple[tuple[int, int], ...]


class Given:
    """Hashes what the main thread gives to its next launch. Of other threads' nothing is known."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._digest: Any = None
        self._processes: set[tuple[int, ...]] = set()

    def take(self, program: Program) -> int:
        """A hash of what the next launch of this program is given; 0 for nothing."""
        if self._digest is None or threading.get_ident() != self._main:
            return 0
        digest, self._digest = self._digest, None
        processes, self._processes = self._processes, set()
        if processes != {program.processes}:
            return 0  # for a launch that was not made
        return int.from_bytes(digest.digest(), "little") or 1

    def forget(self) -> None:
        """What was given so far was for a launch that was not made."""
        self._digest, self._processes = None, set()

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
        if array.is_fully_replicated and is_cheap(array) and array.addressable_shards:
            self._feed(host_values(array.addressable_shards[0].data), array.sharding)

    def _feed(self, values: np.ndarray[Any, Any], sharding: Any) -> None:
        if self._digest is None:
            self._digest = hashlib.blake2b(digest_size=8)
        self._processes.add(processes_of(sharding))
        self._digest.update(f"{values.dtype}{values.shape}".encode())
        feed(self._digest, values)


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
    shards = array.addressable_shards
    return not shards or shards[0].device.platform == "cpu" or shards[0].data.nbytes <= WHOLE_NBYTES


# --------------------------------------------------------------------------- copies


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


def hash_of(values: np.ndarray[Any, Any], limit: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    feed(digest, values, limit)
    return str(digest.hexdigest())


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
        if not is_ready(array) or not is_cheap(array):
            continue
        for shard in array.addressable_shards:
            part = tuple((a, b) for a, b in bounds(shard.index[: array.ndim], array.shape))
            if parts.pop(part, None):
                with contextlib.suppress(RuntimeError):
                    digest = hash_of(host_values(shard.data), limit)
                    found.append([number, [list(b) for b in part], digest])
    return found
