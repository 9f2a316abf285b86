"""Ranks have launched different programs, and another one may yet launch any: it is told at once.

With two devices each, they don't wait in a launch: cells end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from helpers import Home, until

import jaxcluster
from jaxcluster.errors import CellInterrupted, Divergence
from jaxcluster.model.notices import ClusterWarning

SETUP = """
import ctypes, jax, jax.numpy as jnp, numpy as np, threading, time
from jax.sharding import NamedSharding, PartitionSpec as P
split = NamedSharding(jax.make_mesh((jax.device_count(),), ("i",)), P("i"))
g = jax.make_array_from_callback((12,), split, lambda index: np.arange(12.0)[index])
r = jax.process_index()
total, most = jax.jit(lambda v: jnp.sum(v)), jax.jit(lambda v: jnp.max(v))
def loader(): time.sleep(60)
def hold():  # the control channel can't answer meanwhile
    time.sleep(0.3)
    ctypes.PyDLL(None).usleep(9_000_000)
float(total(g)), float(most(g))
"""


@pytest.fixture(scope="module")
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=2, name="beside") as cluster:
        cluster.run(SETUP)
        yield cluster


def check_told(error: BaseException, cluster: jaxcluster.Cluster) -> None:
    assert isinstance(error, Divergence)
    assert error.report.kind == "mismatch"
    assert {*error.report.culprits, *error.report.others} == {0, 2}
    assert "This cell is undone" in str(error)
    record = cluster.run("print(float(total(g)), 'y' in globals())", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 False\n"] * 3


@pytest.mark.promise("The promise")
@pytest.mark.parametrize(
    "late",  # rank 2's cell has ended before the others', and its journal is seen last
    ["", "if r == 2: threading.Thread(target=hold).start()\nelse: time.sleep(0.8)\n"],
    ids=["at once", "late"],
)
def test_a_thread_excuses_no_cell_whose_other_ranks_launched_different_programs(
    ranks: jaxcluster.Cluster, late: str
) -> None:
    source = (
        "if r == 1: threading.Thread(target=loader, daemon=True).start()\n"
        "if r == 0: y = total(g)\n"
        "if r == 2: y = most(g)"
    )
    with pytest.raises(Divergence) as caught:
        ranks.run(late + source, show=False)
    check_told(caught.value, ranks)


def test_a_stop_hides_no_different_programs_where_a_rank_has_launched_neither(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("float(total(g)), float(most(g))", show=False)  # new processes compile them first
    cell = ranks.submit("if r != 1: y = most(g) if r else total(g)\ntime.sleep(60)")
    counts = lambda: [len(report.launches) for report in ranks.reports().values()]  # noqa: E731
    until(lambda: max(counts()) > min(counts()), "ranks 0 and 2 have launched")
    cell.stop()
    with pytest.raises((Divergence, CellInterrupted)) as caught:
        cell.wait()
    check_told(caught.value, ranks)


LOADER = """
import queue
def batches():
    found = queue.Queue(2)
    def work():
        try:
            for i in range(4):
                if r == 1 and i == 2: raise ValueError("bad file")
                found.put(i)
        finally:
            found.put(None)
    threading.Thread(target=work, name="loader", daemon=True).start()
    while (i := found.get()) is not None: yield i
for i in batches(): y = total(g + i)
"""


@pytest.mark.promise("The promise")
def test_what_a_loaders_thread_has_failed_with_is_named(ranks: jaxcluster.Cluster) -> None:
    cell, said = ranks.submit(LOADER.strip()), list[str]()
    cell.runner.on_notice = said.append
    with pytest.raises(Divergence) as caught:
        cell.wait()
    told = r"Thread 'loader' of rank 1 ended with ValueError at cell \[\d+\] line 7: bad file"
    assert re.fullmatch(told, str(caught.value).splitlines()[0])
    assert "last batch" not in str(caught.value)
    assert not any("ended with ValueError" in line for line in said), "it is told once"


def test_a_thread_that_fails_on_a_rank_that_is_not_shown_is_told(
    ranks: jaxcluster.Cluster,
) -> None:
    source = """
def write():
    if r: raise OSError("disk full")
thread = threading.Thread(target=write, name="writer")
thread.start()
thread.join()
print(float(total(g)))"""
    with pytest.warns(ClusterWarning) as told:
        ranks.run(source.strip(), show=False)
    place = r"cell \[\d+\] line 2"
    line = rf"Thread 'writer' of ranks 1, 2 ended with OSError at {place}: disk full"
    assert [bool(re.fullmatch(line, str(one.message))) for one in told] == [True]
    ranks.run("total(g)", show=False)  # it is told once: a warning is an error here


CAUGHT = """
done = 0
try:
    for done in range(1, 10**9):  # Python 3.11 catches nothing at the jump of a ``while True``
        y = total(g)
        time.sleep(0.01 * (r + 1))
except KeyboardInterrupt:
    print("saved")
"""


@pytest.mark.promise("Interrupts")
def test_a_stop_that_the_cell_catches_is_what_parts_its_ranks(ranks: jaxcluster.Cluster) -> None:
    cell = ranks.submit(CAUGHT)
    until(lambda: min(len(one.launches) for one in ranks.reports().values()) > 20, "the loop runs")
    ranks.interrupt()
    with pytest.raises(Divergence) as caught:
        cell.wait()
    first, *more = str(caught.value).splitlines()
    assert first.startswith("The cell has caught a stop on ranks 0-2:")
    assert not any("ran more often" in line or "last batch" in line for line in more)
    assert "Hint: let a stop end the cell, or end the loop on all ranks alike." in more
