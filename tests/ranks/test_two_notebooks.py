"""A second notebook on the cluster of a first one, and clusters that outlive their notebook."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Notebook

pytestmark = pytest.mark.any_jax

Open = Callable[..., Notebook]


def test_a_second_notebook_attaches_and_its_end_leaves_the_cluster_running(
    open_notebook: Open,
) -> None:
    first, second = open_notebook(), open_notebook()
    first.ok("%jaxcluster start -n 2 --name ours")
    first.ok("%%spmd\nimport jax, time\nshared = [jax.process_index()]")

    listed = second.ok("%jaxcluster list").text.splitlines()
    assert any("ours" in line and "*" not in line for line in listed)
    missing = second.run("%spmd 1")
    assert missing.ename == "NoCluster"
    assert "%jaxcluster attach connects to a running one (" in missing.error
    assert "ours" in missing.error

    attached = second.ok("%jaxcluster attach ours")
    assert attached.text.startswith("Cluster 'ours': ranks 0, 1, 1 cpu device per rank")
    assert second.ok("%%spmd\nshared.append('second')\nshared").result == "[0, 'second']"
    assert first.ok("%spmd shared").result == "[0, 'second']"
    assert second.ok("%pull shared\nshared").result == "[0, 'second']"

    # A cell of one is seen by the other, which takes its turn behind it.
    busy = first.begin("%%spmd\nwhile len(shared) < 3: time.sleep(0.01)")
    second.until(
        lambda: second.ok("%jaxcluster status").text.count("running") == 2, "both ranks are busy"
    )
    waiting = second.begin("%%spmd\nshared")
    first.press_stop()
    first.wait(busy)
    assert "was stopped on ranks 0, 1." in busy.error
    assert second.wait(waiting).result == "[0, 'second']"

    second.close()
    assert first.ok("%spmd shared").result == "[0, 'second']"
    first.ok("%jaxcluster stop")


def test_what_the_first_notebook_restarts_under_a_cell_of_the_second_has_not_died(
    open_notebook: Open,
) -> None:
    hint = "%jaxcluster attach lost connects to its new processes."
    first, second = open_notebook(), open_notebook()
    first.ok("%jaxcluster start -n 2 --name lost")
    first.ok("%%spmd\nkept = 42")
    second.ok("%jaxcluster attach lost")
    busy = second.begin("%%spmd\nprint('running', flush=True)\nimport time\ntime.sleep(60)")
    second.until(lambda: "running" in busy.stdout, "the cell runs")
    first.ok("%jaxcluster restart")
    second.wait(busy)
    assert busy.ename == "RankDied"
    assert "The cluster was restarted." in busy.error
    assert hint in busy.error
    assert "SIGKILL" not in busy.error
    told = second.run("%spmd kept").error
    assert "The cluster was restarted, so the cell was not run." in told and hint in told
    assert "died" not in second.ok("%jaxcluster attach lost").text
    assert second.ok("%spmd kept").result == "42"


def test_a_stop_by_the_second_notebook_is_no_accident_to_the_first(open_notebook: Open) -> None:
    first, second = open_notebook(), open_notebook()
    first.ok("%jaxcluster start -n 2 --name given-up")
    second.ok("%jaxcluster attach given-up")
    busy = first.begin("%%spmd\nprint('running', flush=True)\nimport time\ntime.sleep(60)")
    first.until(lambda: "running" in busy.stdout, "the cell runs")
    second.ok("%jaxcluster stop")
    first.wait(busy)
    assert "The cluster was stopped" in busy.error
    assert "%jaxcluster start starts another." in busy.error
    assert "New processes" not in busy.error
    assert "given-up" not in first.ok("%jaxcluster list").text
    told = "Another notebook or a shell has stopped cluster 'given-up'. No cluster is connected"
    first.until(lambda: told in first.run("%spmd 1").error, "the next cell says so")
    first.ok("%jaxcluster start -n 2 --name given-up")
    assert first.ok("%spmd 1").result == "1"


def test_a_start_after_the_end_of_the_first_notebook_is_a_new_cluster(open_notebook: Open) -> None:
    first, second = open_notebook(), open_notebook()
    first.ok("%jaxcluster start -n 2 --name lent")
    second.ok("%jaxcluster attach lent")
    assert second.ok("%spmd 1").result == "1"
    first.kill()
    second.until(lambda: second.run("%spmd 1").ename == "RankDied", "it has heard of it")
    second.until(lambda: "lent" not in second.ok("%jaxcluster list").text, "its end")
    assert "ready in" in second.ok("%jaxcluster start -n 2 --name lent").text
    assert second.ok("%spmd 1").result == "1"


def test_a_start_cell_finds_the_cluster_that_it_has_left_running(open_notebook: Open) -> None:
    start = "%jaxcluster start -n 1 --detach"
    first = open_notebook(JPY_SESSION_NAME="work/left.ipynb")
    first.ok(start)
    first.ok("%%spmd\nprecious = 41")
    first.kill()
    other = open_notebook(JPY_SESSION_NAME="work/other.ipynb")
    assert "ready in" in other.ok(start).text  # it is not this one's
    other.ok("%jaxcluster stop")
    second = open_notebook(JPY_SESSION_NAME="work/left.ipynb")
    assert "is already running (1 rank, variables kept)" in second.ok(start).text
    assert second.ok("%spmd precious + 1").result == "42"
    assert second.run("%jaxcluster start -n 1").ename == "ClusterExists"
    second.ok("%jaxcluster stop")


def test_what_one_notebook_pulls_and_pushes_is_between_the_same_cells_of_another_on_all_ranks(
    open_notebook: Open,
) -> None:
    """Ranks hear each notebook by a socket of its own, in any order."""
    first, second = open_notebook(), open_notebook()
    first.ok("%jaxcluster start -n 2 --name order")
    first.ok(
        "%%spmd\nimport jax, jax.numpy as jnp\nfrom jax.sharding import *\n"
        "split = NamedSharding(jax.make_mesh((2,), ('i',)), PartitionSpec('i'))\n"
        "parts = jax.jit(lambda: jnp.zeros(2), out_shardings=split)()\n"
        "add = jax.jit(lambda x: x + 1)\nrate, seen = -1, []"
    )
    second.ok("%jaxcluster attach order")
    cells = second.begin(
        "import jaxcluster\nother = jaxcluster.current()\nfor _ in range(400):\n"
        "    other.run('parts = add(parts); seen.append(rate)', show=False)"
    )
    first.ok(
        "import jaxcluster\nours, torn = jaxcluster.current(), []\nfor at in range(100):\n"
        "    pulled = ours.pull('parts')\n    torn += [] if pulled[0] == pulled[1] else [pulled]\n"
        "    ours.push({'rate': at})"
    )
    second.wait(cells)
    assert not cells.error
    assert first.ok("print(torn)").stdout == "[]\n"
    alike = first.ok("%%spmd --all\nprint(len(set(seen)) > 1, hash(tuple(seen)))").text
    assert "ranks 0, 1" in alike and "True" in alike
    first.ok("%jaxcluster stop")
