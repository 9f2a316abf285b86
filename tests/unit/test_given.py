"""Hashes of what the host gives to launches, and of the copies that processes have of arrays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxcluster.agreement.refusals import Program
from jaxcluster.engine import given as module
from jaxcluster.engine.given import WHOLE_NBYTES, Given
from jaxcluster.model import replicas


class Sharding:
    """As JAX has it, of a device for each of these processes."""

    def __init__(self, *processes: int) -> None:
        self.device_set = [SimpleNamespace(process_index=process) for process in processes]


def taken(*values: Any, on: tuple[int, ...] = (0, 1), by: tuple[int, ...] = (0, 1)) -> int:
    """The hash of these values, given to a program."""
    given = Given()
    for value in values:
        given.add(value, Sharding(*on))
    return given.take(Program(by, 1))


def test_equal_values_have_equal_hashes_and_others_have_not() -> None:
    x = np.arange(3.0)
    assert taken(x) == taken(x.copy()) != 0
    assert len({taken(x), taken(x + 1), taken(x[:2]), taken(x, x), taken(x.astype(int)), 0}) == 6
    assert taken(3) == taken(np.int64(3)) != taken(4)


def test_a_hash_is_of_what_one_launch_is_given() -> None:
    given, launch = Given(), Program((0, 1), 1)
    assert given.take(launch) == 0
    given.add(1.5, Sharding(0, 1))
    assert given.take(launch) != 0 == given.take(launch)
    given.add(1.5, Sharding(0, 1))
    given.forget()  # it was not made
    assert given.take(launch) == 0
    assert taken(1.5, on=(0, 1, 2)) == 0


def test_of_other_threads_nothing_is_known() -> None:
    given = Given()
    thread = threading.Thread(target=given.add, args=(1.5, Sharding(0, 1)))
    thread.start()
    thread.join()
    assert given.take(Program((0, 1), 1)) == 0


def test_of_a_large_value_some_blocks_are_hashed() -> None:
    large = np.zeros(4 * WHOLE_NBYTES, np.uint8)
    for at in (0, -1):
        changed = large.copy()
        changed[at] = 1
        assert taken(changed) != taken(large)
    changed = large.copy()
    changed[WHOLE_NBYTES // module.BLOCKS] = 1  # just behind the first block
    assert taken(changed) == taken(large)


def test_of_an_array_that_was_made_of_parts_what_all_have_is_hashed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "host_values", lambda values: values)

    def made(values: Any, *, is_replicated: bool = True, is_local: bool = False) -> int:
        device = SimpleNamespace(platform="cpu")
        given = Given()
        given.made(
            SimpleNamespace(
                is_fully_addressable=is_local,
                is_fully_replicated=is_replicated,
                addressable_shards=[SimpleNamespace(device=device, data=values)],
                sharding=Sharding(0, 1),
            )
        )
        return given.take(Program((0, 1), 1))

    assert made(np.ones(2)) == made(np.ones(2)) != made(np.zeros(2)) != 0
    assert made(np.ones(2), is_replicated=False) == made(np.ones(2), is_local=True) == 0


# --------------------------------------------------------------------------- copies


class Device:
    def __init__(self, process: int) -> None:
        self.process_index = process


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
    monkeypatch.setattr(module, "host_values", lambda values: values)
    arrays = [np.arange(1 << 17) + 0.5 * k for k in range(5)]
    here = [(k, Copied(values)) for k, values in enumerate(arrays)]
    there = [(k, Copied(values, k > 0, 2)) for k, values in enumerate(arrays)]
    assert module.hashes(here, 1 << 22)[1:] == module.hashes(there, 1 << 22)
    arrays[-1][-1] = 0  # without room, too, the first and last bytes are compared
    other = module.hashes(there, 1 << 22)
    assert other[:-1] == module.hashes(here, 1 << 22)[1:-1]


def test_parts_are_compared_with_the_same_parts() -> None:
    part, other = [[0, 3]], [[3, 6]]
    reports = {
        0: [[0, part, "a"], [0, other, "x"], [1, part, "q"]],
        1: [[0, part, "b"], [1, part, "q"]],
        2: [[0, other, "x"], [1, part, "q"]],
    }
    assert replicas.parts(reports) == {0: ((0,), (1,))}
