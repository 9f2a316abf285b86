"""The output of cells, whoever ran them and whether or not anybody was connected."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.cluster import history
from jaxcluster.errors import UsageError

pytestmark = pytest.mark.any_jax

Open = Callable[..., Notebook]
# 10 is the promise, with a time limit for the history, on a machine that does nothing else.
KILLS = int(os.environ.get("JAXCLUSTER_TEST_KILLS", "2"))
UNTIL = """%%spmd
import itertools, jax, os, time
for number in itertools.count():
    print("line", number, "of rank", jax.process_index(), flush=True)
    time.sleep(0.1)
    if os.path.exists({path!r}):
        break
print("printed", number + 1)"""


def lines_in(text: str, rank: int = 0) -> list[int]:
    return [int(found) for found in re.findall(rf"line (\d+) of rank {rank}\b", text)]


def test_kernels_that_are_killed_lose_no_line_of_a_cell(
    open_notebook: Open, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    first = open_notebook(JPY_SESSION_NAME="work/train.ipynb")
    first.ok("%jaxcluster start -n 2 --name kept --detach")
    first.ok("%%spmd\nready = True")
    cell = first.begin(UNTIL.format(path=str(end)))
    first.until(lambda: "line 5" in cell.stdout, "the cell prints")
    first.kill()
    for _ in range(KILLS - 1):
        other = open_notebook()
        attached = other.ok("%jaxcluster attach kept")
        began = time.monotonic()
        shown = other.ok("%jaxcluster outputs --history").text
        assert time.monotonic() - began < 1.0 or "JAXCLUSTER_TEST_KILLS" not in os.environ
        assert re.search(r"\b2 +\[\d+\] +running .* train.ipynb \(process", shown), shown
        seen = lines_in(attached.text)
        assert seen == list(range(len(seen)))
        assert len(seen) >= 5
        other.until(lambda a=attached, s=seen: len(lines_in(a.text)) > len(s) + 3, "it goes on")
        other.kill()
    last = open_notebook()
    attached = last.ok("%jaxcluster attach kept")
    end.touch()
    last.until(lambda: "has ended after" in attached.text, "the cell's end")
    seen = lines_in(attached.text)
    assert seen == list(range(len(seen)))
    assert f"printed {len(seen)}\n" in attached.text
    shown = last.ok("%jaxcluster outputs --cell 2").text
    counts = [int(found) for found in re.findall(r"printed (\d+)", shown)]
    assert counts[0] == len(seen)
    assert [lines_in(shown, rank) for rank in (0, 1)] == [list(range(n)) for n in counts]
    last.ok("%jaxcluster stop")


def test_who_comes_to_a_cluster_sees_the_cells_of_others(open_notebook: Open) -> None:
    first, second = open_notebook(JPY_SESSION_NAME="a/one.ipynb"), open_notebook()
    first.ok("%jaxcluster start -n 2 --name ours")
    assert "No cell has run" in first.ok("%jaxcluster outputs --history").text
    first.ok("%%spmd\nimport jax\nprint('hello', jax.process_index())\n6 * 7")
    failing = "%%spmd\n# a comment\nif jax.process_index(): raise ValueError('only on 1')"
    assert "only on 1" in first.run(failing).error
    attached = second.ok("%jaxcluster attach ours").text
    assert "Cell 2, [5] of one.ipynb (process" in attached
    assert "has failed after" in attached
    listed = second.ok("%jaxcluster outputs --history")
    rows = listed.text.splitlines()
    assert re.match(
        r"1 +\[4\] +ok +\d+\.\d s +[\d:]+ +one.ipynb \(process .*\) +0, 1 +import jax", rows[1]
    )
    assert re.match(r"2 +\[5\] +error .* if jax.process_index", rows[2])
    assert "<table>" in listed.bundles[0]["text/html"]
    assert re.search(r"this notebook", first.ok("%jaxcluster outputs --history").text)
    shown = second.ok("%jaxcluster outputs --cell 1").text
    assert "── rank 0 ──\nhello 0\n42\n── rank 1 ──\nhello 1\n42" in shown
    last = second.ok("%jaxcluster outputs 1").text
    assert "ValueError: only on 1" in last
    missing = second.run("%jaxcluster outputs --cell 9")
    assert "There is no cell 9 in the history of this cluster: it has 1 to 2." in missing.error

    second.ok("%%spmd\nprint('mine')")
    assert "mine" in second.ok("%jaxcluster outputs").text
    rows = first.ok("%jaxcluster outputs --history 1").text.splitlines()
    assert rows[1].startswith("3  ")
    assert rows[2] == "2 cells before: %jaxcluster outputs --history 3"
    first.ok("%jaxcluster restart")
    assert len(first.ok("%jaxcluster outputs --history").text.splitlines()) == 4
    first.ok("%%spmd\nprint('after the restart')")
    assert "after the restart" in first.ok("%jaxcluster outputs --cell 4").text
    assert "hello 1" in first.ok("%jaxcluster outputs --cell 1").text
    first.ok("%jaxcluster stop")


def outputs(cluster: jaxcluster.Cluster, number: int | None = None) -> Any:
    found = cluster.history()
    return history.Following(found, found.find(number)).look()


def test_a_dead_ranks_output_is_there(start: Callable[..., jaxcluster.Cluster]) -> None:
    cluster = start(2)
    cluster.recovery = "never"
    source = "import jax, os, time\nprint('last words of', jax.process_index(), flush=True)\n"
    source += "if jax.process_index():\n    time.sleep(0.2)\n    os.kill(os.getpid(), 9)"
    with pytest.raises(jaxcluster.errors.RankDied):
        cluster.run(source, show=False)
    (one,) = cluster.history().cells
    assert {rank: one.status(rank) for rank in one.ranks} == {0: "ok", 1: "died"}
    assert one.state == "died"
    assert outputs(cluster).stdout(1) == "last words of 1\n"
    cluster.restart()
    (one,) = cluster.history().cells
    assert one.state == "died"
    cluster.run("pass")
    assert [c.state for c in cluster.history().cells] == ["died", "ok"]
    assert outputs(cluster, 1).stdout(0) == "last words of 0\n"
    with pytest.raises(UsageError, match="There is no cell 3"):
        outputs(cluster, 3)
