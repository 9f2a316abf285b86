"""What is still said of a former process's cell is never taken for one of its successor's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellFailed, Divergence, RankDied
from jaxcluster.lockstep.settling import Settling

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback((6,), NamedSharding(mesh, P("i")), lambda i: np.arange(6.0)[i])
r = jax.process_index()
"""
CROSSED = """
def add(devices):
    where = NamedSharding(jax.sharding.Mesh(devices, ("i",)), P("i"))
    part = jax.make_array_from_callback((len(devices),), where, lambda i: np.arange(3.0)[i])
    print(float(jnp.sum(part)))
all_of_them = np.array(jax.devices())
for devices in [all_of_them, all_of_them[:2]][:: -1 if r == 1 else 1]:
    if r < len(devices): add(devices)
"""
SKIP = "a = [jnp.sum(g * k) for k in range(5) if (r, k) != (1, 2)]"
HIDES = "b = float(jnp.sum(g))\nif r == 1: jnp.sum(g * 3)"


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, name="generations") as cluster:
        cluster.run(SETUP, show=False)
        yield cluster


@pytest.mark.promise("New processes")
def test_a_cell_of_the_former_processes_lets_nothing_begin_on_the_new_ones(
    ranks: jaxcluster.Cluster,
) -> None:
    pids = ranks.record.pids
    with pytest.raises(Divergence, match="New processes"):
        ranks.run(CROSSED, show=False)
    assert ranks.record.pids != pids
    ranks.run("done = 1", show=False)  # so that the next one is the second here too
    cells = [ranks.submit(source) for source in (SKIP, HIDES, "print(float(jnp.sum(g)))")]
    with pytest.raises(Divergence, match="Rank 1") as caught:
        cells[0].wait()
    assert "This cell is undone" in str(caught.value)
    for cell in cells[1:]:
        with pytest.raises(CellFailed, match="was not run"):
            cell.wait()


def test_a_death_in_the_first_cell_of_new_processes_costs_no_more_than_a_later_one(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("kept = [1, 2]", show=False)
    ranks.restart()
    with pytest.raises(RankDied) as caught:
        ranks.run("import os, signal\nif r == 1: os.kill(os.getpid(), signal.SIGKILL)")
    assert "kept (" not in str(caught.value), caught.value
    record = ranks.run("print(kept)", show=False)
    assert {record.stdout(rank) for rank in range(3)} == {"[1, 2]\n"}


@pytest.mark.any_jax
def test_no_number_of_a_cell_comes_twice(ranks: jaxcluster.Cluster) -> None:
    seen = [ranks.run("done = 1", show=False).seq]
    for _ in range(2):
        ranks.restart()
        seen += [ranks.run("done = 1", show=False).seq for _ in range(2)]
    assert seen == list(range(seen[0], seen[0] + 5))


def test_a_second_stop_leaves_no_ranks_apart_unsaid(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Settling.leave_unsettled

    def settle(self: Settling) -> Any:
        yield from self._look_around()
        os.kill(os.getpid(), signal.SIGINT)
        yield from self._look_around()

    def leave_unsettled(self: Settling) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        yield from leave(self)

    with monkeypatch.context() as patched:
        patched.setattr(Settling, "settle", settle)
        patched.setattr(Settling, "leave_unsettled", leave_unsettled)
        with pytest.raises(KeyboardInterrupt):
            ranks.run(SKIP, show=False)
    with pytest.raises(Divergence, match="no cell can run"):
        ranks.run("done = 1", show=False)
