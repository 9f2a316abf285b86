"""Who keeps the others waiting, by the journals' own times."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from helpers import Notebook, until

import jaxcluster
from jaxcluster.model import stragglers

pytestmark = pytest.mark.any_jax

SETUP = """
total = jax.jit(lambda x: (x * x).sum())
def load_batch(extra):
    time.sleep(0.002 + extra)
"""
LOOP = """for number in range({steps}):
    load_batch({extra} * (rank == 1))
    loss = total(x)
    if number % {sync} == 0:
        float(loss)
"""


@pytest.fixture(scope="module")
def ready(cluster: jaxcluster.Cluster) -> jaxcluster.Cluster:
    cluster.run(SETUP, show=False, execution_count=3)
    return cluster


def loop(extra: float = 0.0, steps: int = 60, sync: int = 1) -> str:
    return LOOP.format(steps=steps, extra=extra, sync=sync)


@pytest.mark.parametrize("sync", [1, 10])
def test_a_laggard_of_50_ms_is_named(ready: jaxcluster.Cluster, sync: int) -> None:
    ready.run(loop(0.05, sync=sync), show=False, execution_count=4)
    found = ready.straggler()
    assert found is not None
    assert found.ranks == (1,)
    assert 0.04 < found.behind_s < 0.12
    assert found.share > 0.7
    assert (found.launch.cell, found.launch.line) == (4, 3)


def test_nobody_is_named_where_all_are_alike(ready: jaxcluster.Cluster) -> None:
    for _ in range(3):
        ready.run(loop(), show=False)
        assert ready.straggler() is None


def test_where_it_is_meanwhile_is_said(ready: jaxcluster.Cluster) -> None:
    cell = ready.submit(loop(0.05, steps=200), execution_count=5)
    try:
        found = until(ready.straggler, "a straggler")
    finally:
        cell.wait()
    assert stragglers.tell(found).endswith("at cell [3] line 4 (load_batch).")


def test_it_costs_little_to_ask(ready: jaxcluster.Cluster) -> None:
    ready.run(loop(steps=600, sync=100).replace("0.002", "0"), show=False)
    began = time.monotonic()
    ready.straggler()
    assert time.monotonic() - began < 5  # some 0.05 s


@pytest.mark.one_machine("what a notebook shows is the same")
def test_status_and_journal_say_it(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok(
        "%%spmd\nimport jax, numpy as np, time\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "mesh = jax.make_mesh((2,), ('i',))\nrank = jax.process_index()\n"
        "x = jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec('i')))\n"
        "total = jax.jit(lambda x: x.sum())"
    )
    assert "came last" not in notebook.ok("%jaxcluster status").stdout
    notebook.ok("%%spmd\nfor _ in range(40):\n    time.sleep(0.05 * rank)\n    float(total(x))")
    for command in ("status", "journal"):
        told = notebook.ok(f"%jaxcluster {command}").stdout
        assert "Rank 1 came last into " in told
        assert "before the launch at line 4." in told
    notebook.ok("%jaxcluster stop")
