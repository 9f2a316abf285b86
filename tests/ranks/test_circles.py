"""Ranks that launch programs of several sets of processes in other orders wait for each other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from helpers import DEVICES, Home

import jaxcluster
from jaxcluster.errors import Divergence

BUSY_S = 15.0  # what other work on the machine may add to a figure

SETUP = """
import jax, jax.numpy as jnp, numpy as np, threading, time
from jax.sharding import NamedSharding, PartitionSpec as P
def spread(ranks, n=24):
    devices = [d for d in jax.devices() if d.process_index in ranks]
    s = NamedSharding(jax.sharding.Mesh(np.array(devices), ("i",)), P("i"))
    return jax.make_array_from_callback((n,), s, lambda i: np.arange(float(n))[i])
r = jax.process_index()
total, most = jax.jit(lambda v: jnp.sum(v)), jax.jit(lambda v: jnp.max(v))
kept = 42
everyone = spread({0, 1, 2})
if r != 2: first = spread({0, 1})
if r != 1: outer = spread({0, 2})
if r != 0: last = spread({1, 2})
a = float(total(everyone))
if r != 2: float(most(first))
if r != 1: float(most(outer))
if r != 0: float(most(last))
"""
TWO = """\
if r == 0:
    a = total(everyone); b = most(first)
elif r == 1:
    b = most(first)
    a = total(everyone)
else:
    a = total(everyone)
"""


@pytest.fixture(params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        3, devices_per_process=request.param, name=f"circle-{request.param}"
    ) as c:
        c.run(SETUP)
        yield c


def check_whole(cluster: jaxcluster.Cluster) -> None:
    record = cluster.run(
        "print(float(total(everyone)), kept, float(most(first)) if r != 2 else '')",
        show=False,
        timeout_s=60,
    )
    assert [record.stdout(rank) for rank in range(3)] == ["276.0 42 23.0\n"] * 2 + ["276.0 42 \n"]


def fails(cluster: jaxcluster.Cluster, source: str) -> tuple[Divergence, float]:
    """The divergence that a cell must end in, after which all is whole; and when it was told."""
    told: list[tuple[float, str]] = []
    cell = cluster.submit(source)
    cell.runner.on_notice = lambda line: told.append((time.monotonic() - cell.started, line))
    with pytest.raises(Divergence) as caught:
        cell.wait()
    at = time.monotonic() - cell.started
    if caught.value.report.kind == "circle":
        at = next(at for at, line in told if "waited for each other" in line)
    else:  # where the launches do not wait, all have been made, and their orders are compared
        assert "in different orders" in str(caught.value)
    check_whole(cluster)
    return caught.value, at


@pytest.mark.promise("The poll")
def test_two_sets_in_another_order_are_named_and_recovered(ranks: jaxcluster.Cluster) -> None:
    error, at = fails(ranks, TWO + "print(float(a))")
    assert at < 2.0 + BUSY_S
    if error.report.kind == "circle":
        assert "Deadlock: the ranks waited for each other" in str(error)
        assert "line 2, a program of ranks 0-2, for rank 1." in str(error)
        assert "line 4, a program of ranks 0, 1, for rank 0." in str(error)
        assert error.report.culprits == (0, 1)
    else:
        assert "rank 0: first jit(<lambda>)" in str(error)
        assert "rank 1: first jit(<lambda>)" in str(error)
    assert "New processes after" in str(error)


def test_one_in_which_nothing_waits_yet_is_found_too(ranks: jaxcluster.Cluster) -> None:
    """With two devices nothing waits in the cell that did it, and all counts are even."""
    fails(ranks, TWO)


@pytest.mark.parametrize("devices", DEVICES)
def test_a_thread_that_launches_less_on_one_rank_is_no_deadlock(home: Home, devices: int) -> None:
    source = """\
def work():
    for i in range(3 if r != 2 else 2): total(everyone * i)
thread = threading.Thread(target=work); thread.start(); thread.join()
b = total(everyone)
"""
    with jaxcluster.start(3, devices_per_process=devices, name="fewer") as cluster:
        cluster.run(SETUP)
        with pytest.raises(Divergence) as caught:
            cluster.run(source, show=False)
        told = str(caught.value)
        assert told.startswith("The ranks launched different programs as launch "), told
        assert "  ranks 0, 1: jit(multiply), cell [2] line 2" in told
        assert "  rank 2: jit(<lambda>), cell [2] line 4" in told
        check_whole(cluster)


def test_a_circle_over_three_ranks(ranks: jaxcluster.Cluster) -> None:
    error, _ = fails(
        ranks,
        "if r == 0: x = most(first); y = most(outer)\n"
        "elif r == 1: x = most(last); y = most(first)\n"
        "else: x = most(outer); y = most(last)\n"
        "print(float(x), float(y))",
    )
    assert error.report.kind != "circle" or set(error.report.culprits) == {0, 1, 2}


def test_sets_in_one_order_are_fine_however_late_a_rank_comes(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    record = ranks.run(
        "for i in range(4):\n"
        "    time.sleep(0.8 * (r == i % 3))\n"
        "    a = total(everyone)\n"
        "    if r != 2: b = most(first)\n"
        "    if r != 0: c = most(last)\n"
        "print(float(a))",
        show=False,
    )
    assert record.stdout(1) == "276.0\n"
    assert ranks.record.pids == pids


@pytest.mark.promise("Strict mode")
def test_in_strict_mode_nothing_is_launched_and_the_processes_stay(
    ranks: jaxcluster.Cluster,
) -> None:
    pids = list(ranks.record.pids)
    ranks.strict(True)
    try:
        with pytest.raises(Divergence) as caught:
            ranks.run(TWO + "print(float(a))", show=False)
        assert "waited for each other" in str(caught.value)
    finally:
        ranks.strict(False)
    check_whole(ranks)
    assert ranks.record.pids == pids


def test_ranks_that_call_what_others_devices_compute_are_in_no_circle(
    ranks: jaxcluster.Cluster,
) -> None:
    """As in JAX's guide to shard_map, in whose meshes of 4 of 8 devices some ranks have none."""
    ranks.run(
        "outer = [d for d in jax.devices() if d.process_index]\n"
        "some = jax.sharding.Mesh(np.array(outer), ('i',))\n"
        "make = jax.jit(lambda: jnp.arange(48.), out_shardings=NamedSharding(some, P('i')))\n"
        "v = total(make())\n"
        "a = float(total(everyone))\n"
        "time.sleep(1.5)  # it is looked at after a second",
        show=False,
    )
    check_whole(ranks)
