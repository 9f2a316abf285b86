"""``%jaxcluster report`` and ``restart -n`` on real ranks, whatever has become of these."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from helpers import Notebook

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, os
from jax.sharding import NamedSharding, PartitionSpec as P
rank, lr = jax.process_index(), 0.5
x = jax.device_put(np.arange(9.0), NamedSharding(jax.make_mesh((3,), ("i",)), P("i")))
total = float(jnp.sum(x))
"""
KEY_ERROR = "%%spmd\nd = {} if rank == 1 else {'a': 1}\nk = d['a']\ntotal = float(jnp.sum(x))"
DIES = "%%spmd\nif rank == 2: os.kill(os.getpid(), 9)\ny = float(jnp.sum(x * 2))"


@pytest.mark.one_machine("the report lies in the cluster's folder, which is here")
def test_the_report_stays_after_new_processes_and_for_other_notebooks(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 3 --name main")
    assert notebook.ok("%jaxcluster report").text == "No cell has gone wrong on cluster 'main'.\n"
    notebook.ok(SETUP)
    cell = notebook.run(KEY_ERROR)
    assert cell.ename == "CellFailed"
    notebook.ok("%jaxcluster restart")
    shown = notebook.ok("%jaxcluster report")
    (bundle,) = shown.bundles
    assert "KeyError on rank 1: 'a'" in bundle["text/plain"]
    assert "->   3  k = d['a']" in bundle["text/plain"]
    agreed_on = bundle["text/plain"].partition("The last launches that all of their ranks")[2]
    assert "jit(_reduce_sum)" in agreed_on and "line 6" in agreed_on
    assert "<pre>" in bundle["text/html"]

    other = open_notebook()
    other.ok("%jaxcluster attach main")
    number = re.search(r"Cell \[(\d+)\]", bundle["text/plain"])
    assert number is not None
    assert other.ok(f"%jaxcluster report {number[1]}").bundles == [bundle]
    assert "There is no report of cell [999]" in other.ok("%jaxcluster report 999").text

    notebook.ok("import jaxcluster\njaxcluster.current().recovery = 'never'")
    assert notebook.run(DIES).ename == "RankDied"
    assert "Rank 2 died: killed by SIGKILL." in notebook.ok("%jaxcluster report").text
    # The cluster gets another number of ranks, and what the living have.
    for count in (2, 4):
        assert f"{count} ranks after" in notebook.ok(f"%jaxcluster restart -n {count}").text
        assert notebook.ok("%spmd (lr, jax.process_count())").result == f"(0.5, {count})"
    cell = notebook.run("%jaxcluster restart -n 3 --clean")
    assert "restart -n keeps the variables, so it does not take --clean." in cell.error
    assert "Traceback" not in cell.error
