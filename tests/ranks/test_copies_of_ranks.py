"""Copies that ranks keep of themselves: a rank's death costs the running cell, and no variable."""

from __future__ import annotations

import json
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from helpers import DEVICES, Home, until
from overhosts import send_signal

import jaxcluster
from jaxcluster.errors import RankDied
from jaxcluster.records import saved_states
from jaxcluster.wire.ops.state import Kept

SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, signal, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
def spread(values):
    return jax.make_array_from_callback(values.shape, split, lambda index: values[index])
r = jax.process_index()
g = spread(np.random.default_rng(0).normal(size=(jax.device_count(), 1000)))
small = spread(np.arange(96.0).astype(jnp.bfloat16))
alias, key = g, jax.random.fold_in(jax.random.key(7), r)
params = {"w": g, "b": small}
view = np.full((4, 4), float(r))
row = view[1]
own, is_main, rng = [r, {"of": r}], r == 0, np.random.default_rng(r)
local = jnp.arange(5.0) * r
step = jax.jit(lambda tree: jax.tree.map(lambda v: v * 2, tree), donate_argnums=0)
def die(rank):
    if r == rank:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
"""
LOOK = """
import hashlib
def numbers(x):
    x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    parts = [(str(s.index), np.asarray(s.data).tobytes()) for s in x.addressable_shards]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
def told():
    arrays = [g, small, key, local, *jax.tree.leaves(params)]
    row[0] += 1
    told = [
        *map(numbers, arrays), str(g.sharding), str(small.dtype), own, is_main, view.tolist(),
        alias is g, params["w"] is g, row.base is view, int(rng.integers(1 << 40)),
    ]
    row[0] -= 1
    rng.bit_generator.state = rng_state
    return told
rng_state = rng.bit_generator.state
"""


@pytest.fixture(params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=request.param, name="copies") as cluster:
        assert cluster.copies() > 0
        cluster.run(SETUP, show=False)
        cluster.run(LOOK, show=False)
        yield cluster


def values(cluster: jaxcluster.Cluster) -> list[str]:
    record = cluster.run("import json; print(json.dumps(told()))", show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


def until_copied(cluster: jaxcluster.Cluster, ranks: Collection[int] | None = None) -> None:
    """Wait until each rank's copy is what its variables are."""

    def all_are() -> bool:
        them = range(cluster.num_processes) if ranks is None else ranks
        answers = cluster.link.gather(them, Kept(), timeout_s=2.0)
        return all(event.body.is_current for event in answers.values())

    until(all_are, "the ranks' copies", 10)


def kill(cluster: jaxcluster.Cluster, *ranks: int) -> str:
    """What is said of the death of idle ranks."""
    for rank in ranks:
        send_signal(cluster, rank)
    until(lambda: set(ranks) <= set(cluster.dead), "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        cluster.run("pass", show=False)
    return " ".join(str(caught.value).split())


def test_an_idle_ranks_death_costs_nothing(ranks: jaxcluster.Cluster) -> None:
    before = values(ranks)
    assert len(set(before)) == 3
    for victims in ((1,), (0,), (0, 2), (0, 1, 2)):
        until_copied(ranks)
        said = kill(ranks, *victims)
        assert "Lost" not in said
        assert "replaced" in said
        assert values(ranks) == before


@pytest.mark.parametrize("rank", [0, 2])
def test_a_death_in_a_cell_costs_the_cell(ranks: jaxcluster.Cluster, rank: int) -> None:
    """What it has bound, changed in place and donated is what it was before it, on all ranks."""
    before = values(ranks)
    until_copied(ranks)
    with pytest.raises(RankDied) as caught:
        ranks.run(
            "params = step(params); own.append(1); view[:] = 7; is_main = None; local = 1\n"
            f"new = 5; rng.integers(5); die({rank}); time.sleep(0.5); float(g.sum())",
            show=False,
        )
    said = " ".join(str(caught.value).split())
    assert "Lost" not in said
    assert "This cell is undone" in said
    assert values(ranks) == before
    until_copied(ranks)
    with pytest.raises(RankDied):
        ranks.run(f"params, g = step(params), 1; die({rank}); time.sleep(0.5)", show=False)
    assert values(ranks) == before


@pytest.mark.parametrize("ranks", [2], indirect=True, ids=["D=2"])
def test_all_ranks_may_die_in_a_cell(ranks: jaxcluster.Cluster) -> None:
    before = values(ranks)
    until_copied(ranks)
    with pytest.raises(RankDied) as caught:
        ranks.run("own.append(1); g = 1; die(r)", show=False)
    assert "This cell is undone. Restored g." in " ".join(str(caught.value).split())
    assert values(ranks) == before


def test_what_was_pushed_and_undone_is_in_the_copies(ranks: jaxcluster.Cluster) -> None:
    ranks.push({"own": [5]})
    ranks.run("is_main = 3", show=False)
    ranks.undo()
    before = values(ranks)
    until_copied(ranks)
    assert "Lost" not in kill(ranks, 1)
    assert values(ranks) == before


def test_what_an_undo_has_lost_is_lost_on_a_rank_that_dies_in_it(
    ranks: jaxcluster.Cluster,
) -> None:
    """Its copy is of before the cell; those of the others are of after the undo."""
    until_copied(ranks)
    ranks.run("g = jax.jit(lambda x: x + 1, donate_argnums=0)(g)", show=False)
    send_signal(ranks, 1)
    assert "Lost, since donated or deleted: alias, g, params." in ranks.undo()
    until_copied(ranks, {0, 2})
    with pytest.raises(RankDied, match=r"Lost: alias .* g .* params"):
        ranks.run("pass", show=False)
    record = ranks.run("print([n in globals() for n in ('alias', 'g', 'params')])", show=False)
    assert {record.stdout(rank) for rank in range(3)} == {"[False, False, False]\n"}


def test_a_cell_that_changes_settings_alone_is_in_the_copies(ranks: jaxcluster.Cluster) -> None:
    until_copied(ranks)
    ranks.run("pass", show=False)
    until_copied(ranks)
    ranks.run("np.seterr(divide='raise'); jax.set_mesh(mesh)", show=False)
    until_copied(ranks)
    kill(ranks, 1)
    record = ranks.run("print(np.geterr()['divide'], jax.sharding.get_mesh() is mesh)", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["raise True\n"] * 3


def test_what_a_text_that_no_cell_has_changes_is_in_the_copies(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    (tmp_path / "step.py").write_text("own.append(r)")
    ranks.run(f"path = {str(tmp_path / 'step.py')!r}", show=False)
    until_copied(ranks)
    ranks.run("exec(open(path).read())", show=False)
    until_copied(ranks)
    kill(ranks, 1)
    record = ranks.run("print(own[-1] == r)", show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["True\n"] * 3


def test_a_reference_has_what_it_last_had(ranks: jaxcluster.Cluster) -> None:
    """Its array changes in place, so what was written of it before is not what it has now."""
    ranks.run("ref = jax.new_ref(jnp.zeros(3) + r); held = {'ref': ref}", show=False)
    for _ in range(2):
        until_copied(ranks)
        ranks.run("ref[...] += 10.0", show=False)
    until_copied(ranks)
    kill(ranks, 1)
    record = ranks.run("print(ref[...].tolist(), held['ref'] is ref)", show=False)
    assert [record.stdout(rank) for rank in range(3)] == [
        f"[{20.0 + rank}, {20.0 + rank}, {20.0 + rank}] True\n" for rank in range(3)
    ]


def test_a_cell_that_follows_at_once_has_a_copy_before_it(ranks: jaxcluster.Cluster) -> None:
    """Its copy is given a twentieth of the time that it took."""
    ranks.run("time.sleep(6); own.append(r); g = spread(np.ones((6, 1000)))", show=False)
    with pytest.raises(RankDied) as caught:
        ranks.run("own.append(7); g = None; die(1); time.sleep(1)", show=False)
    assert "Lost" not in str(caught.value)
    record = ranks.run("print(own, float(g.addressable_shards[0].data[0, 0]))", show=False)
    assert [record.stdout(r) for r in range(3)] == [
        f"[{r}, {{'of': {r}}}, {r}] 1.0\n" for r in range(3)
    ]


@pytest.mark.parametrize("ranks", [1], indirect=True, ids=["D=1"])
def test_what_a_copy_leaves_out_is_all_that_a_death_takes(ranks: jaxcluster.Cluster) -> None:
    """The survivors take what the cell has donated from their copies."""
    ranks.run("class Odd:\n    def __getstate__(self): return {}\n", show=False)
    ranks.run("odd, same, generator = Odd(), Odd(), (one for one in 'abc')", show=False)
    ranks.run("odd.n = r", show=False)
    before = values(ranks)
    until_copied(ranks)
    assert "odd (its class has a __getstate__ of yours, which no copy calls)" in ranks.tell_copies()
    with pytest.raises(RankDied) as caught:
        ranks.run("params = step(params); own.append(1); die(1); time.sleep(0.5)", show=False)
    said = " ".join(str(caught.value).split())
    assert "Lost: generator (" in said
    assert "odd (each rank had its own, and one rank died)" in said
    assert "donated" not in said
    assert values(ranks) == before
    ranks.run("odd = same; del same", show=False)
    until_copied(ranks)
    said = kill(ranks, 0, 1, 2)
    assert "Lost: odd (its class has a __getstate__ of yours, which no copy calls)" in said
    assert values(ranks) == before


def test_without_a_copy_it_is_as_it_was(ranks: jaxcluster.Cluster) -> None:
    ranks.copies(0)
    assert "g (its only copy died with the rank)" in kill(ranks, 1)


@pytest.mark.one_machine
def test_the_files_are_private_and_go_with_the_cluster(home: Home) -> None:
    with jaxcluster.start(2, devices_per_process=1, name="copies") as cluster:
        cluster.copies()
        cluster.run("x = 1", show=False)
        until_copied(cluster)
        assert cluster.world.copies is not None
        folder = Path(cluster.world.copies.paths[0])
        files = list(folder.rglob("*"))
        assert json.loads(next(folder.rglob("report.json")).read_text())["kept"] == ["x"]
        for path in [folder, *files]:
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077
        saved_states.sweep()
        assert folder.exists()
        cluster.copies(0)
        assert not folder.exists()
        cluster.copies()
        assert cluster.world.copies is not None
        folder = Path(cluster.world.copies.paths[0])
    assert not folder.exists()
    assert not list(Path("/dev/shm").glob(f"{folder.name}*"))
