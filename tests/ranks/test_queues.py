"""Cells that are queued: what one has skipped is found at its end, whatever waits behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from helpers import Home

import jaxcluster
from jaxcluster.cluster import connect
from jaxcluster.cluster.running import RunningCell
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence

SETUP = """
import jax, jax.numpy as jnp, numpy as np, threading, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
values = np.arange(12, dtype=np.float32)
g = jax.make_array_from_callback(values.shape, split, lambda index: values[index])
r = jax.process_index()
total = jax.jit(lambda x, k: jnp.sum(x) * k)
largest = jax.jit(lambda x, k: jnp.max(x) * k)
seen = []
float(total(g, 1)), float(largest(g, 1))
"""
SKIP = "a = [total(g, k) for k in range(5) if (r, k) != (1, 2)]"
PRINTED = SKIP + "; print([float(x) for x in a])"
LATER = ["b = float(total(g, 7)); print(b)", "c = float(total(g, 8)); print(c)", "seen.append(1)"]


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=request.param, name=f"queue-{request.param}") as c:
        c.run(SETUP)
        yield c


@pytest.fixture(autouse=True)
def whole(ranks: jaxcluster.Cluster) -> Iterator[None]:
    """After each test the ranks are the same processes, in lockstep, and nothing was bound."""
    pids = list(ranks.record.pids)
    yield
    assert ranks.divergence is None
    source = "print(float(total(g, 3)), seen, [n for n in 'abcx' if n in globals()])"
    record = ranks.run(source, show=False, timeout_s=60)
    assert [record.stdout(rank) for rank in range(3)] == ["198.0 [] []\n"] * 3
    assert ranks.record.pids == pids


def submit(ranks: jaxcluster.Cluster, sources: Sequence[str]) -> list[RunningCell]:
    return [ranks.submit(source) for source in sources]


def is_found(cells: Sequence[RunningCell], wanted: str) -> None:
    """The first cell has diverged, and none behind it has run."""
    first, *later = cells
    with pytest.raises(Divergence, match=wanted) as caught:
        first.wait()
    assert f"cell [{first.record.execution_count}] line 1" in str(caught.value)
    assert "This cell is undone" in str(caught.value)
    for cell in later:
        with pytest.raises(CellFailed, match="was not run"):
            cell.wait()


@pytest.mark.promise("The end of a cell")
def test_cells_in_a_queue_that_launch_alike_run(ranks: jaxcluster.Cluster) -> None:
    cells = submit(ranks, [f"print(float(total(g, {k})))" for k in range(6)])
    for k, cell in enumerate(cells):
        assert [cell.wait().stdout(rank) for rank in range(3)] == [f"{66.0 * k}\n"] * 3


@pytest.mark.promise("The end of a cell")
@pytest.mark.parametrize("source", [SKIP, PRINTED])
@pytest.mark.parametrize("later", [LATER, ["if r == 1: x = total(g, 100)\n" + LATER[0], LATER[1]]])
def test_a_skip_is_found_whatever_waits_behind_it(
    ranks: jaxcluster.Cluster, source: str, later: list[str]
) -> None:
    is_found(submit(ranks, [source, *later]), "Rank 1 finished the cell without")


def test_a_cell_behind_one_that_nobody_waits_for_ends(ranks: jaxcluster.Cluster) -> None:
    cells = submit(ranks, [SKIP, LATER[0]])
    with pytest.raises(CellFailed, match="was not run"):
        ranks.run(LATER[1], show=False, timeout_s=60)
    is_found(cells, "Rank 1 finished the cell without launch")


def test_a_submitted_cell_behind_one_that_nobody_waits_for_ends(ranks: jaxcluster.Cluster) -> None:
    first, second = submit(ranks, [SKIP, LATER[0]])
    with pytest.raises(CellFailed, match="was not run"):
        second.wait()
    is_found([first, second], "Rank 1 finished the cell without launch")


def test_values_are_asked_for_behind_cells_that_nobody_waits_for(
    ranks: jaxcluster.Cluster,
) -> None:
    """The first one is settled all the same, or the ranks would keep all behind it for ever."""
    cells = submit(ranks, [SKIP, *LATER])
    assert ranks["seen"] == []
    is_found(cells, "Rank 1 finished the cell without launch")


def test_a_launch_of_the_next_cell_does_not_make_up_for_one_that_was_skipped(
    ranks: jaxcluster.Cluster,
) -> None:
    cells = submit(ranks, [SKIP, "if r == 1: x = total(g, 9)", LATER[0]])
    is_found(cells, "Rank 1 finished the cell without")


def test_programs_in_another_order_are_found_whatever_waits_behind_them(
    ranks: jaxcluster.Cluster,
) -> None:
    mixed = "a = (largest(g, 2), total(g, 3)) if r == 1 else (total(g, 2), largest(g, 3))"
    cells = submit(ranks, [mixed, LATER[0]])
    is_found(cells, "The ranks launched different programs")


def test_a_cell_of_another_notebook_waits_until_the_ranks_are_in_lockstep_and_runs(
    ranks: jaxcluster.Cluster,
) -> None:
    other = connect(ranks.record)
    try:
        ours = ranks.submit(PRINTED)
        theirs = other.submit("print(float(total(g, 7)))")
        with pytest.raises(Divergence, match="Rank 1 finished the cell without"):
            ours.wait()
        assert [theirs.wait().stdout(rank) for rank in range(3)] == ["462.0\n"] * 3
    finally:
        other.close()


def test_notebooks_that_take_turns_hold_each_other_up_at_no_gate(
    ranks: jaxcluster.Cluster,
) -> None:
    """The other notebook's cell on some ranks tells these alone that its first one is settled."""
    other = connect(ranks.record)
    try:
        other.run("pass", show=False)
        other.run("pass", ranks=[1, 2], show=False)
        record = ranks.run("print(float(total(g, 7)))", show=False, timeout_s=60)
        assert [record.stdout(rank) for rank in range(3)] == ["462.0\n"] * 3
    finally:
        other.close()


def test_after_a_stopped_cell_those_behind_it_run(ranks: jaxcluster.Cluster) -> None:
    stopped = ranks.submit("while True: float(total(g, 2)); time.sleep(0.01)")
    behind = ranks.submit("print(float(total(g, 7)))")
    stopped.stop()
    with pytest.raises(CellInterrupted):
        stopped.wait()
    assert [behind.wait().stdout(rank) for rank in range(3)] == ["462.0\n"] * 3


def test_what_tasks_launch_belongs_to_no_cell(ranks: jaxcluster.Cluster) -> None:
    """On rank 1 the task launches in the cell that began it, elsewhere in the next one."""
    cells = submit(
        ranks,
        [
            "import asyncio\ngot = []\n"
            "async def later():\n"
            "    await asyncio.sleep(0.0 if r == 1 else 0.3)\n"
            "    got.append(total(g, 5))\n"
            "task = asyncio.ensure_future(later())\n"
            "await asyncio.sleep(0.1)",
            "await task\nprint(float(got[0]))\ndel got, task, later, asyncio",
        ],
    )
    for cell in cells:
        cell.wait()
    assert [cells[1].record.stdout(rank) for rank in range(3)] == ["330.0\n"] * 3
