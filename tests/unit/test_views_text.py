"""Clusters, arrays, stacks and outputs as plain text."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.model.outputs import CellRecord
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.views import arrays, status


def state(rank: int, state: str = "idle", **facts: object) -> wire.RankState:
    made = wire.RankState(rank, 100 + rank, "box", state, [f"cpu:{rank}"])
    return dataclasses.replace(made, **facts)  # type: ignore[arg-type]


def record(name: str, owner: str = "12:34", seconds_ago: float = 5) -> ClusterRecord:
    return ClusterRecord(
        name=name,
        spec=wire.ClusterSpec(name, 4),
        owner=owner,
        created_ns=int(1e18 - seconds_ago * 1e9),
        hostname="box",
        notebook="a.ipynb",
    )


def test_clusters_are_listed_with_their_owners_and_ages() -> None:
    shown = status.clusters([record("a"), record("b", "", 600)], ["b"], int(1e18))
    head, *lines = shown.splitlines()
    assert head.split() == [
        "name",
        "ranks",
        "platform",
        "launcher",
        "host",
        "age",
        "owner",
        "notebook",
    ]
    assert [line.split() for line in lines] == [
        ["a", "4", "cpu", "local", "box", "5", "s", "pid", "12", "a.ipynb"],
        ["*", "b", "4", "cpu", "local", "box", "10", "min", "detached", "a.ipynb"],
    ]


def test_of_several_clusters_the_one_in_use_is_marked() -> None:
    shown = status.clusters([record("a"), record("b"), record("c")], ["b", "a"], int(1e18))
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [
        ["*", "a"],
        ["+", "b"],
        ["c", "4"],
    ]
    assert shown.endswith(
        "* cells of this notebook run on it; + connected: %jaxcluster attach NAME"
    )


def test_hosts_that_can_not_be_reached_and_other_machines_are_named() -> None:
    facts = [wire.EngineFacts(rank, 1, f"h{rank // 2}", "", "", "") for rank in range(4)]
    spec = wire.ClusterSpec("a", 4, launcher="ssh")
    shown = status.clusters([replace(record("a"), spec=spec, facts=facts)], [], int(1e18))
    assert "ssh       h0, h1  5 s" in shown
    assert status.clusters([], [], 0).endswith("Start one: %jaxcluster start -n 4")
    records = [record("a"), record("b", "", 600)]
    shown = status.clusters(records, [], int(1e18), {"a": ["h1", "h2"], "b": []}, "laptop")
    first, second = shown.splitlines()[1:]
    assert "  box (h1, h2 unreachable)  " in first
    assert "  pid 12 on box  " in first
    assert "  box  " in second
    assert "  detached from box  " in second


# --------------------------------------------------------------------------- arrays


def info(shape: tuple[int, ...]) -> wire.ArrayInfo:
    return wire.ArrayInfo(shape, "int64", spans=True, sharding="NamedSharding(...)")


def test_an_array_is_shown_with_shape_dtype_sharding_and_values() -> None:
    assert arrays.values(info((2,)), None, False).endswith("(values not available)")
    values = np.arange(6).reshape(2, 3)
    assert arrays.values(info((2, 3)), values, False) == (
        "Array(shape=(2, 3), dtype=int64)\nsharding: NamedSharding(...)\n[[0 1 2]\n [3 4 5]]"
    )


def sampled(whole: np.ndarray, edge: int = 3) -> np.ndarray:  # type: ignore[type-arg]
    for axis, size in enumerate(whole.shape):
        if size > 2 * edge + 1:
            kept = [*range(edge), size // 2, *range(size - edge, size)]
            whole = np.take(whole, kept, axis)
    return whole


@pytest.mark.parametrize(
    "shape", [(5000,), (100, 100), (2, 5000), (5000, 2), (7, 1000), (10, 10, 50), (3, 8, 100)]
)
def test_a_large_array_is_summarized_as_numpy_does_it(shape: tuple[int, ...]) -> None:
    whole = np.arange(np.prod(shape)).reshape(shape) % 10
    shown = arrays.values(info(shape), sampled(whole), True)
    assert shown.split("\n", 2)[2] == np.array2string(whole, threshold=0, edgeitems=3)


# --------------------------------------------------------------------------- stacks


def frame(file: str, function: str, cell: int | None = None, folded: bool = False) -> list[object]:
    return [file, 3, function, f"{function}()", cell, folded]


def test_a_stack_is_shown_from_the_cell_inwards_and_equal_ones_once() -> None:
    stack = [
        frame("kernel.py", "run"),
        frame("cell", "<module>", 7),
        frame("train.py", "step"),
        frame("pjit.py", "call", folded=True),
        frame("pxla.py", "execute", folded=True),
    ]
    reports = {rank: wire.RankReport(state(rank, "running"), stack) for rank in (0, 2)}
    reports[1] = wire.RankReport(state(1), [frame("kernel.py", "run")])
    assert status.stacks(reports) == (
        "── ranks 0, 2 ──\n"
        "  cell [7] line 3, in <module>\n    <module>()\n"
        "  train.py:3, in step\n    step()\n"
        "  [... 2 frames of JAX, the innermost in execute]\n"
        "── rank 1 ──\nidle, in no cell"
    )


def test_threads_of_the_users_are_shown_also_of_an_idle_rank() -> None:
    threads = {"saver": [frame("orbax.py", "save")]}
    shown = status.stacks({0: wire.RankReport(state(0), [], threads)})
    assert shown == (
        "── rank 0 ──\nidle, in no cell\nthread 'saver':\n  orbax.py:3, in save\n    save()"
    )
    assert status.stacks({0: wire.RankReport(state(0, "dead"), [])}) == "── rank 0 ──\ndied"


# --------------------------------------------------------------------------- outputs


def cell() -> CellRecord:
    return CellRecord(1, 7, "pass", [0, 1, 2])
