"""What somebody else than its own notebook has changed on a rank that dies.

The notebook that gives it a new process must not give it what it had before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import Home, until

import jaxcluster
from jaxcluster.errors import RankDied


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    cluster = jaxcluster.start(3, name="others", platform="cpu")
    cluster.run("x, lr, history = 5, 0.5, [1]", show=False)
    yield cluster
    cluster.stop()


@pytest.fixture
def attached(home: Home) -> Callable[[str], None]:
    """Runs code in another process, which is attached to the cluster as ``c``."""

    def run(source: str) -> None:
        code = f"import jaxcluster\nc = jaxcluster.attach('others')\n{source}"
        words = [sys.executable, "-c", code]
        done = subprocess.run(
            words, env=home.environ(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return run


def lose(ranks: jaxcluster.Cluster, rank: int) -> str:
    """End a rank's process; what is said when it has another."""
    os.kill(ranks.record.pids[rank], signal.SIGKILL)
    until(lambda: rank in ranks.world.dead, "its death")
    with pytest.raises(RankDied) as died:
        ranks.run("pass")
    return str(died.value)


def known(ranks: jaxcluster.Cluster, rank: int) -> dict[str, str]:
    return ranks.world.told[rank].known()


def values_of(ranks: jaxcluster.Cluster, name: str) -> list[Any]:
    record = ranks.run(f"print({name})", show=False)
    return [eval(record.stdout(rank)) for rank in range(3)]


@pytest.mark.parametrize("how", ["client", "push", "cell"])
def test_what_others_change_on_a_rank_comes_back(
    ranks: jaxcluster.Cluster, attached: Callable[[str], None], how: str
) -> None:
    if how == "client":  # as %%px does
        ranks.client[1].execute("x = 7", block=True)
    elif how == "push":
        attached("c.push({'x': 7}, ranks=[1])")
    else:
        attached("c.run('x = 7', ranks=[1])")
    until(lambda: known(ranks, 1).get("x") == "=7", "what the rank tells of it")
    assert "4 variables kept" not in lose(ranks, 1)
    assert values_of(ranks, "x") == [5, 7, 5]
    assert values_of(ranks, "lr") == [0.5] * 3


def test_what_a_client_has_just_changed_is_lost_and_named(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anybody could be told what it is."""
    ranks.client[1].execute("import os, signal; x = 7; os.kill(os.getpid(), signal.SIGKILL)")
    until(lambda: 1 in ranks.world.dead, "its death")
    with pytest.raises(RankDied) as died:
        ranks.run("pass")
    assert "x (rank 1, which died, may have had another value)" in str(died.value)
    names = ranks.run("print('x' in globals())", show=False)
    assert {names.stdout(rank).strip() for rank in range(3)} == {"False"}


def test_what_others_have_bound_and_undone_does_not_come_back(
    ranks: jaxcluster.Cluster, attached: Callable[[str], None]
) -> None:
    attached("c.run('x, new = 9, 1')\nc.undo()")
    until(lambda: known(ranks, 1).get("x") == "=5", "what the rank tells of it")
    assert "new" not in lose(ranks, 1)
    assert values_of(ranks, "x") == [5] * 3


def test_after_a_cell_of_another_notebook_all_that_is_equal_comes_back(
    ranks: jaxcluster.Cluster, attached: Callable[[str], None]
) -> None:
    attached("c.run('y = 3')")
    until(lambda: known(ranks, 1).get("y") == "=3", "what the rank tells of it")
    assert "Lost" not in lose(ranks, 1)
    assert values_of(ranks, "(x, y, lr, history)") == [(5, 3, 0.5, [1])] * 3


def test_a_rank_that_dies_in_another_notebooks_cell_did_not_die_in_the_one_behind(
    ranks: jaxcluster.Cluster, home: Home
) -> None:
    dies = "time.sleep(2)\nif jax.process_index() == 1: os.kill(os.getpid(), 9)\ntime.sleep(30)"
    ranks.run("import jax, os, time", show=False)
    code = f"import jaxcluster\nc = jaxcluster.attach('others')\nc.run({dies!r}, show=False)"
    words = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=home.environ(), stdout=pipe, stderr=pipe, text=True) as other:
        until(lambda: all(s.state == "running" for s in ranks.status()), "the other one's cell")
        with pytest.raises(RankDied) as died:
            ranks.run("queued = 1", show=False)
        _, told = other.communicate(timeout=60)
    said = str(died.value)
    assert "Rank 1 died" in said and "killed by SIGKILL" in said
    assert "This cell was not run" in said
    assert "in cell" not in said.splitlines()[0]
    assert "Rank 1 died in cell" in told
    assert {*values_of(ranks, "'queued' in globals()")} == {False}
    assert "Lost: queued (only rank 1 may have had it, and died)." in said
    assert values_of(ranks, "(x, lr, history)") == [(5, 0.5, [1])] * 3
