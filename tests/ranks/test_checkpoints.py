"""Variables saved under a name come back, in this cluster or a later one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import jaxcluster
from jaxcluster.errors import UsageError

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback(
    (16,), NamedSharding(mesh, P("i")), lambda index: np.arange(16.0)[index])
params = {"w": g, "step": 7}
lines = (line for line in "abc")
"""
CHECK = "print(float(jnp.sum(params['w'])), params['step'], params['w'] is g)"


def test_a_checkpoint_comes_back_in_a_later_cluster(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    first = start(2, name="first")
    first.run(SETUP)
    line = first.checkpoint("epoch-1", tmp_path)
    assert "variables of 2 ranks" in line
    assert "Not saved: lines (cannot pickle 'generator'" in line
    first.stop()
    second = start(2, name="second")
    assert "Restored" in second.restore("epoch-1", tmp_path)
    record = second.run(CHECK, show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["120.0 7 True\n"] * 2
    with pytest.raises(UsageError) as caught:
        second.restore("epoch-2", tmp_path)
    assert "There are: epoch-1." in str(caught.value)


def test_a_checkpoint_has_no_moment_of_a_cell_that_runs(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    """Each rank would be at another one, and none would tell."""
    pair.run("import time, jax\nn, rank = 0, jax.process_index()\nseen = []", show=False)
    cell = pair.submit(
        "for _ in range(20):\n    n += 1; time.sleep(0.02 * (1 + rank)); seen.append(n)"
    )
    pair.checkpoint("c", tmp_path)
    cell.wait()
    pair.run("n = seen = None", show=False)
    pair.restore("c", tmp_path)
    told = pair.run("print(n, len(seen))", show=False)
    assert [told.stdout(rank) for rank in range(2)] == ["20 20\n"] * 2
