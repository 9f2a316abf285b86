"""Copies that differ: what a cell notes of them, and how that is compared."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.engine import replicas as noted
from jaxcluster.engine.replicas import HostValues, Room
from jaxcluster.model import replicas

NOTE = wire.CopyNote("given", 7, 2, "float32[3]", "0,1,2", 1, "a")


class Device:
    def __init__(self, process: int) -> None:
        self.process_index = process


class Sharding:
    """As JAX has it, of a device for each of these processes."""

    def __init__(self, *processes: int) -> None:
        self.device_set = {Device(process) for process in processes}


def note(values: HostValues, *given: Any, on: Sharding) -> list[wire.CopyNote]:
    values.begin()
    for value in given:
        values.given(value, on)
    return values.end()


def host_values() -> HostValues:
    return HostValues(lambda: (7, 2))


def test_equal_values_have_equal_notes_and_others_have_not() -> None:
    on = Sharding(2, 0)
    x = np.arange(3.0)
    [one] = note(host_values(), x, x, on=on)
    assert (one.kind, one.cell, one.line, one.what) == ("given", 7, 2, "float64[3]")
    assert (one.processes, one.count) == ("0,2", 2)
    assert [one] == note(host_values(), x, x.copy(), on=on)
    assert [one] != note(host_values(), x, x + 1, on=on)
    assert len(note(host_values(), x, x[:2], on=on)) == 2


def test_nothing_is_noted_outside_of_cells_nor_on_other_threads() -> None:
    values = host_values()
    values.given(np.ones(3), Sharding(0, 1))
    assert values.end() == []
    values.announced = []
    values.begin()
    thread = threading.Thread(target=values.given, args=(np.ones(3), Sharding(0, 1)))
    thread.start()
    thread.join()
    assert values.end() == []
    assert values.announced == []


def test_a_cell_of_many_lines_and_bytes_notes_a_part_of_them() -> None:
    places = iter(range(1000))
    values = HostValues(lambda: (1, next(places)))
    assert len(note(values, *[np.ones(1)] * 1000, on=Sharding(0, 1))) == noted.MOST_PLACES
    room = Room(10_000)
    large = np.zeros(1 << 22, np.uint8)
    room.hash(large)
    assert room.nbytes == 0
    for room_nbytes, value in ((1 << 30, large), (0, large), (0, np.zeros(100, np.uint8))):
        for at in (0, -1) if value is large else (50,):
            changed = value.copy()
            changed[at] = 1
            assert Room(room_nbytes).hash(changed) != Room(room_nbytes).hash(value)
            assert Room(room_nbytes).hash(value.copy()) == Room(room_nbytes).hash(value)


def test_in_strict_mode_what_a_launch_is_given_is_that_of_its_own_processes() -> None:
    values = host_values()
    values.announced = []
    values.begin()
    values.given(np.ones(3), Sharding(0, 1))
    values.given(np.ones(2), Sharding(0, 1, 2))
    [what] = values.take_announced("0,1,2")
    assert what.startswith("float64[2] #")
    assert values.take_announced("0,1,2") == []


def test_ranks_whose_copies_are_equal_are_grouped() -> None:
    notes = {0: [NOTE], 1: [replace(NOTE, digest="b")], 2: [NOTE]}
    [odd] = replicas.odd(notes)
    assert odd.groups == ((0, 2), (1,))
    assert str(odd) == (
        "Cell [7] line 2 gave a program a float32[3] that is not the same on ranks 0-2: ranks 0, 2 "
        "have one, rank 1 has another. Each rank computes with its own."
    )
    alike = {rank: [NOTE] for rank in range(3)}
    assert replicas.odd(alike) == []


@pytest.mark.parametrize(
    "change", [{"count": 2}, {"line": 3}, {"what": "int8[]"}, {"kind": "read"}]
)
def test_what_not_all_ranks_have_noted_alike_is_not_compared(change: dict[str, Any]) -> None:
    other = replace(NOTE, digest="b", **change)
    assert replicas.odd({0: [NOTE], 1: [NOTE], 2: [other]}) == []
    assert replicas.odd({0: [NOTE], 1: [replace(NOTE, digest="b")]}) == []


def test_what_went_in_is_told_before_what_came_out() -> None:
    def notes(digest: str) -> list[wire.CopyNote]:
        lines = [replace(NOTE, kind="read", line=1, processes="0,1", digest=digest)]
        return lines + [replace(NOTE, line=n, processes="0,1", digest=digest) for n in (5, 3, 9, 4)]

    [told] = replicas.tell({0: notes("a"), 1: notes("b")})
    lines = told.splitlines()
    assert [line[:15] for line in lines[:3]] == [f"Cell [7] line {n}" for n in (3, 4, 5)]
    assert lines[3:] == ["The same holds for 2 more.", replicas.SEED]
    assert replicas.tell({0: notes("a"), 1: notes("a")}) == []


def test_parts_are_compared_with_the_same_parts() -> None:
    part, other = [[0, 3]], [[3, 6]]
    reports = {
        0: [[0, part, "a"], [0, other, "x"], [1, part, "q"]],
        1: [[0, part, "b"], [1, part, "q"]],
        2: [[0, other, "x"], [1, part, "q"]],
    }
    assert replicas.parts(reports) == {0: ((0,), (1,))}
