"""``%jaxcluster report`` on real ranks: whoever asks, and whatever has become of the ranks."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import RankDied
from jaxcluster.records.reports import Reports

pytestmark = pytest.mark.one_machine("the report lies in the cluster's folder, which is here")

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
x = jax.device_put(np.arange(9.0), NamedSharding(jax.make_mesh((3,), ("i",)), P("i")))
total = float(jnp.sum(x))
"""
KEY_ERROR = "%%spmd\nd = {} if rank == 1 else {'a': 1}\nk = d['a']\ntotal = float(jnp.sum(x))"


def test_the_report_stays_after_new_processes_and_for_other_notebooks(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 3 --name main")
    assert notebook.ok("%jaxcluster report").text == "No cell has gone wrong on cluster 'main'.\n"
    notebook.ok(SETUP)
    cell = notebook.run(KEY_ERROR)
    assert cell.ename == "CellFailed"
    assert "CELL must be a cell's number" in notebook.run("%jaxcluster report x").error
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
    assert other.ok("%jaxcluster report").bundles == [bundle]
    number = re.search(r"Cell \[(\d+)\]", bundle["text/plain"])
    assert number is not None
    assert other.ok(f"%jaxcluster report {number[1]}").bundles == [bundle]
    assert "There is no report of cell [999]" in other.ok("%jaxcluster report 999").text


def test_the_report_of_a_death_has_the_last_launches(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(3)
    cluster.run(SETUP.partition("\n")[2])
    with pytest.raises(RankDied):
        cluster.run(
            f"import os\nif rank == 2: os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
            "y = float(jnp.sum(x * 2))"
        )
    assert cluster.past_reports.find() == Reports(cluster.name).find()
    found = cluster.past_reports.find()
    assert found is not None and (found.kind, found.culprits) == ("dead", [2])
    assert "jit(_reduce_sum)" in found.launches
