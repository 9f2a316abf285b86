"""Batches that don't fit together are refused before the first launch that uses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from plainjobs import SIZE, check_nothing_is_left, ended, start

import jaxcluster
from jaxcluster.errors import Divergence

PLAIN = """
import os
import jax, jaxcluster
jax.distributed.initialize(os.environ["ADDRESS"], int(os.environ["SIZE"]), int(os.environ["RANK"]))
assert jaxcluster.agree()
"""
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
wrong = jax.process_index() == 1
rows = NamedSharding(Mesh(np.array(jax.devices()), "x"), P("x"))
own, local = 2 * jax.local_device_count(), jax.make_array_from_process_local_data
loss = jax.jit(lambda x, scale=1.0: (scale * x).sum())
noisy = jax.jit(lambda x, key: (x + jax.random.normal(key, x.shape[1:])).sum())
x = local(rows, np.ones((own, 4), "f4"))
np.random.seed(wrong)
"""
PROGRAMS = r"different programs\.(?=(.|\n)*float32\[\d+,4\])(.|\n)* int32\[\d+,4\]"
VALUES = r"different values(.|\n)* values #\w{6}\n(.|\n)* values #\w{6}"
SEED = "noise = np.random.rand(4)\ntotal = float(loss(x, noise))"
# The first line makes the batch, the second launches: it is refused.
MISTAKES = {
    "rows": (
        "batch = local(rows, np.ones((own * (1 + wrong), 4), 'f4'))\ntotal = float(loss(batch))",
        r"different programs\.",
    ),
    "dtype": (
        "batch = local(rows, np.ones((own, 4), 'i4' if wrong else 'f4'))\n"
        "total = float(loss(batch))",
        PROGRAMS,
    ),
    "numpy's seed": (SEED, VALUES),
    "jax's seed": ("key = jax.random.key(int(wrong))\ntotal = float(noisy(x, key))", VALUES),
}


def check(text: str, source: str, says: str) -> None:
    assert re.search(says, text), text
    assert source.splitlines()[1] in text
    assert "Nothing was launched." in text


@pytest.fixture(scope="module")
def ranks(shared_cluster: jaxcluster.Cluster) -> Iterator[jaxcluster.Cluster]:
    shared_cluster.run(SETUP, show=False)
    yield shared_cluster
    shared_cluster.run("del x")


@pytest.mark.parametrize(("source", "says"), MISTAKES.values(), ids=[*MISTAKES])
def test_batches_that_differ_are_refused_in_a_cell(
    ranks: jaxcluster.Cluster, source: str, says: str
) -> None:
    with pytest.raises(Divergence) as caught:
        ranks.run(source, show=False)
    check(str(caught.value), source, says)
    assert ranks.run("float(loss(x))", show=False).ok


def test_batches_that_differ_are_refused_in_a_script(tmp_path: Path, folder: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PLAIN + SETUP + SEED)
    codes, told = ended(start("", folder, script))
    assert codes == [1] * SIZE
    for text in told:
        check(text, SEED, VALUES)
    check_nothing_is_left(folder)


def test_values_of_a_program_without_a_collective_are_refused_at_the_next_one(
    ranks: jaxcluster.Cluster,
) -> None:
    """It waits for nobody, so nothing holds it up."""
    ranks.run("scaled = jax.jit(lambda x, scale: x * scale)\nscaled(x, np.ones(4))", show=False)
    with pytest.raises(Divergence, match=r"line 2   total = float\(loss\(y\)\)"):
        ranks.run("y = scaled(x, np.random.rand(4))\ntotal = float(loss(y))", show=False)
