"""Hashes of what the host gives to launches, and of the copies that processes have of arrays."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxcluster.model import layout
from jaxcluster.rank import given as module
from jaxcluster.rank.given import WHOLE_NBYTES, Given


class Sharding:
    """As JAX has it, of a device for each of these processes."""

    def __init__(self, *processes: int) -> None:
        self.device_set = [SimpleNamespace(process_index=process) for process in processes]


def taken(*values: Any, on: tuple[int, ...] = (0, 1), by: tuple[int, ...] = (0, 1)) -> int:
    """The hash of these values, given to a program."""
    given = Given()
    for value in values:
        given.add(value, Sharding(*on))
    return given.take(by)


def test_equal_values_have_equal_hashes_and_others_have_not() -> None:
    x = np.arange(3.0)
    assert taken(x) == taken(x.copy()) != 0
    assert len({taken(x), taken(x + 1), taken(x[:2]), taken(x, x), taken(x.astype(int)), 0}) == 6
    assert taken(3) == taken(np.int64(3)) != taken(4)


def test_of_other_threads_nothing_is_known() -> None:
    given = Given()
    thread = threading.Thread(target=given.add, args=(1.5, Sharding(0, 1)))
    thread.start()
    thread.join()
    assert given.take((0, 1)) == 0


def test_of_a_large_value_some_blocks_are_hashed() -> None:
    large = np.zeros(4 * WHOLE_NBYTES, np.uint8)
    for at in (0, -1):
        changed = large.copy()
        changed[at] = 1
        assert taken(changed) != taken(large)
    changed = large.copy()
    changed[WHOLE_NBYTES // module.BLOCKS] = 1  # just behind the first block
    assert taken(changed) == taken(large)


# --------------------------------------------------------------------------- copies


def test_parts_are_compared_with_the_same_parts() -> None:
    part, other = [[0, 3]], [[3, 6]]
    reports = {
        0: [[0, part, "a"], [0, other, "x"], [1, part, "q"]],
        1: [[0, part, "b"], [1, part, "q"]],
        2: [[0, other, "x"], [1, part, "q"]],
    }
    assert layout.odd_copies(reports) == {0: ((0,), (1,))}
