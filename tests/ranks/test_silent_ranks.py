"""Ranks that can't be asked anything: stopped, starved, or in C code that keeps the GIL.

It is said why, by what the kernel says of them; a stop is heard; and a rank that will never answer
is replaced as a dead one is.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import Home, until
from overhosts import process_of
from pace import slowness

import jaxcluster
from jaxcluster.cluster import running, world
from jaxcluster.cluster.running import RunningCell
from jaxcluster.errors import CellFailed, CellInterrupted, RecoveryError

pytestmark = pytest.mark.any_jax

BUSY_S = 15.0  # what other work on the machine may add to a figure
SETUP = """
import itertools, jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
g = jax.make_array_from_callback((12,), split, lambda index: np.arange(12.0)[index])
r = jax.process_index()
keep = "mine"
float(jnp.sum(g))
"""
GOES_ON = "Rank 1 was stopped by a signal (`kill -CONT {pid}` lets its process go on)"


@pytest.fixture(scope="module")
def shared(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=2, name="silent") as cluster:
        yield cluster


@pytest.fixture
def ranks(shared: jaxcluster.Cluster) -> Iterator[jaxcluster.Cluster]:
    """After each test the next result is right, on all ranks."""
    shared.run(SETUP)
    pids = list(shared.record.pids)
    yield shared
    if shared.record.pids != pids:
        shared.run(SETUP)  # the shards of the rank that was ended are gone
    record = shared.run("print(float(jnp.sum(g)), keep)", show=False, timeout_s=60)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 mine\n"] * 3


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience with ranks that hear nothing: they are interrupted after 2 s."""
    monkeypatch.setattr(running, "STUCK_S", 3.0)
    monkeypatch.setattr(world, "PATIENCE_S", 5.0 * slowness())


def begin(cluster: jaxcluster.Cluster, source: str) -> tuple[RunningCell, list[str]]:
    """A cell that is carried through on a thread, and what is said below it."""
    cell, notices = cluster.submit(source), []
    cell.on_status = notices.append
    cell.run_in_background(lambda record: None)
    return cell, notices


def line_of(notices: list[str], words: str) -> str:
    return until(lambda: next((one for one in notices if words in one), ""), f"it says {words!r}")


def test_a_stopped_rank_is_called_stopped_and_goes_on(ranks: jaxcluster.Cluster) -> None:
    process = process_of(ranks, 1)
    process.send(signal.SIGSTOP)
    cell, notices = begin(ranks, "print(float(jnp.sum(g)))")
    try:
        line = line_of(notices, "stopped by a signal")
        assert GOES_ON.format(pid=process.pid) in line
        assert "restart" not in line  # that does not end it
    finally:
        process.send(signal.SIGCONT)
    assert cell.wait().stdout(0) == "66.0\n"


@pytest.mark.usefixtures("hasty")
def test_a_stopped_rank_is_not_ended_for_new_processes(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    process = process_of(ranks, 1)
    process.send(signal.SIGSTOP)
    until(lambda: process.state == "T", "it is stopped")  # on a busy machine that takes a moment
    try:
        with pytest.raises(RecoveryError) as caught:
            ranks.restart()
    finally:
        process.send(signal.SIGCONT)
    told = f"{GOES_ON.format(pid=process.pid)}. So the variables of rank 1 can't be saved"
    assert str(caught.value).startswith(told)
    assert ranks.record.pids == pids
    process.send(signal.SIGSTOP)
    threading.Timer(2.0, process.send, [signal.SIGCONT]).start()
    assert "kept" in ranks.restart()  # it waits for a rank that goes on


@pytest.mark.usefixtures("hasty")
def test_a_stop_replaces_the_rank_that_can_not_hear_it(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    keeps_the_gil = "if r == 1: sum(itertools.repeat(1, 10**12))\nprint(float(jnp.sum(g)))"
    cell, notices = begin(ranks, keeps_the_gil)
    line = line_of(notices, "C code")
    assert "Rank 1 is not responding: in C code that holds Python's GIL, or " in line
    pressed = time.monotonic()
    cell.stop()
    with pytest.raises(CellInterrupted) as caught:
        cell.wait()
    assert time.monotonic() - pressed < 15.0 + BUSY_S
    told = " ".join(str(caught.value).split())
    assert "Rank 1 did not come back from C code." in told
    assert "rank 1 replaced" in told
    assert "keep (" not in told.partition("Lost")[2]
    assert ranks.record.pids != pids


@pytest.mark.usefixtures("hasty")
@pytest.mark.promise("The promise")
def test_an_interrupt_that_no_rank_can_hear_is_told_and_ends_them(
    ranks: jaxcluster.Cluster,
) -> None:
    """In C code that does not keep the GIL: their control channels answer."""
    cell, _ = begin(ranks, "import hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)")
    until(lambda: all(s.state == "running" for s in ranks.status()), "the cell runs")
    assert ranks.interrupt() == [0, 1, 2]
    with pytest.raises(CellInterrupted, match="New processes"):
        cell.wait()


@pytest.mark.usefixtures("hasty")
@pytest.mark.promise("The promise")
def test_an_interrupt_that_the_cell_catches_is_heard_however_long_it_goes_on(
    ranks: jaxcluster.Cluster,
) -> None:
    cell, _ = begin(
        ranks,
        "try:\n    print('begun', flush=True)\n    for k in range(10**9): x = jnp.ones(3) + 1\n"
        "except KeyboardInterrupt:\n    time.sleep(4.5)\n    print('saved')",
    )
    until(lambda: all(cell.record.stdout(rank) for rank in range(3)), "it has begun")
    assert ranks.interrupt() == [0, 1, 2]
    assert [cell.wait().stdout(rank) for rank in range(3)] == ["begun\nsaved\n"] * 3


def test_a_rank_that_renders_its_error_is_not_cut_off(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed) as caught:
        ranks.run(
            "class Slow(Exception):\n"
            "    def __str__(self):\n"
            "        time.sleep(0.4 * (r == 2)); return 'told'\n"
            "raise Slow",
            show=False,
        )
    assert caught.value.ranks == (0, 1, 2)
    assert "interrupted" not in str(caught.value)
    assert "On all 3 ranks" in "".join(caught.value.traceback)
