"""Names that can't come back: gone on all ranks alike, all of them named, and used they say why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, Divergence, RankDied, TransferError

pytestmark = pytest.mark.any_jax

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback((12,), NamedSharding(mesh, P("i")), lambda i: np.arange(12.0)[i])
total = jax.jit(lambda v: v.sum())
r = jax.process_index()
"""


@pytest.fixture
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    devices = getattr(request, "param", 2)
    with jaxcluster.start(3, devices_per_process=devices, name="lost") as cluster:
        cluster.run(SETUP, show=False)
        yield cluster


def fails(cluster: jaxcluster.Cluster, source: str) -> CellFailed:
    with pytest.raises(CellFailed) as caught:
        cluster.run(source, show=False)
    assert caught.value.ranks == (0, 1, 2)
    return caught.value


def kill(cluster: jaxcluster.Cluster, rank: int) -> None:
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)


def test_a_name_that_one_rank_loses_is_gone_on_all_and_says_so_when_it_is_used(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(
        "part = (i for i in range(3)) if r == 1 else 5\ndef use(): return part\nkept = [1]",
        show=False,
    )
    said = ranks.restart()
    assert "Lost: part (a generator can't be saved)." in said
    assert said.endswith("To make them again, run cell [2].")
    told = "name 'part' was lost in a restart (a generator can't be saved); run cell [2] again"
    uses = ["part", "print(use())", "part += 1", "del part", "[part for _ in range(2)]"]
    uses += ["await asyncio.sleep(0, part)", "try:\n    part\nexcept NameError:\n    1 / 0"]
    ranks.run("import asyncio", show=False)
    for use in uses:
        error = fails(ranks, use)
        assert told in "\n".join([error.message, *error.traceback]), use
    assert "part" not in ranks.run("%who", show=False).stdout()
    with pytest.raises(TransferError, match=r"'part' was lost in a restart \(a generator"):
        ranks["part"]
    # Also when new processes have taken the place of those that were told.
    ranks.restart()
    kill(ranks, 2)
    with pytest.raises(RankDied):
        ranks.run("1", show=False)
    for rank in range(3):
        with pytest.raises(CellFailed, match=r"was lost in a restart \(a generator"):
            ranks.run("use()", ranks=[rank], show=False)


def test_a_name_that_was_lost_and_has_a_value_again_is_like_any_other(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run("a, b = [(i for i in range(3)) for _ in range(2)]", show=False)
    ranks.restart()
    assert "was lost" in str(fails(ranks, "a"))
    ranks.run("a = 1", show=False)
    ranks.run("del a", show=False)
    assert str(fails(ranks, "a").message).endswith("name 'a' is not defined")
    assert "name 'b' is not defined" in fails(ranks, "b = 1\ndel b\nb").message
    assert "name 'b' is not defined" in fails(ranks, "b").message
    assert "name 'c' is not defined" in fails(ranks, "c").message


def test_a_librarys_name_is_not_the_namespaces(ranks: jaxcluster.Cluster) -> None:
    ranks.run("part = (i for i in range(3))", show=False)
    ranks.restart()
    source = "import types\nlib = types.ModuleType('lib')\nexec('def f(): return part', vars(lib))"
    error = fails(ranks, f"{source}\nlib.f()")
    assert "name 'part' is not defined" in error.message


def test_all_names_that_only_the_dead_rank_had_are_named(ranks: jaxcluster.Cluster) -> None:
    many = [f"only{i}" for i in range(30)]
    ranks.run(f"if r == 1: {' = '.join(many)} = 1", show=False)
    ranks.run("for one in range(2): pass\nif r == 2: other = 3\ndel one", show=False)
    ranks.push({"pushed": 1}, ranks=[1])
    kill(ranks, 1)
    with pytest.raises(RankDied) as caught:
        ranks.run("1", show=False)
    told = " ".join(str(caught.value).split())
    for name in [*many, "pushed"]:
        assert f"{name} (only rank 1 had it, and died)" in told, name
    assert "other (" not in told and "one (" not in told
    assert ranks.run("print(other)", ranks=[2], show=False).stdout(2) == "3\n"
    error = fails(ranks, "only7")
    assert "name 'only7' was lost when rank 1 died (only rank 1 had it, and died)" in str(error)


def test_names_of_the_cell_in_which_a_rank_dies_are_named_too(ranks: jaxcluster.Cluster) -> None:
    """But where the cell is undone, and all that it has made is unbound again."""
    dying = (
        "import os, signal\nif r == 1:\n    late = 1\n    os.kill(os.getpid(), 9)\n    never = 1"
    )
    with pytest.raises(RankDied) as caught:
        ranks.run(dying)
    assert "late" not in str(caught.value) and "never" not in str(caught.value)
    ranks.limit_undo(0)
    with pytest.raises(RankDied) as caught:
        ranks.run(dying)
    told = " ".join(str(caught.value).split())
    assert "late (only rank 1 may have had it, and died)" in told


@pytest.mark.parametrize("ranks", [1, 2], indirect=True, ids=["D=1", "D=2"])
def test_a_value_that_is_never_computed_is_not_there_on_any_rank(
    ranks: jaxcluster.Cluster,
) -> None:
    """Rank 1 skips a program that calls back into Python, which no replay runs with zeros."""
    told = "def told(v):\n    jax.debug.print('{}', v.sum())\n    return v.sum()"
    ranks.run(f"{told}\ntold = jax.jit(told)", show=False)
    with pytest.raises(Divergence) as caught:
        ranks.run(
            "other = 1\nif r != 1:\n    fresh = told(g)\n    float(fresh)",
            execution_count=12,
            show=False,
        )
    assert "New processes after" in str(caught.value)
    record = ranks.run("print(float(total(g)), 'fresh' in globals())", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 False\n"] * 3
    if "fresh (still being computed)" in str(caught.value):  # else it had no value yet
        error = fails(ranks, "fresh")
        assert "name 'fresh' was lost in cell [12] (still being computed)" in error.message


def test_an_array_for_which_there_was_no_memory_ends_no_rank(ranks: jaxcluster.Cluster) -> None:
    """XLA ends a process that reads it, unless it was asked before how its computation ended."""
    ranks.run(
        "def huge(v):\n"
        "    numbers, total = jnp.arange(1 << 42, dtype=jnp.int32), v.sum()\n"
        "    return (jnp.broadcast_to(total, (1 << 42,)) * numbers).astype(jnp.float32) + total\n"
        "spread, own = jax.jit(huge)(g), jax.jit(huge)(jnp.ones(3))",
        show=False,
    )
    assert str(ranks.layout("spread").shape) == "(4398046511104,)"
    told = ranks.restart()
    assert "own (its computation failed: RESOURCE_EXHAUSTED" in told
    assert "spread (its computation failed: RESOURCE_EXHAUSTED" in told
    record = ranks.run("print(float(total(g)), 'own' in globals())", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 False\n"] * 3


def test_cells_to_run_again_are_those_whose_values_were_lost(ranks: jaxcluster.Cluster) -> None:
    ranks.run("one = np.arange(5000.0) + r\ntwo = one + 1", show=False)
    ranks.run("one = 1", show=False)
    ranks.undo()
    ranks.push({"two": np.ones(5000)}, ranks=[2])
    kill(ranks, 2)
    with pytest.raises(RankDied, match=r"one \(each rank .*\), two \(each"):
        ranks.run("1", show=False)
    assert "run cell [2] again" in fails(ranks, "one").message
    assert "run cell" not in fails(ranks, "two").message  # no cell has made what was pushed
