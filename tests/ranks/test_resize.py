"""A cluster gets another number of ranks, and its variables with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import RankDied, RecoveryError, UsageError


def test_what_can_not_be_done_is_refused_and_nothing_is_changed(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, devices_per_process=2, name="refused")
    cluster.run("import jax\nmesh = jax.make_mesh((2, 2), ('data', 'model'))\na = 1", show=False)
    pids = list(cluster.record.pids)
    with pytest.raises(UsageError) as caught:
        cluster.restart(num_processes=4)
    assert "can become data=4,model=2 or data=2,model=4 on 8 devices." in str(caught.value)
    assert "--mesh data=4,model=2" in caught.value.hint
    with pytest.raises(UsageError, match="would become data=3,model=2, which are not 8 devices"):
        cluster.restart(num_processes=4, mesh={"data": 3})
    assert cluster.record.pids == pids
    assert cluster.run("print(a)", show=False).stdout(1) == "1\n"
    with pytest.raises(RankDied):
        cluster.recovery = "never"
        cluster.run(
            "import os, signal\nif jax.process_index(): os.kill(os.getpid(), 9)", show=False
        )
    with pytest.raises(RecoveryError, match=r"Rank 1 died, so the cluster can't be resized\."):
        cluster.restart(num_processes=4, mesh={"data": 4})


@pytest.mark.any_jax
def test_the_magics_say_what_has_become_of_it(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --devices-per-process 1 --platform cpu")
    notebook.ok("%%spmd\nimport jax\nlr = 0.5")
    for command, count in (("restart -n 3", 3), ("restart -n 2", 2)):
        told = notebook.ok(f"%jaxcluster {command}").text
        assert f"{count} ranks after" in told
        assert "Lost" not in told
        assert notebook.ok("%spmd (lr, jax.process_count())").result == f"(0.5, {count})"
    for command, why in (
        ("restart -n 4 --clean", "restart -n keeps the variables, so it does not take --clean."),
        ("restart --mesh data=2", "--mesh is for another number of ranks."),
        ("resize", "%jaxcluster resize was removed."),
    ):
        cell = notebook.run(f"%jaxcluster {command}")
        assert why in cell.error
        assert "Traceback" not in cell.error
