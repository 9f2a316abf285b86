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
whole = NamedSharding(rows.mesh, P())
own, local = 2 * jax.local_device_count(), jax.make_array_from_process_local_data
loss = jax.jit(lambda x, scale=1.0: (scale * x).sum())
noisy = jax.jit(lambda x, key: (x + jax.random.normal(key, x.shape[1:])).sum())
x = local(rows, np.ones((own, 4), "f4"))
np.random.seed(wrong)
"""
VALUES = r"different values\.(.|\n)* values #\w{6}\n(.|\n)* values #\w{6}"
# The first line makes the batch, the second launches: it is refused.
MISTAKES = {
    "rows": (
        "batch = local(rows, np.ones((own * (1 + wrong), 4), 'f4'))\ntotal = float(loss(batch))",
        r"different programs\.",
    ),
    "columns": (
        "batch = local(rows, np.ones((own, 4 + wrong), 'f4'))\ntotal = float(loss(batch))",
        r"different programs\.(?=(.|\n)*float32\[\d+,4\])(.|\n)*float32\[\d+,5\]",
    ),
    "dtype": (
        "batch = local(rows, np.ones((own, 4), 'i4' if wrong else 'f4'))\n"
        "total = float(loss(batch))",
        r"different programs\.(?=(.|\n)*float32\[\d+,4\])(.|\n)* int32\[\d+,4\]",
    ),
    "replicated data": (
        "scale = local(whole, np.full(4, 1.0 + wrong, 'f4'))\ntotal = float(loss(x, scale))",
        VALUES,
    ),
    "numpy's seed": (
        "noise = np.random.rand(4)\ntotal = float(loss(x, noise))",
        VALUES,
    ),
    "jax's seed": (
        "key = jax.random.key(int(wrong))\ntotal = float(noisy(x, key))",
        VALUES,
    ),
}
each_mistake = pytest.mark.parametrize(("source", "says"), MISTAKES.values(), ids=[*MISTAKES])


@pytest.fixture(scope="module")
def ranks(shared_cluster: jaxcluster.Cluster) -> Iterator[jaxcluster.Cluster]:
    shared_cluster.run(SETUP, show=False)
    yield shared_cluster
    shared_cluster.run("del x")


@each_mistake
def test_batches_that_differ_are_refused_in_a_cell(
    ranks: jaxcluster.Cluster, source: str, says: str
) -> None:
    with pytest.raises(Divergence) as caught:
        ranks.run(source, show=False)
    text = str(caught.value)
    assert re.search(says, text), text
    assert f"line 2   {source.splitlines()[1]}" in text
    assert "Nothing was launched." in text
    assert ranks.run("float(loss(x))", show=False).ok


@each_mistake
def test_batches_that_differ_are_refused_in_a_script(
    tmp_path: Path, folder: Path, source: str, says: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PLAIN + SETUP + source)
    codes, told = ended(start("", folder, script))
    assert codes == [1] * SIZE
    for text in told:
        assert re.search(says, text), text
        assert source.splitlines()[1] in text
        assert "Nothing was launched." in text
    check_nothing_is_left(folder)


def test_values_of_a_program_without_a_collective_are_refused_at_the_next_one(
    ranks: jaxcluster.Cluster,
) -> None:
    """It waits for nobody, so nothing holds it up."""
    ranks.run("scaled = jax.jit(lambda x, scale: x * scale)\nscaled(x, np.ones(4))", show=False)
    with pytest.raises(Divergence, match=r"line 2   total = float\(loss\(y\)\)"):
        ranks.run("y = scaled(x, np.random.rand(4))\ntotal = float(loss(y))", show=False)
