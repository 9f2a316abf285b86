"""A cluster gets another number of ranks, and its variables with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import RankDied


def test_a_cluster_with_dead_ranks_is_resized_with_what_the_living_have(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, name="resized")
    cluster.recovery = "never"
    cluster.run("import jax, os\nkept = [jax.process_count()]")
    with pytest.raises(RankDied):
        cluster.run("if jax.process_index(): os.kill(os.getpid(), 9)", show=False)
    assert "3 ranks after" in cluster.restart(num_processes=3)
    cluster.run("count = jax.process_count()")
    assert cluster.run("print(kept, count)", ranks=[0], show=False).stdout() == "[2] 3\n"


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
    cell = notebook.run("%jaxcluster restart -n 4 --clean")
    assert "restart -n keeps the variables, so it does not take --clean." in cell.error
    assert "Traceback" not in cell.error
