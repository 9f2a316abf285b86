"""Resizing clusters on several hosts, also when a host is lost for good."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from helpers import Cell
from rig import HostNotebook, Rig

pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, jaxcluster, socket, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental.multihost_utils import process_allgather
rank = jax.process_index()
mesh = jax.make_mesh((jax.process_count(),), ("i",))
def on(values, spec):
    where = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(values.shape, where, lambda at: values[at])
x = on(np.arange(12.0), P("i"))
w = on(np.arange(6.0), P())
lr, mine, table = 0.5, f"of rank {rank}", np.arange(3)
big = np.arange(3 << 18)  # so large that its rank's variables are in several files
wide = on(big.astype("float32"), P("i"))
"""
WHOLE = """%%spmd --all
total = float(process_allgather(jnp.float32(1 + jax.process_index())).sum())
assert w.sharding.mesh.size == jax.device_count() and table.tolist() == [0, 1, 2]
assert (process_allgather(wide, tiled=True) == big).all() and big[-1] == (3 << 18) - 1
print(total, float(w.sum()), lr, jax.process_index(), globals().get("mine"), socket.gethostname())
"""
START = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"


@pytest.fixture
def notebook(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    opened = open_notebook()
    opened.ok("%load_ext jaxcluster")
    return opened


def test_ranks_on_hosts_become_fewer_and_more_with_all_values(notebook: HostNotebook) -> None:
    """Bit for bit, whichever host a rank is on then."""
    notebook.ok(f"{START}")
    notebook.ok(SETUP)
    began = time.monotonic()
    told = notebook.ok("%jaxcluster restart -n 2").text
    print(f"{told} {time.monotonic() - began:.1f} s")
    assert "2 ranks after" in told and "Lost" not in told
    assert lines_of(notebook.shown(WHOLE)) == [
        "3.0 15.0 0.5 0 of rank 0 h1", "3.0 15.0 0.5 1 of rank 1 h2"
    ]  # fmt: skip
    told = notebook.shown("%jaxcluster restart -n 4").text
    assert "Missing on some ranks: mine, rank." in told and "Lost" not in told
    assert [line.split()[-1] for line in lines_of(notebook.shown(WHOLE))] == [
        "h1", "h1", "h2", "h2"
    ]  # fmt: skip
    notebook.ok("%%spmd\nassert (process_allgather(x, tiled=True) == np.arange(12)).all()")
    told = notebook.shown("%jaxcluster restart -n 5").text
    assert "5 ranks after" in told
    told = notebook.shown("%jaxcluster restart -n 1").text
    assert "variables kept" in told
    notebook.ok("%jaxcluster stop")


def lines_of(cell: Cell) -> list[str]:
    """What ranks print, without whose it is; equal lines of several ranks stand once."""
    assert not cell.error, cell.text
    return [line for line in cell.text.splitlines() if line and "──" not in line]


def test_a_host_that_is_gone_is_left_out(ssh: Rig, notebook: HostNotebook) -> None:
    """What is on the other comes back. Ranks that were on it have no values of other ones.

    It is the host that JAX's coordinator is on.
    """
    notebook.ok(START)
    notebook.ok(SETUP)
    cell = notebook.begin("%%spmd\nprint('on', flush=True)\ntime.sleep(1000)")
    notebook.until(lambda: "on" in cell.text, "the cell runs")
    with ssh["h1"].cut_off():
        notebook.wait(cell, 200)
        print(cell.text)
        offer = "%jaxcluster restart -n 2 goes on with what is left, host h2"
        assert f"are saved: {offer}; %jaxcluster restart tries again with all hosts" in cell.text
        cell = notebook.shown("%jaxcluster restart -n 2")
        assert "x (parts of it were on a rank that is gone)" in cell.text
        shown = notebook.shown("%%spmd --all\nprint(float(w.sum()), w.sharding.mesh.size)")
        assert lines_of(shown) == ["15.0 2"]
        assert "run cell [3] again" in notebook.shown("%spmd x").text
        notebook.ok(SETUP)
        told = notebook.shown("%jaxcluster restart -n 3").text
        assert "Lost" not in told and "No rank is on" not in told
        assert lines_of(notebook.shown(WHOLE))[2] == "6.0 15.0 0.5 2 None h2"
        assert "h1 " not in notebook.shown("%jaxcluster status").text
        notebook.ok("%jaxcluster stop")
