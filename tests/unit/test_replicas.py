"""Copies that differ: how they are hashed and compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxcluster.engine import given as noted
from jaxcluster.engine.given import Room
from jaxcluster.model import replicas


class Device:
    def __init__(self, process: int) -> None:
        self.process_index = process


def test_less_room_hashes_less_of_a_value() -> None:
    large = np.zeros(1 << 22, np.uint8)
    room = Room(10_000)
    room.hash(large)
    assert room.nbytes == 0
    for room_nbytes, value in ((1 << 30, large), (0, large), (0, np.zeros(100, np.uint8))):
        for at in (0, -1) if value is large else (50,):
            changed = value.copy()
            changed[at] = 1
            assert Room(room_nbytes).hash(changed) != Room(room_nbytes).hash(value)
            assert Room(room_nbytes).hash(value.copy()) == Room(room_nbytes).hash(value)


class Copied:
    """An array of which all processes have a copy, and this one perhaps only a part of it yet."""

    ndim, dtype, is_fully_addressable, is_fully_replicated = 1, np.float64, False, True

    def __init__(self, values: Any, ready: bool = True, num_devices: int = 1) -> None:
        self.values, self.is_ready, self.is_deleted = values, lambda: ready, lambda: False
        self.shape, self.nbytes, self.sharding = values.shape, values.nbytes, self
        self.device_set = [Device(0), Device(1)]
        held = SimpleNamespace(
            device=SimpleNamespace(platform="cpu"), index=(slice(None),), data=values
        )
        self.addressable_shards = [held] * num_devices

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, Any]:
        return dict.fromkeys(self.device_set, (slice(None),))


def test_equal_copies_have_equal_hashes_whatever_a_rank_has_computed_or_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another rank has one array not ready yet, and has read a lot by itself."""
    monkeypatch.setattr(noted, "host_values", lambda values: values)
    arrays = [np.arange(1 << 17) + 0.5 * k for k in range(5)]
    here = [(k, Copied(values)) for k, values in enumerate(arrays)]
    there = [(k, Copied(values, k > 0, 2)) for k, values in enumerate(arrays)]
    assert noted.hashes(here, Room(1 << 22))[1:] == noted.hashes(there, Room(1 << 22))


def test_parts_are_compared_with_the_same_parts() -> None:
    part, other = [[0, 3]], [[3, 6]]
    reports = {
        0: [[0, part, "a"], [0, other, "x"], [1, part, "q"]],
        1: [[0, part, "b"], [1, part, "q"]],
        2: [[0, other, "x"], [1, part, "q"]],
    }
    assert replicas.parts(reports) == {0: ((0,), (1,))}
