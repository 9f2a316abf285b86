"""A stop in a loop whose programs take their inputs: the state has its name when it is raised."""

from __future__ import annotations

import threading

import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellInterrupted

pytestmark = pytest.mark.any_jax

TRIES = 10  # a stop that comes to the ranks in different steps is undone, and that is another thing

SETUP = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
def put(values, *spec):
    values = np.asarray(values)
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])
x = put(np.ones((4, 3), np.float32), "i")
@functools.partial(jax.jit, donate_argnums=0)
def step(w, x):
    return w - 0.01 * jax.grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
w = step(put(np.zeros(3, np.float32)), x)
"""


@pytest.mark.promise("Interrupts")
def test_the_state_of_a_stopped_loop_is_there(home: Home) -> None:
    kept = 0
    with jaxcluster.start(2, name="training") as cluster:
        for _ in range(TRIES):
            cluster.run(SETUP, show=False)
            stop = threading.Timer(0.5, cluster.interrupt)
            stop.start()
            with pytest.raises(CellInterrupted) as caught:
                cluster.run("while True:\n    w = step(w, x)", show=False)
            stop.join()
            if "This cell is undone" in str(caught.value):
                continue
            record = cluster.run("print(w.is_deleted())", show=False)
            assert [record.stdout(rank) for rank in range(2)] == ["False\n"] * 2
            kept += 1
            if kept == 3:
                return
    assert kept
