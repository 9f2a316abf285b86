"""The models as plain text."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.model.outputs import CellRecord
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.text import format_table
from jaxcluster.views import text


def state(rank: int, state: str = "idle", **facts: object) -> wire.RankState:
    made = wire.RankState(rank, 100 + rank, "box", state, [f"cpu:{rank}"])
    return dataclasses.replace(made, **facts)  # type: ignore[arg-type]


def rows(shown: str) -> list[list[str]]:
    """A table's rows, cut where its header says."""
    header, *lines = shown.splitlines()
    starts = [word.start() for word in re.finditer(r"\S+", header)]
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines]


# --------------------------------------------------------------------------- tables


def test_columns_are_as_wide_as_their_widest_entry() -> None:
    assert format_table([["a", "bee"], ["1", ""], ["long", "x"]]) == ["a     bee", "1", "long  x"]


def test_status_says_for_each_rank_where_it_is_and_what_it_does() -> None:
    shown = text.status(
        [
            state(0, rss_nbytes=200 << 20),
            state(1, "running", seq=5, cell=7, line=3, seconds=1.25, rss_nbytes=1 << 20),
        ],
        {},
    )
    assert shown.splitlines()[0].split() == [
        "rank", "pid", "devices", "state", "cell", "for", "memory",
    ]  # fmt: skip
    assert rows(shown) == [
        ["0", "100", "cpu:0", "idle", "", "", "200.0 MiB"],
        ["1", "101", "cpu:1", "running", "[7] line 3", "1.2 s", "1.0 MiB"],
    ]


def test_status_names_the_hosts_where_there_are_several() -> None:
    shown = text.status([state(0), replace(state(1), hostname="other")], {})
    assert [row[2] for row in rows(shown)] == ["box", "other"]


def test_status_says_why_a_rank_is_dead_and_which_is_silent() -> None:
    dead = {0: wire.Death("killed by SIGKILL")}
    shown = text.status([state(0, "dead"), state(1, "silent")], dead)
    assert [row[3] for row in rows(shown)] == ["dead: killed by SIGKILL", "silent"]


def test_status_counts_the_cells_that_wait() -> None:
    shown = text.status([state(0, "running", cell=1, queued=2), state(1, queued=1)], {})
    assert [row[3] for row in rows(shown)] == ["running, 2 waiting", "idle"]


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
    shown = text.clusters([record("a"), record("b", "", 600)], ["b"], int(1e18))
    assert shown.splitlines()[0].split() == [
        "name", "ranks", "platform", "launcher", "host", "age", "owner", "notebook",
    ]  # fmt: skip
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["a", "4", "cpu", "local", "box", "5", "s", "pid", "12", "a.ipynb"],
        ["*", "b", "4", "cpu", "local", "box", "10", "min", "detached", "a.ipynb"],
    ]


def test_of_several_clusters_the_one_in_use_is_marked() -> None:
    shown = text.clusters([record("a"), record("b"), record("c")], ["b", "a"], int(1e18))
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [
        ["*", "a"],
        ["+", "b"],
        ["c", "4"],
    ]
    assert shown.endswith(
        "* cells of this notebook run on it; + connected: %jaxcluster attach NAME"
    )


def test_a_cluster_of_other_hosts_is_listed_with_them() -> None:
    facts = [wire.EngineFacts(rank, 1, f"h{rank // 2}", "", "", "") for rank in range(4)]
    spec = wire.ClusterSpec("a", 4, launcher="ssh")
    shown = text.clusters([replace(record("a"), spec=spec, facts=facts)], [], int(1e18))
    assert "ssh       h0, h1  5 s" in shown


def test_hosts_that_can_not_be_reached_and_other_machines_are_named() -> None:
    records = [record("a"), record("b", "", 600)]
    shown = text.clusters(records, [], int(1e18), {"a": ["h1", "h2"], "b": []}, "laptop")
    first, second = shown.splitlines()[1:]
    assert "  box (h1, h2 unreachable)  " in first
    assert "  pid 12 on box  " in first
    assert "  box  " in second
    assert "  detached from box  " in second


def test_no_cluster_says_how_to_start_one() -> None:
    assert text.clusters([], [], 0) == ("No cluster is running. Start one: %jaxcluster start -n 4")


# --------------------------------------------------------------------------- arrays


def info(shape: tuple[int, ...]) -> wire.ArrayInfo:
    return wire.ArrayInfo(shape, "int64", spans=True, sharding="NamedSharding(...)")


def test_an_array_is_shown_with_shape_dtype_sharding_and_values() -> None:
    values = np.arange(6).reshape(2, 3)
    assert text.spanning_array(info((2, 3)), values, False) == (
        "Array(shape=(2, 3), dtype=int64)\nsharding: NamedSharding(...)\n[[0 1 2]\n [3 4 5]]"
    )


def test_an_array_whose_values_can_not_be_had_is_shown_without() -> None:
    shown = text.spanning_array(info((2,)), None, False)
    assert shown.endswith("(values not available)")


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
    shown = text.spanning_array(info(shape), sampled(whole), True)
    assert shown.split("\n", 2)[2] == np.array2string(whole, threshold=0, edgeitems=3)


def test_a_small_array_is_shown_whole() -> None:
    whole = np.arange(900).reshape(30, 30)
    shown = text.spanning_array(info((30, 30)), whole, False)
    assert "..." not in shown.split("\n", 2)[2]
    assert "899" in shown


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
    assert text.stacks(reports) == (
        "── ranks 0, 2 ──\n"
        "  cell [7] line 3, in <module>\n    <module>()\n"
        "  train.py:3, in step\n    step()\n"
        "  [... 2 frames of JAX, the innermost in execute]\n"
        "── rank 1 ──\nidle, in no cell"
    )


def test_threads_of_the_users_are_shown_also_of_an_idle_rank() -> None:
    threads = {"saver": [frame("orbax.py", "save")]}
    shown = text.stacks({0: wire.RankReport(state(0), [], threads)})
    assert shown == (
        "── rank 0 ──\nidle, in no cell\nthread 'saver':\n  orbax.py:3, in save\n    save()"
    )
    assert text.stacks({0: wire.RankReport(state(0, "dead"), [])}) == "── rank 0 ──\ndied"


# --------------------------------------------------------------------------- outputs


def cell() -> CellRecord:
    return CellRecord(1, 7, "pass", [0, 1, 2])


def test_outputs_of_equal_ranks_are_shown_once() -> None:
    record = cell()
    for rank in (0, 2):
        record.add_output(wire.RankOutput(rank, 1, "stream", {"name": "stdout", "text": "hi\n"}))
        bundle = {"data": {"text/plain": "5"}, "metadata": {}}
        record.add_output(wire.RankOutput(rank, 1, "execute_result", bundle))
    assert text.outputs(record.records) == "── ranks 0, 2 ──\nhi\n5\n── rank 1 ──\n(no output)"


def test_what_has_no_text_is_left_out() -> None:
    assert text.plain_output(wire.RankOutput(0, 1, "clear_output", {"wait": True})) == ""
    figure = wire.RankOutput(0, 1, "display_data", {"data": {"image/png": "…"}})
    assert text.plain_output(figure) == "\n"
