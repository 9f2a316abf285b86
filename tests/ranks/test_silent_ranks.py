"""Ranks that can't be asked anything: stopped, starved, or in C code that keeps the GIL.

It is said why, by what the kernel says of them; a stop is heard; and a rank that will never answer
is replaced as a dead one is.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import Home, until
from overhosts import process_of

import jaxcluster
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    JaxClusterError,
    RankDied,
    RecoveryError,
)

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
KEEPS_THE_GIL = "if r == 1: sum(itertools.repeat(1, 10**10))\nprint(float(jnp.sum(g)))"


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=2, name="silent") as cluster:
        cluster.run(SETUP)
        yield cluster


@pytest.fixture(autouse=True)
def whole(ranks: jaxcluster.Cluster) -> Iterator[None]:
    """After each test the next result is right, on all ranks."""
    pids = list(ranks.record.pids)
    yield
    ranks.recovery = "auto"
    if ranks.record.pids != pids or ranks.dead:
        with contextlib.suppress(RankDied):
            ranks.run(SETUP)  # the shards of the rank that was ended are gone
        ranks.run(SETUP)
    record = ranks.run("print(float(jnp.sum(g)), keep)", show=False, timeout_s=60)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 mine\n"] * 3


class Carried:
    """A cell that is waited for on a thread, as it is on a notebook's, with what it says."""

    def __init__(self, cluster: jaxcluster.Cluster, source: str) -> None:
        self.notices: list[str] = []
        self.error: BaseException | None = None
        self.cell = cluster.submit(source)
        self.cell.on_status = self.notices.append
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self) -> None:
        try:
            self.cell.wait()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self.thread.join(90)
        assert not self.thread.is_alive()
        return self.error

    def said(self, words: str) -> str:
        return until(
            lambda: next((line for line in self.notices if words in line), None),
            f"it says {words!r}; it said {self.notices}",
        )


def test_a_stopped_rank_is_called_stopped_and_goes_on(ranks: jaxcluster.Cluster) -> None:
    process = process_of(ranks, 1)
    process.send(signal.SIGSTOP)
    carried = Carried(ranks, "print(float(jnp.sum(g)))")
    try:
        line = carried.said("stopped by a signal")
        assert (
            f"Rank 1 was stopped by a signal (`kill -CONT {process.pid}` lets its process go on)"
            in line
        )
        assert "restart" not in line  # that does not end it
    finally:
        process.send(signal.SIGCONT)
    assert carried.end() is None
    assert carried.cell.record.stdout(0) == "66.0\n"


def test_a_stop_replaces_the_rank_that_can_not_hear_it(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    carried = Carried(ranks, KEEPS_THE_GIL)
    line = carried.said("C code")
    assert "Rank 1 is in C code that keeps Python's global lock: its main thread computed" in line
    pressed = time.monotonic()
    carried.cell.stop()
    error = carried.end()
    assert time.monotonic() - pressed < 15.0 + BUSY_S
    assert isinstance(error, CellInterrupted)
    told = " ".join(str(error).split())
    assert "Rank 1 did not come back from C code." in told
    assert "rank 1 replaced" in told
    assert "keep (" not in told.partition("Lost")[2]
    assert ranks.record.pids != pids


def test_a_stopped_rank_is_not_ended_for_new_processes(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    process = process_of(ranks, 1)
    process.send(signal.SIGSTOP)
    try:
        with pytest.raises(RecoveryError) as caught:
            ranks.restart()
    finally:
        process.send(signal.SIGCONT)
    told = f"Rank 1 was stopped by a signal (`kill -CONT {process.pid}` lets its process go on). "
    assert str(caught.value).startswith(f"{told}So the variables of rank 1 can't be saved")
    assert ranks.record.pids == pids
    process.send(signal.SIGSTOP)
    threading.Timer(2.0, process.send, [signal.SIGCONT]).start()
    assert "kept" in ranks.restart()  # it waits for a rank that goes on
    ranks.run("print(keep)", show=False)


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


def test_a_rank_that_only_calls_what_shows_an_error_is_interrupted(
    ranks: jaxcluster.Cluster,
) -> None:
    with pytest.raises(CellFailed) as caught:
        ranks.run(
            "if r == 0: raise ValueError('bad')\n"
            "try: 1 / 0\nexcept ZeroDivisionError: get_ipython().showtraceback()\n"
            "time.sleep(1000)",
            show=False,
        )
    assert caught.value.ranks == (0,)
    assert "Ranks 1, 2 were interrupted 2 s later." in str(caught.value)


@pytest.mark.one_machine
def test_a_rank_whose_process_runs_another_program_is_replaced(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(JaxClusterError, match="rank 1 replaced"):
        ranks.run("import os\nif r == 1: os.execv('/bin/sleep', ['s', '60'])", timeout_s=2)


@pytest.mark.promise("The promise")
def test_an_interrupt_that_no_rank_can_hear_is_told_and_ends_them(
    ranks: jaxcluster.Cluster,
) -> None:
    """In C code that does not keep the GIL: their control channels answer."""
    source = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)"
    carried = Carried(ranks, source)
    until(lambda: all(s.state == "running" for s in ranks.status()), "the cell runs")
    assert ranks.interrupt() == [0, 1, 2]
    error = carried.end()
    assert isinstance(error, CellInterrupted)
    assert "New processes" in str(error)


@pytest.mark.promise("The promise")
@pytest.mark.parametrize("work", ["time.sleep(60)", "for k in range(10**9): x = jnp.ones(3) + 1"])
def test_an_interrupt_that_the_cell_catches_is_heard_however_long_it_goes_on(
    ranks: jaxcluster.Cluster, work: str
) -> None:
    cell = ranks.submit(
        f"try:\n    {work}\nexcept KeyboardInterrupt:\n    time.sleep(6)\n    print('saved')"
    )
    until(lambda: all(s.state == "running" for s in ranks.status()), "the cell runs")
    time.sleep(0.5)
    assert ranks.interrupt() == [0, 1, 2]
    cell.wait()
    assert [cell.record.stdout(rank) for rank in range(3)] == ["saved\n"] * 3
