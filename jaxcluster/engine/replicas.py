"""Hashes of the copies that processes have of parts of arrays, compared by the notebook."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import (
    base_array,
    bounds,
    host_values,
    is_ready,
)
from jaxcluster.engine.given import WHOLE_NBYTES, feed, is_cheap

LEAST_NBYTES = 1 << 12  # of a copy, when there is no room left
LOOK_NBYTES = 1 << 24  # that a look at a variable does
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
