"""Names that can't come back: gone on all ranks alike, all of them named, and used they say why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied, TransferError

pytestmark = pytest.mark.any_jax

SETUP = """
import asyncio, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback((12,), NamedSharding(mesh, P("i")), lambda i: np.arange(12.0)[i])
total = jax.jit(lambda v: v.sum())
r = jax.process_index()
"""


@pytest.fixture
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=2, name="lost") as cluster:
        cluster.run(SETUP, show=False)
        yield cluster


def fails(cluster: jaxcluster.Cluster, source: str, *ranks: int) -> CellFailed:
    with pytest.raises(CellFailed) as caught:
        cluster.run(source, show=False)
    assert caught.value.ranks == (ranks or (0, 1, 2))
    return caught.value


def kill(cluster: jaxcluster.Cluster, rank: int) -> str:
    """Kill an idle rank; what the next cell says of that."""
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        cluster.run("1", show=False)
    return " ".join(str(caught.value).split())


def test_a_name_that_is_lost_says_so_when_it_is_used(ranks: jaxcluster.Cluster) -> None:
    ranks.run("part = (i for i in range(3))\ndef use(): return part\nkept = [1]", show=False)
    said = ranks.restart()
    assert "Lost: part (cannot pickle 'generator' object)." in said
    assert said.endswith("Run cell [2] to make them again.")
    told = (
        "name 'part' was lost in a restart (cannot pickle 'generator' object); run cell [2] again"
    )
    uses = ["part", "print(use())", "part += 1", "del part", "[part for _ in range(2)]"]
    uses += ["await asyncio.sleep(0, part)", "try:\n    part\nexcept NameError:\n    1 / 0"]
    for use in uses:
        error = fails(ranks, use)
        assert told in "\n".join([error.message, *error.traceback]), use
    assert "part" not in ranks.run("%who", show=False).stdout()
    with pytest.raises(TransferError, match=r"'part' was lost in a restart \(cannot pickle"):
        ranks["part"]
    ranks.run("part = 1", show=False)
    ranks.run("del part", show=False)
    assert fails(ranks, "part").message.endswith("name 'part' is not defined")
    ranks.run("part = (i for i in range(3))", show=False)
    # Also when new processes have taken the place of those that were told.
    ranks.restart()
    kill(ranks, 2)
    assert "was lost in a restart (cannot pickle" in str(fails(ranks, "part"))


def test_names_that_only_the_dead_rank_had_are_named_with_their_cells(
    ranks: jaxcluster.Cluster,
) -> None:
    many = [f"only{i}" for i in range(30)]
    ranks.run(f"if r == 1: {' = '.join(many)} = 1", show=False)
    ranks.run("one = two = np.arange(5000.0) + r\nif r == 2: other = 3", show=False)
    ranks.push({"two": np.ones(5000), "pushed": 1}, ranks=[1])
    ranks.run("pass", show=False)  # its end says which names there are
    told = kill(ranks, 1)
    assert "only0 (only rank 1 had it), only1 (only rank 1 had it)" in told
    assert "more" in told and "other (" not in told
    assert "Run cells [1], [2], [3] to make them again" in told
    assert ranks.run("print(other)", ranks=[2], show=False).stdout(2) == "3\n"
    for name in ("only7", "pushed"):
        assert f"name '{name}' was lost when rank 1 died (only rank 1 had it)" in str(
            fails(ranks, name)
        )
    assert "run cell [3]" in str(fails(ranks, "one", 1))
    assert ranks.run("print(one[1] - r)", ranks=[0, 2], show=False).stdout(2) == "1.0\n"


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
    assert "own (RESOURCE_EXHAUSTED" in told
    assert "spread (RESOURCE_EXHAUSTED" in told
    record = ranks.run("print(float(total(g)), 'own' in globals())", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["66.0 False\n"] * 3
