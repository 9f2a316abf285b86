"""Variables saved under a name come back, in this cluster or a later one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxcluster
from jaxcluster.cluster import checkpoints
from jaxcluster.errors import RecoveryError, UsageError

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
    line = checkpoints.save(first.world, "epoch-1", tmp_path)
    assert "variables of 2 ranks" in line
    assert "Not saved: lines (a generator" in line
    first.stop()
    second = start(2, name="second")
    assert "Restored" in checkpoints.restore(second.world, "epoch-1", tmp_path)
    record = second.run(CHECK, show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["120.0 7 True\n"] * 2
    with pytest.raises(UsageError) as caught:
        checkpoints.restore(second.world, "epoch-2", tmp_path)
    assert "There are: epoch-1." in str(caught.value)


def test_a_cluster_of_another_size_refuses_it(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    first = start(2, name="two")
    first.run(SETUP)
    checkpoints.save(first.world, "c", tmp_path)
    other = start(3, name="three")
    with pytest.raises(RecoveryError, match="saved by 2 processes, and these are 3"):
        checkpoints.restore(other.world, "c", tmp_path)


def test_a_state_of_another_jax_or_python_is_refused(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    cluster = start(2, name="versions")
    cluster.run("mine = 1")
    checkpoints.save(cluster.world, "c", tmp_path)
    path = tmp_path / "c" / "rank-1.state"
    there = re.search(rb'"jax": "([^"]*)"', path.read_bytes())
    assert there is not None
    path.write_bytes(path.read_bytes().replace(there[0], there[0].replace(there[1][:1], b"9", 1)))
    other = there[1].replace(there[1][:1], b"9", 1).decode()
    with pytest.raises(RecoveryError, match=f"it was saved with .*jax {other}, which this cluster"):
        checkpoints.restore(cluster.world, "c", tmp_path)
