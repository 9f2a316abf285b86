"""Strict mode stays as it was set, whatever gives the cluster new processes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from helpers import Notebook, until
from overhosts import processes_of, send_signal

import jaxcluster
from jaxcluster.errors import Divergence, RankDied

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("x",))
g = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda i: np.arange(8.0)[i])
total = float(jnp.sum(g))
"""
DIFFERENT = "value = jnp.max(g) if rank else jnp.min(g)"


def assert_checks(cluster: jaxcluster.Cluster) -> None:
    """Two programs that differ raise on all ranks, with nothing launched."""
    assert cluster.is_strict
    with pytest.raises(Divergence) as caught:
        cluster.run(DIFFERENT, show=False)
    assert "were about to launch different programs, and launched none" in str(caught.value)
    assert cluster.run("print(float(jnp.sum(g)))", show=False).stdout() == "28.0\n"


def restart(cluster: jaxcluster.Cluster) -> None:
    cluster.restart()


def restart_clean(cluster: jaxcluster.Cluster) -> None:
    cluster.restart(clean=True)


def death_in_a_cell(cluster: jaxcluster.Cluster) -> None:
    with pytest.raises(RankDied):
        cluster.run("if rank == 1: os.kill(os.getpid(), 9)\ntotal = float(jnp.sum(g))", show=False)


def death_between_cells(cluster: jaxcluster.Cluster) -> None:
    send_signal(cluster, 1, signal.SIGKILL)
    until(lambda: cluster.dead, "the death is known")
    with pytest.raises(RankDied):
        cluster.run("1", show=False)


WAYS = (restart, restart_clean, death_in_a_cell, death_between_cells)


@pytest.mark.parametrize("renew", WAYS, ids=lambda renew: renew.__name__)
def test_strict_mode_is_on_again_after_new_processes(
    start: Callable[..., jaxcluster.Cluster], renew: Callable[[jaxcluster.Cluster], None]
) -> None:
    cluster = start(2, platform="cpu")
    cluster.run(SETUP, show=False)
    cluster.strict(True)
    assert_checks(cluster)
    before = processes_of(cluster)
    renew(cluster)
    cluster.run(SETUP, show=False)  # a dead rank's part of an array is lost
    assert_checks(cluster)
    assert processes_of(cluster) != before
    cluster.strict(False)
    cluster.restart()
    assert not cluster.is_strict


def test_a_thread_that_launched_alone_costs_no_later_cell(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, platform="cpu")
    cluster.run(SETUP, show=False)
    cluster.strict(True)
    alone = "import threading\nt = threading.Thread(target=lambda: jnp.sum(g) if not rank else 0)"
    for _ in range(2):
        with pytest.raises(Divergence) as caught:
            cluster.run(f"{alone}\nt.start()\nt.join()", show=False)
        assert "Back in lockstep" in str(caught.value)
        for _ in range(2):
            assert cluster.run("print(float(jnp.sum(g)))", show=False).stdout(1) == "28.0\n"
    assert_checks(cluster)


def test_strict_mode_of_one_cell_ends_with_it_though_a_rank_died(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok("%jaxcluster recovery never")
    notebook.ok("%%spmd\nimport jax, os")
    died = notebook.run("%%spmd --strict\nif jax.process_index(): os.kill(os.getpid(), 9)")
    assert died.ename == "RankDied"
    notebook.ok("%jaxcluster restart")
    assert "Strict mode is off." in notebook.ok("%jaxcluster strict").stdout
    notebook.ok("%jaxcluster stop")
