"""Clusters of hosts that get another number of ranks, also when a host is lost for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Cell
from rig import HostNotebook, Rig

pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, socket
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental.multihost_utils import process_allgather
rank = jax.process_index()
mesh = jax.make_mesh((4,), ("i",))
def on(values, spec):
    where = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(values.shape, where, lambda at: values[at])
x = on(np.arange(4.0), P("i"))
w = on(np.arange(6.0), P())
lr, mine, table = 0.5, f"of rank {rank}", np.arange(3)
"""
WHOLE = """%%spmd --all
total = float(process_allgather(jnp.float32(1 + jax.process_index())).sum())
print(total, float(w.sum()), lr, int(table.sum()), rank, globals().get("mine"), w.sharding.mesh.size)
"""


def shown_after(notebook: HostNotebook, source: str, deadline_s: float = 120.0) -> Cell:
    cell = notebook.run(source, deadline_s)
    print(f"{source}\n-->{cell.text}")
    return cell


@pytest.fixture
def notebook(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    opened = open_notebook()
    opened.ok("%load_ext jaxcluster")
    opened.ok("%jaxcluster start --launcher ssh --hosts h1:2,h2:2 --timeout 20")
    opened.ok(SETUP)
    return opened


@pytest.mark.parametrize("lost", ["h2", "h1"])
def test_a_host_that_is_gone_is_left_out(ssh: Rig, notebook: HostNotebook, lost: str) -> None:
    import time
    left = {"h1": "h2", "h2": "h1"}[lost]
    cell = notebook.begin("%%spmd\nimport time\nprint('on', flush=True)\ntime.sleep(1000)")
    notebook.until(lambda: "on" in cell.text, "the cell runs")
    with ssh[lost].cut_off():
        t = time.time()
        notebook.wait(cell, 200)
        print(cell.text, time.time() - t)
        assert f"%jaxcluster resize -n 2 goes on with what is left, host {left}" in cell.text
        t = time.time()
        cell = shown_after(notebook, "%jaxcluster resize -n 2")
        print(time.time() - t)
        cell = shown_after(notebook, WHOLE)
        shown_after(notebook, "%jaxcluster status")
        notebook.ok("%jaxcluster stop")
