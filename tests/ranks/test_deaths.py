"""Ranks that die or hang: told with the reason, replaced, and the variables come back."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import overhosts
import pytest
from helpers import DEVICES, Home, until
from overhosts import (
    Process,
    coordinator_of,
    place,
    processes_of,
    saved_folders,
    send_signal,
    started_by,
)

import jaxcluster
from jaxcluster.cluster import recovery
from jaxcluster.errors import (
    CellFailed,
    EnginesMissing,
    NoCluster,
    RankDied,
)
from jaxcluster.hosts.processes import Processes

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
CHECK = "print(float(total(w)), mesh.devices.size)"


@pytest.fixture(params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(4, devices_per_process=request.param, name="deaths") as cluster:
        cluster.run(SETUP)
        yield cluster


def check_whole(cluster: jaxcluster.Cluster, *replaced: int) -> None:
    """What all ranks share is there on all of them, the others have what was their own."""
    devices = len(cluster.record.devices[0].devices) * 4
    assert all_print(cluster, CHECK) == [f"10.0 {devices}\n"] * 4
    own = all_print(cluster, "print(globals().get('history'), globals().get('r'))")
    assert own == [
        "None None\n" if rank in replaced else f"[1.0, 2.0] {rank}\n" for rank in range(4)
    ]
    sum_of_all = "print(float(total(spread(np.arange(16.0)))))"
    assert all_print(cluster, sum_of_all) == ["120.0\n"] * 4


def all_print(cluster: jaxcluster.Cluster, source: str) -> list[str]:
    record = cluster.run(source, show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


@pytest.mark.promise("What needs new processes")
def test_a_rank_that_is_killed_in_a_collective(ranks: jaxcluster.Cluster) -> None:
    rank = 0 if len(ranks.record.devices[0].devices) == 1 else 3
    timer = threading.Timer(0.7, send_signal, (ranks, rank))
    timer.start()
    notices: list[str] = []
    with pytest.raises(RankDied) as caught:
        ranks.run(
            "for step in range(10**6): s = float(total(g * step))",
            show=False,
            on_notice=notices.append,
        )
    timer.join()
    assert rank in caught.value.ranks
    assert str(caught.value).count("killed by SIGKILL") == 1
    assert not any("SIGKILL" in notice for notice in notices)  # it is said once
    check_whole(ranks, rank)


def test_a_recovery_waits_if_it_is_set_to_never(ranks: jaxcluster.Cluster) -> None:
    ranks.recovery = "never"
    send_signal(ranks, 1)
    until(lambda: 1 in ranks.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "%jaxcluster restart gives the ranks new processes" in str(caught.value)
    assert "rank 1 replaced" in ranks.restart()
    check_whole(ranks, 1)


def test_others_are_interrupted_where_a_rank_dies_in_a_cell_that_has_failed(
    ranks: jaxcluster.Cluster,
) -> None:
    failing = """
    import os
    if r == 0:
        raise ValueError
    if r == 1:
        time.sleep(0.2)
        os._exit(3)
    try:
        while True:
            time.sleep(0.05)
    finally:
        ended = True
    """
    with pytest.raises(RankDied):
        ranks.run(textwrap.dedent(failing))
    ended = ranks.run("print(ended)", ranks=[2, 3])
    assert ended.records[2].text() == "True\n"


@pytest.mark.promise("What needs new processes")
def test_what_is_queued_behind_a_death_was_not_run(ranks: jaxcluster.Cluster) -> None:
    ranks.run("import os\nkept = 0")
    dies = "time.sleep(0.5)\nif r == 1: os.kill(os.getpid(), 9)\ntime.sleep(30)"
    first, *later = [ranks.submit(source) for source in (dies, "kept += 1", "kept += 1")]
    with pytest.raises(RankDied, match=r"^Rank 1 died: killed by SIGKILL"):
        first.wait()
    for cell in later:
        with pytest.raises(RankDied, match="was skipped: rank 1 died before it began"):
            cell.wait()
    told = all_print(ranks, "print(globals().get('kept'))")
    assert told == ["0\n", "None\n", "0\n", "0\n"]


# ---------------------------------------------------------------------- during start and recovery


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The ranks' processes, as soon as they are started."""
    newest: list[Process] = []
    of: type[Any] = Processes
    start = of.start

    def remember(processes: Any, **options: Any) -> list[int]:
        pids: list[int] = start(processes, **options)
        newest[:] = started_by(processes, pids)
        return pids

    monkeypatch.setattr(of, "start", remember)
    return newest


def killer(processes: list[Process], rank: int, step: str, times: int = 1) -> Callable[[str], Any]:
    """A listener to progress that kills a rank as soon as ``step`` is said."""
    left = [step] * times

    def listen(line: str) -> None:
        if left and line.startswith(left[-1]):
            left.pop()
            processes[rank].send()

    return listen


def nothing_is_saved_but(before: set[str]) -> None:
    """Other clusters of this machine may save and restore meanwhile."""
    until(lambda: not saved_folders() - before, "the saved state is removed", 10)


@pytest.mark.parametrize(
    ("step", "rank"), [("engines 2/2", 1), ("initializing JAX", 0), ("connecting engines", 1)]
)
def test_a_rank_that_dies_during_the_start_is_named_with_signal_and_log(
    home: Home, newest: list[Process], step: str, rank: int
) -> None:
    spec = jaxcluster.cluster.make_spec(2, name="stillborn")
    started = time.monotonic()
    with pytest.raises(EnginesMissing) as caught:
        jaxcluster.cluster.start_spec(spec, killer(newest, rank, step))
    assert time.monotonic() - started < 15  # not the 60 s that a start may take
    host = f" on host {newest[rank].host}" if overhosts.hosts() else ""
    told = f"Rank {rank} died while the cluster started (killed by SIGKILL{host}). "
    assert str(caught.value).startswith(told)
    assert "log" in str(caught.value)
    assert "%jaxcluster doctor" in caught.value.hint
    assert caught.value.ranks == (rank,)
    with jaxcluster.start(2, name="stillborn") as again:
        assert again.run("print(1)", show=False).stdout() == "1\n"


@pytest.mark.parametrize("step", ["saving", "initializing JAX", "restoring"])
def test_a_rank_that_dies_during_a_recovery_costs_a_second_try_and_no_more(
    ranks: jaxcluster.Cluster, newest: list[Process], step: str
) -> None:
    newest[:] = processes_of(ranks)
    before = saved_folders()
    kept = ranks.restart(killer(newest, 3, step))
    assert "variables kept" in kept
    if step == "saving":
        assert "rank 3 replaced" in kept
    else:
        assert "Lost" not in kept
        record = ranks.run("print(float(total(g)), r)", show=False)
        assert [record.stdout(rank) for rank in range(4)] == [f"120.0 {r}\n" for r in range(4)]
    check_whole(ranks, *[3] * (step == "saving"))
    nothing_is_saved_but(before)


def test_a_recovery_that_fails_keeps_what_was_saved_for_the_next_restart(
    ranks: jaxcluster.Cluster, newest: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved_folders()
    start_world = recovery.start_world
    dying = killer(newest, 1, "initializing JAX", times=2)
    monkeypatch.setattr(
        recovery,
        "start_world",
        lambda spec, say, *rest, **more: start_world(spec, dying, *rest, **more),
    )
    send_signal(ranks, 2)
    until(lambda: 2 in ranks.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "Recovery failed: Rank 1 died while the cluster started" in str(caught.value)
    down = "Cluster 'deaths' has no processes now: new ones did not start."
    hint = "The variables of ranks 0, 1, 3 are saved: %jaxcluster restart restores them"
    assert f"{down}\n{hint}" in str(caught.value)
    with pytest.raises(NoCluster, match="has no processes now: new ones did not") as refused:
        ranks.run("print(1)", show=False)
    assert hint in str(refused.value)
    assert jaxcluster.current() is ranks
    monkeypatch.undo()
    assert "rank 2 replaced" in ranks.restart()
    check_whole(ranks, 2)
    nothing_is_saved_but(before)


def test_the_death_of_all_ranks_ends_in_empty_ones(ranks: jaxcluster.Cluster) -> None:
    for rank in range(4):
        send_signal(ranks, rank)
    until(lambda: len(ranks.dead) == 4, "word of the deaths", 5)
    with pytest.raises(RankDied) as caught:
        ranks.run("print(1)", show=False)
    assert "Ranks 0-3 died" in str(caught.value)
    said = " ".join(str(caught.value).split())  # it is wrapped
    assert "history (no rank survived)" in said
    assert "Run cell [1] to make them again." in said
    again = r"name 'history' was lost .*\(no rank survived\); run cell \[1\] again"
    with pytest.raises(CellFailed, match=again):
        ranks.run("print(history)", show=False)
    record = ranks.run(SETUP + "print(float(total(g)))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4


# ------------------------------------------------------------------------------- the coordinator


def test_the_death_of_the_coordinator_is_told_and_the_ranks_are_replaced(
    ranks: jaxcluster.Cluster,
) -> None:
    killed = f"killed by SIGKILL{place(ranks, 0)}"
    coordinator_of(ranks).send()
    until(lambda: len(ranks.dead) == 4, "word of the ranks' deaths", 10)
    assert f"whose coordinator had died: {killed}" in ranks.summary()
    with pytest.raises(RankDied, match="ended by JAX, whose coordinator had died: ") as caught:
        ranks.run("print(1)", show=False)
    assert killed in str(caught.value)
    assert not ranks.world.coordinator_died
    assert "coordinator" not in ranks.summary()
    record = ranks.run(SETUP + "print(float(total(g)))", show=False)
    assert [record.stdout(rank) for rank in range(4)] == ["120.0\n"] * 4
