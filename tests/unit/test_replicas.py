"""Copies that differ: what a cell notes of them, and how that is compared."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
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
    given, on = np.arange(6000.0), Sharding(0, 1)
    told = []
    for times in (0, 80):
        values = HostValues(lambda: (7, 2))
        values.announced = []
        values.begin()
        for _ in range(times):
            values.read(here[0][1], arrays[0])
        values.given(given, on)
        [note] = (one for one in values.end() if one.kind == "given")
        told.append((values.take_announced("0,1"), note))
    assert told[0] == told[1]


def test_in_strict_mode_copies_of_an_array_that_a_launch_is_given_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noted, "host_values", lambda values: values)
    values = host_values()
    values.begin()
    values.held(Copied(np.ones(3)))
    assert values.announced is None and values.end() == []
    values.announced = []
    values.begin()
    values.held(Copied(np.ones(3)))
    values.held(Copied(np.zeros(3)))
    one, other = values.take_announced("0,1")
    assert one.partition("#")[0] == other.partition("#")[0] == "float64[3] "
    assert one != other


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
