"""What a cell sets in a module of the user's own is undone, kept and named like a variable."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Home
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import Divergence, RankDied

SOURCE = """
import dataclasses, logging, threading
import numpy as np
log, lock = logging.getLogger("own"), threading.Lock()
rate, options, also_none, rank = 0.1, {"on": [1]}, 3, -1
same = options
@dataclasses.dataclass
class Config:
    steps: int = 1
config, numbers = Config(), np.zeros(3)
def count():
    config.steps += 1
    options["on"].append(config.steps)
"""
CHANGE = """
own.rate, own.also_none, own.numbers[1], own.rank = 5, None, 4, jax.process_index()
own.count()
"""
SHOW = (
    "print(own.rate, own.options, own.also_none, own.config.steps, own.numbers.tolist(), own.rank,"
    " own.same is own.options)"
)
OF_FILE = "0.1 {'on': [1]} 3 1 [0.0, 0.0, 0.0] -1 True\n"
CHANGED = "5 {{'on': [1, 2]}} None 2 [0.0, 4.0, 0.0] {} True\n"
EACH = [CHANGED.format(rank) for rank in range(3)]


@pytest.fixture
def ranks(home: Home, tmp_path: Path) -> Iterator[jaxcluster.Cluster]:
    (tmp_path / "own.py").write_text(SOURCE)
    with jaxcluster.start(3, name="own") as cluster:
        cluster.run(
            f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
            "import own, jax, jax.numpy as jnp\n"
            "from jax.sharding import NamedSharding, PartitionSpec as P\n"
            "split = NamedSharding(jax.make_mesh((jax.device_count(),), 'i'), P('i'))\n"
            "ones = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=split)()"
        )
        yield cluster


def shown(cluster: jaxcluster.Cluster) -> list[str]:
    record = cluster.run(SHOW, show=False)
    return [record.stdout(rank) for rank in range(3)]


def killed(cluster: jaxcluster.Cluster, *ranks: int) -> str:
    for rank in ranks:
        send_signal(cluster, rank, 9)
    with pytest.raises(RankDied) as caught:
        cluster.run("pass", show=False)
    return str(caught.value)


def test_a_cell_that_diverges_takes_back_what_it_has_set(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(Divergence, match=r"This cell is undone. Restored own\."):
        ranks.run(CHANGE + "if own.rank: jnp.sum(ones).block_until_ready()", show=False)
    assert shown(ranks) == [OF_FILE] * 3


def test_new_processes_have_it(ranks: jaxcluster.Cluster) -> None:
    ranks.run(CHANGE)
    ranks.restart()
    assert shown(ranks) == EACH


def test_what_can_not_be_compared_comes_back_too(ranks: jaxcluster.Cluster, tmp_path: Path) -> None:
    """Also where the cell that imports the module sets it."""
    (tmp_path / "later.py").write_text("state, table = None, {}\ndef loss(): return 1\n")
    ranks.run(
        "import later\nlater.state = later.table['w'] = jnp.arange(3.0)\nlater.loss = lambda: 2\n"
        "later.made = (n for n in '12')"
    )
    for _ in range(2):
        assert "Lost: module later.made" in ranks.restart()
        told = "print(later.state, later.table['w'] is later.state, later.loss())"
        assert ranks.run(told, show=False).stdout(2) == "[0. 1. 2.] True 2\n"
        ranks.run("later.made = (n for n in '12')")
    assert "module later.loss (" in killed(ranks, 1, 2)
    assert ranks.run("print(later.loss(), later.state)", show=False).stdout(0) == "1 None\n"


def test_an_edited_file_is_taken_but_for_what_was_set_after_its_import(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ranks.run("own.config.steps = 9")
    edited = SOURCE.replace("0.1, ", "0.25, ").replace("steps: int = 1", "steps: int = 4")
    (tmp_path / "own.py").write_text(edited)
    ranks.restart()
    record = ranks.run("print(own.rate, own.config.steps, own.Config().steps)", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["0.25 9 4\n"] * 3


@pytest.mark.parametrize("edit", ["class Config(", "raise SystemExit(3)"], ids=["half", "exits"])
def test_a_file_that_can_not_be_imported_costs_only_what_needs_it(
    ranks: jaxcluster.Cluster, tmp_path: Path, edit: str
) -> None:
    ranks.run("import ctypes\nclass Mine(own.Config): pass\nkept = [1]\nown.rate = 2", show=False)
    ranks.run("libc = ctypes.CDLL(None)", show=False)
    (tmp_path / "own.py").write_text(edit)
    told = ranks.restart()
    for name in ("Mine", "libc", "own"):
        assert f"{name} (" in told
    record = ranks.run("print(kept, float(ones.sum()))", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["[1] 3.0\n"] * 3


def test_after_a_death_it_is_what_it_was_on_all_ranks_or_what_the_file_makes(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(CHANGE)
    told = killed(ranks, 1)
    assert "Lost: module own.rank (the rank that died may have had its own value)" in told
    assert "own.rate" not in told
    assert shown(ranks) == [CHANGED.format(-1)] * 3
    told = killed(ranks, 1, 2)  # nobody else says what these had
    assert "module own.rate (" in told and "own.lock" not in told and "own.rank" not in told
    assert shown(ranks) == [OF_FILE] * 3


def test_an_edit_that_autoreload_loads_is_there_after_an_undo_and_in_new_processes(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    file, edits = tmp_path / "edited.py", itertools.count(1)

    def edit(s: int, add: int) -> None:
        file.write_text(f"S = {s}\ndef f(x): return x * S + {add}\n")
        at = file.stat().st_mtime + 10 * next(edits)  # autoreload goes by the time alone
        os.utime(file, (at, at))

    def show() -> str:
        shown = ranks.run("print(m.f(2), f(2), m.S)", show=False)
        (told,) = {shown.stdout(rank) for rank in range(3)}
        return told.strip()

    edit(1, 0)
    ranks.run("%load_ext autoreload\n%autoreload 2")
    ranks.run("import edited as m, os; from edited import f; rank = jax.process_index()")
    assert show() == "2 2 1"
    skip = "\nif rank == 0: jnp.sum(ones).block_until_ready()"
    for s in (10, 100):
        edit(s, 0)  # it is patched
        with pytest.raises(Divergence, match=r"This cell is undone: it had changed no variable"):
            ranks.run("m.f(2)" + skip, show=False)
        assert show() == f"{2 * s} {2 * s} {s}"
    edit(7, 1)
    with pytest.raises(RankDied):
        ranks.run("m.f(2)\nif rank == 1: os.kill(os.getpid(), 9)\njnp.sum(ones)", show=False)
    assert show() == "15 15 7"
    edit(8, 2)  # the first cell of new processes finds that
    assert show() == "18 18 8"
    edit(9, 3)
    ranks.run("mine = m.f(1)", show=False)
    assert "mine" in str(ranks.undo())
    assert show() == "21 21 9"
    edit(3, 1)
    ranks.restart()
    assert show() == "7 7 3"
