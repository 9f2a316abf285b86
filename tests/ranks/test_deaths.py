"""Ranks that die or hang for good: told with the reason, replaced, and the variables come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import Home, until

import jaxcluster
from jaxcluster.errors import Divergence, JaxClusterError, RankDied

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, where=split):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
g = spread(np.arange(16.0))
w = spread(np.arange(5.0), whole)
total = jax.jit(lambda v: v.sum())
key = jax.random.key(7)
history = [1.0, 2.0]
r = jax.process_index()
float(total(g))
"""
CHECK = "print(float(total(w)), history, jax.process_index(), mesh.devices.size)"


@pytest.fixture(params=[1, 2], ids=["D=1", "D=2"])
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(4, devices_per_process=request.param, name="deaths") as cluster:
        cluster.run(SETUP)
        yield cluster


def kill(cluster: jaxcluster.Cluster, rank: int) -> None:
    os.kill(cluster.record.pids[rank], signal.SIGKILL)


def check_whole(cluster: jaxcluster.Cluster) -> None:
    """What all ranks share is there on all of them, and collectives compute right."""
    record = cluster.run(CHECK, show=False)
    devices = len(cluster.record.devices[0].devices) * 4
    assert [record.stdout(rank) for rank in range(4)] == [
        f"10.0 [1.0, 2.0] {rank} {devices}\n" for rank in range(4)
    ]
    record = cluster.run("print(float(total(spread(np.arange(16.0)))))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4


@pytest.mark.parametrize("rank", [0, 2])
def test_an_idle_rank_that_is_killed_is_replaced(ranks: jaxcluster.Cluster, rank: int) -> None:
    kill(ranks, rank)
    until(lambda: rank in ranks.dead, "news of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert f"Rank {rank} died (killed by SIGKILL)" in str(caught.value)
    assert "g (its only copy died with the rank)" in str(caught.value)
    assert "r (each rank had its own, and one died with it)" in str(caught.value)
    check_whole(ranks)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_is_killed_in_a_collective(ranks: jaxcluster.Cluster, rank: int) -> None:
    timer = threading.Timer(0.7, kill, (ranks, rank))
    timer.start()
    notices: list[str] = []
    with pytest.raises(RankDied) as caught:
        ranks.run(
            "for step in range(10**6): s = float(total(g * step))",
            show=False,
            on_notice=notices.append,
        )
    timer.join()
    assert caught.value.ranks[0] == rank or rank in caught.value.ranks
    assert any(notice.startswith(f"Rank {rank} died: killed by SIGKILL") for notice in notices)
    assert "Don't trust what this cell assigned: s, step." in str(caught.value)
    check_whole(ranks)


def test_twice_in_a_row(ranks: jaxcluster.Cluster) -> None:
    for rank in (1, 3):
        kill(ranks, rank)
        until(lambda rank=rank: rank in ranks.dead, "news of the death", 5)
        with pytest.raises(RankDied):
            ranks.run("print(1)", show=False)
        check_whole(ranks)


def test_all_ranks_in_different_collectives_get_their_variables_on_new_processes(
    ranks: jaxcluster.Cluster,
) -> None:
    pids = list(ranks.record.pids)
    started = time.monotonic()
    with pytest.raises(Divergence) as caught:
        ranks.run(
            "if r % 2: print(jnp.sum(g))\nelse: print(mhu.process_allgather(np.ones(1000)).sum())",
            show=False,
        )
    assert time.monotonic() - started < 20
    assert "launched different programs" in str(caught.value)
    assert "New processes after" in str(caught.value)
    assert set(pids).isdisjoint(ranks.record.pids)
    check_whole(ranks)
    record = ranks.run("print(float(total(g)), r)", show=False)
    assert [record.stdout(rank) for rank in range(4)] == [f"120.0 {rank}\n" for rank in range(4)]


def test_recovery_waits_when_it_is_set_to_ask(ranks: jaxcluster.Cluster) -> None:
    ranks.recovery = "ask"
    kill(ranks, 1)
    until(lambda: 1 in ranks.dead, "news of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "%jaxcluster restart gives it new processes" in str(caught.value)
    assert "rank 1 replaced" in ranks.restart()
    check_whole(ranks)


def test_a_restart_keeps_variables_and_a_clean_one_does_not(ranks: jaxcluster.Cluster) -> None:
    assert "variables kept" in ranks.restart()
    check_whole(ranks)
    ranks.restart(clean=True)
    with pytest.raises(JaxClusterError, match="history"):
        ranks.run(CHECK.replace("float(total(w)), ", ""), show=False)


def test_a_stopped_rank_is_told_and_the_cell_goes_on_when_it_does(
    ranks: jaxcluster.Cluster,
) -> None:
    pid = ranks.record.pids[1]
    os.kill(pid, signal.SIGSTOP)
    notices: list[str] = []

    def wake(notice: str) -> None:
        notices.append(notice)
        os.kill(pid, signal.SIGCONT)

    record = ranks.run("print(float(total(w)))", show=False, on_notice=wake)
    assert [record.stdout(rank) for rank in range(4)] == ["10.0\n"] * 4
    assert f"Rank 1 (pid {pid}) gives no sign of life." in notices[0]


@pytest.mark.parametrize("num_processes", [2, 8])
def test_a_skip_and_a_death_on_fewer_and_more_ranks(home: Home, num_processes: int) -> None:
    with jaxcluster.start(num_processes, devices_per_process=1, name="sizes") as cluster:
        cluster.run(SETUP)
        with pytest.raises(Divergence) as caught:
            cluster.run("if r != 1: print(float(total(g)))", show=False)
        assert caught.value.report.culprits == (1,)
        record = cluster.run("print(float(total(g)))", show=False)
        assert [record.stdout(r) for r in range(num_processes)] == ["120.0\n"] * num_processes
        kill(cluster, num_processes - 1)
        until(lambda: cluster.dead, "news of the death", 5)
        with pytest.raises(RankDied):
            cluster.run("print(1)", show=False)
        source = "import jax\nprint(jax.process_count())"
        record = cluster.run(source, show=False)
        assert record.stdout(num_processes - 1) == f"{num_processes}\n"
