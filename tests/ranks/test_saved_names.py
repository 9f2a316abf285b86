"""Ranks' variables on new processes: after a restart, a death, a hang, and a resize."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Home, plain, until
from overhosts import saved_folders, send_signal

import jaxcluster
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    JaxClusterError,
    RankDied,
    RecoveryError,
    UsageError,
)
from jaxcluster.hosts.states import HostStates
from jaxcluster.model.layout import ArrayLayout
from jaxcluster.wire.ops.saving import SavePlace

SETUP = """
import dataclasses, functools, os, random, sys, threading
import jax, jax.numpy as jnp, numpy as np, equinox as eqx, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
S, R = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
g = jax.make_array_from_callback((16,), S, lambda i: np.arange(16.0, dtype="float32")[i])
everywhere = jax.make_array_from_callback((8,), R, lambda i: np.arange(8.0, dtype="float32")[i])
put = jax.device_put(jnp.arange(8.0), R)  # JAX can't list its shards, if it has one
rank = jax.process_index()
alias, tree, own = g, {"g": [g], "step": 7}, [rank]
lr, words = 0.5, ["one", "two"]
def total(v): return float(jnp.sum(v)) * scale
scale = 2.0
jitted = jax.jit(lambda v: v * scale)
class Net(eqx.Module):
    weight: jax.Array
    size: int = eqx.field(static=True, default=3)
    def __call__(self, v): return self.weight * v
net = Net(everywhere)
key = jax.random.key(rank)
local = jax.device_put(np.arange(4.0), NamedSharding(Mesh(np.array(jax.local_devices()), "l"), P()))
weak = jax.jit(lambda: 3.0, out_shardings=R)()
summed, first_of = jax.jit(jnp.sum), functools.partial(jnp.take, indices=0)
gen, compiled = (i for i in range(3)), jax.jit(lambda v: v + 1).lower(1.0).compile()
"""
CHECK = """
assert alias is g is tree["g"][0] and g.sharding == NamedSharding(mesh, P("x"))
assert total(g) == 240 and total(jitted(everywhere)) == 112 and net(everywhere).shape == (8,)
assert put.tolist() == everywhere.tolist() and put.sharding == everywhere.sharding
assert len(jax.tree.leaves(net)) == 1 and weak.weak_type and not compiled_there
"""
OWN = "assert (own, lr, words) == ([rank], 0.5, ['one', 'two']) and local.is_fully_addressable"
HANG = """
def apart(v):
    first = jax.lax.axis_index("x") == 0
    return jax.lax.cond(first, lambda v: jax.lax.psum(v, "x"), lambda v: v, v)
stuck = jax.jit(jax.shard_map(apart, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
pending = stuck(g)
pending.block_until_ready()
"""


PLACES = HostStates.places_for


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    before = saved_folders()
    with jaxcluster.start(4, devices_per_process=request.param, name="names") as cluster:
        yield cluster
    assert saved_folders() == before


@pytest.fixture
def ranks(four: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """Four ranks with the names of ``SETUP``, and no others."""
    four.run("%reset -f", show=False)
    four.run(SETUP, show=False)
    return four


on_two_devices = pytest.mark.parametrize("four", [2], indirect=True)
on_one_and_two_devices = pytest.mark.parametrize("four", [1, 2], indirect=True)


@pytest.fixture(scope="module")
def two(home: Home) -> Iterator[jaxcluster.Cluster]:
    before = saved_folders()
    with jaxcluster.start(2, name="two-names") as cluster:
        yield cluster
    assert saved_folders() == before


@pytest.fixture
def pair(two: jaxcluster.Cluster) -> Iterator[jaxcluster.Cluster]:
    """Two ranks with the names of ``SETUP``, and no others."""
    two.run("%reset -f", show=False)
    two.run(SETUP, show=False)
    yield two
    two.set_autosave(is_on=False)


def run(cluster: jaxcluster.Cluster, source: str) -> list[str]:
    """What each rank prints."""
    record = cluster.run(source, show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


def check(cluster: jaxcluster.Cluster, *, own: bool = True) -> None:
    run(cluster, "compiled_there = 'compiled' in globals()\n" + CHECK + (OWN if own else ""))


def kill(cluster: jaxcluster.Cluster, rank: int) -> str:
    """Kill an idle rank; what the next cell says of that."""
    send_signal(cluster, rank)
    until(lambda: rank in cluster.dead, "word of the death", 5)
    with pytest.raises(RankDied) as caught:
        cluster.run("pass", show=False)
    return " ".join(str(caught.value).split())


# ---------------------------------------------------------------------- restart


@on_one_and_two_devices
@pytest.mark.promise("What needs new processes")
def test_a_restart_brings_all_back(ranks: jaxcluster.Cluster) -> None:
    for _ in range(2):
        assert ranks["put"].tolist() == [*range(8)]
        layout = ranks.layout("put")
        assert isinstance(layout, ArrayLayout) and {len(one.index) for one in layout.shards} == {1}
        told = ranks.restart()
        check(ranks)
    assert "Lost" not in told
    with pytest.raises(CellFailed, match=r"'gen' was lost in a restart .*generator"):
        ranks.run("gen", show=False)
    ranks.restart(clean=True)
    with pytest.raises(CellFailed, match="NameError"):
        ranks.run("g", show=False)


@on_one_and_two_devices
@pytest.mark.promise("What needs new processes")
def test_ranks_that_are_stuck_in_xla_are_saved(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(JaxClusterError):
        ranks.run(HANG, timeout_s=1, show=False)
    ranks.restart()
    check(ranks)
    with pytest.raises(CellFailed, match="'pending'"):
        ranks.run("pending", show=False)


def test_settings_of_cells_are_there_again(pair: jaxcluster.Cluster, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 5\n")
    run(
        pair,
        f"jax.config.update('jax_enable_x64', True)\nos.environ['SET'] = 'yes'\n"
        f"gone = os.environ.pop('HOME')\nos.chdir({str(tmp_path)!r})\n"
        "sys.path.append('/cells')\nimport beside\nrandom.seed(3 + rank); np.random.seed(4)\n"
        "wide = jnp.arange(3.0)\ndef fail():\n    raise ValueError('here')\n",
    )
    run(pair, "'an answer'")
    drawn = run(pair, "print(random.random(), np.random.rand())")
    run(pair, "random.seed(3 + rank); np.random.seed(4)")
    pair.restart()
    told = run(
        pair,
        "print(jax.config.jax_enable_x64, os.environ['SET'], 'HOME' in os.environ, os.getcwd(),"
        " sys.path[-1], beside.value, wide.dtype, 'an answer' in Out.values(), len(In) > 4)",
    )
    assert told == [f"True yes False {tmp_path} /cells 5 float64 True True\n"] * 2
    assert run(pair, "print(random.random(), np.random.rand())") == drawn
    with pytest.raises(CellFailed) as caught:
        pair.run("fail()", show=False)
    assert "raise ValueError('here')" in plain("".join(caught.value.traceback))
    pair.restart(clean=True)


@pytest.mark.promise("What needs new processes")
def test_large_arrays_go_to_disk_and_where_no_place_has_room_nothing_is_ended(
    pair: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's /dev/shm has 64 MiB."""

    def restart(room: int, *, has_disk: bool) -> None:
        def places(self: HostStates, rank: int) -> list[SavePlace]:
            memory, *disk = PLACES(self, rank)
            return [SavePlace(memory.folder, room), *(disk if has_disk else [])]

        with monkeypatch.context() as patch:
            patch.setattr(HostStates, "places_for", places)
            pair.restart()

    before = run(pair, "print(os.getpid())")
    with pytest.raises(RecoveryError, match="nothing was ended or lost") as caught:
        restart(1000, has_disk=False)
    assert "has room for 0 MiB" in str(caught.value)
    assert run(pair, f"print(os.getpid())\n{OWN}") == before
    run(pair, "big = np.full(10_000_000, rank, 'float64'); again = big[::2]")
    restart(32 << 20, has_disk=True)
    assert run(pair, "again[0] = 9; print(big[0], big[-1])") == ["9.0 0.0\n", "9.0 1.0\n"]


# ---------------------------------------------------------------------- deaths


@pytest.mark.promise("What needs new processes")
@pytest.mark.parametrize(("four", "rank"), [(1, 0), (2, 2)], indirect=["four"])
def test_after_a_death_the_others_keep_their_values(ranks: jaxcluster.Cluster, rank: int) -> None:
    first = f"[d for d in jax.devices() if d.process_index == {min({0, 1} - {rank})}]"
    run(ranks, f"stage = Mesh(np.array({first}), 'i')")
    told = kill(ranks, rank)
    with pytest.raises(CellFailed, match=f"on rank {rank}: name 'stage' was lost"):
        ranks.run("stage", show=False)
    assert f"Rank {rank} died (killed by SIGKILL" in told and f"rank {rank} replaced" in told
    assert re.search(
        r"Run cells \[\d+\], \[\d+\] to make them again. %jaxcluster autosave on", told
    )
    assert "g (parts of it were on a rank that is gone)" in told
    others = [one for one in range(4) if one != rank]
    run(ranks, f"if rank_of(): {OWN}".replace("rank_of()", f"jax.process_index() != {rank}"))
    assert (
        run(ranks, "print(float(summed(everywhere)), float(first_of(everywhere)))")
        == ["28.0 0.0\n"] * 4
    )
    common = "print(total(everywhere), net(everywhere).shape, mesh.size, R.spec, weak, len(words))"
    with pytest.raises(CellFailed) as caught:
        ranks.run(common, show=False)
    assert f"NameError on rank {rank}: name 'scale' was lost" in str(caught.value)
    run(ranks, "scale, words = 2.0, ['one', 'two']")
    assert run(ranks, common)[others[0]] == run(ranks, common)[rank]
    for name in ("g", "alias", "tree"):
        with pytest.raises(CellFailed, match=f"ranks 0-3: name '{name}' was lost.*parts of it"):
            ranks.run(f"print({name})", show=False)
    with pytest.raises(CellFailed, match=f"on rank {rank}: name 'own' was lost.*had its own"):
        ranks.run("own", show=False)
    ranks.run(f"{SETUP}\ndel compiled", show=False)
    check(ranks)


@pytest.mark.promise("What needs new processes")
def test_deaths_at_any_moment_lose_nothing_that_was_promised(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    seed = int(os.environ.get("JAXCLUSTER_SEED", random.randrange(1 << 30)))
    print(f"seed {seed}")
    choice = random.Random(seed)
    pair.checkpoint("kept", tmp_path)
    ways = {
        "restart": (1.4, pair.restart),
        "restore": (0.15, lambda: pair.restore("kept", tmp_path)),
        "checkpoint": (0.15, lambda: pair.checkpoint("new", tmp_path)),
    }
    for number in range(int(os.environ.get("JAXCLUSTER_KILLS", "4"))):
        name, victim = choice.choice([*ways]), choice.randrange(2)
        most_s, do = ways[name]
        run(pair, f"own = [rank, {number}]")
        after_s = choice.random() * most_s
        timer = threading.Timer(after_s, kill_if_there, [pair, victim])
        timer.start()
        at = f"{number}: {name} after {after_s:.3f} s, rank {victim}"
        print(at)
        restored = False
        try:
            do()
            restored = name == "restore"
        except JaxClusterError as error:
            print(f"  {error}")
        timer.join()
        settle(pair)
        told = run(pair, "print(globals().get('own'))")
        other = 1 - victim
        mine, gone = [f"[{other}, {number}]\n"], ["None\n", f"[{victim}, {number}]\n"]
        if name == "restore":
            mine = [f"[{other}]\n"] if restored else [*mine, f"[{other}]\n"]
            gone.append(f"[{victim}]\n")
        assert told[other] in mine and told[victim] in gone, (at, told)
        for kept in ("kept", *(["new"] if (tmp_path / "new").exists() else [])):
            pair.restore(kept, tmp_path)
            check(pair, own=kept == "kept")


def settle(cluster: jaxcluster.Cluster) -> None:
    """Have all ranks live, whatever has become of them."""
    for _ in range(4):
        try:
            if cluster.down:
                cluster.restart()
            cluster.run("pass", show=False)
            return
        except JaxClusterError as error:
            print(f"  {error}")
    raise AssertionError("no ranks")


def kill_if_there(cluster: jaxcluster.Cluster, rank: int) -> None:
    try:
        send_signal(cluster, rank)
    except Exception:
        return


# ---------------------------------------------------------------------- another number of ranks


@on_two_devices
@pytest.mark.promise("What needs new processes")
def test_arrays_are_cut_for_the_ranks_that_there_are(ranks: jaxcluster.Cluster) -> None:
    run(ranks, "two = jax.make_mesh((1, jax.device_count()), ('a', 'b'))")
    for count in (2, 4, 3, 1, 4):
        told = ranks.restart(num_processes=count)
        if count == 3:
            assert "Lost: " in told and "g (" in told  # of 16 rows
            continue
        if count == 1:
            ranks.run(SETUP, show=False)
        run(ranks, "rank = jax.process_index()")
        if count == 2:  # the first axis that can takes the change
            assert run(ranks, "print(two.devices.shape)") == ["(1, 4)\n"] * 2
        told = run(ranks, "print(mesh.size, total(g), total(everywhere), tree['step'], words)")
        assert told == [f"{count * 2} 240.0 56.0 7 ['one', 'two']\n"] * count


# ---------------------------------------------------------------------- checkpoints


def test_a_checkpoint_comes_back_on_all_ranks_or_on_none(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    umask = os.umask(0)
    try:
        told = pair.checkpoint("first", tmp_path)
    finally:
        os.umask(umask)
    assert "variables of 2 ranks" in told and "gen (cannot pickle 'generator'" in told
    run(pair, "lr, g, extra, os.environ['LATER'], drawn = 7, g * 2, 1, '', random.random()")
    assert "Restored " in pair.restore("first", tmp_path)
    check(pair)
    run(pair, "assert 'LATER' not in os.environ and random.random() == drawn")
    assert run(pair, "print(extra)") == ["1\n"] * 2
    file = tmp_path / "first" / "rank-1.state"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    run(pair, "lr = 8")
    with pytest.raises(JaxClusterError, match=r"rank-1.state was changed"):
        pair.restore("first", tmp_path)
    assert run(pair, "print(lr)") == ["8\n"] * 2
    file.chmod(0o666)
    with pytest.raises(RecoveryError, match="Other users can write"):
        pair.restore("first", tmp_path)


def test_a_checkpoint_that_a_stop_ends_leaves_all_as_they_were(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    run(pair, "import time\nclass Slow:\n    def __setstate__(self, state): time.sleep(1)\n")
    run(pair, "slow = Slow(); slow.a = 1")
    pair.checkpoint("slow", tmp_path)
    run(pair, "lr = 8")
    threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(CellInterrupted, match="Nothing was restored"):
        pair.restore("slow", tmp_path)
    time.sleep(1.2)
    assert run(pair, "print(lr)") == ["8\n"] * 2


def test_a_checkpoint_has_no_moment_of_a_cell_that_runs(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    """Each rank would be at another one, and none would tell."""
    run(pair, "import time\nn, seen = 0, []")
    cell = pair.submit(
        "for _ in range(20):\n    n += 1; time.sleep(0.02 * (1 + rank)); seen.append(n)"
    )
    pair.checkpoint("c", tmp_path)
    cell.wait()
    run(pair, "n = seen = None")
    pair.restore("c", tmp_path)
    assert run(pair, "print(n, len(seen))") == ["20 20\n"] * 2


@on_two_devices
def test_a_checkpoint_of_another_number_of_ranks(
    ranks: jaxcluster.Cluster, home: Home, tmp_path: Path
) -> None:
    ranks.checkpoint("four", tmp_path)
    with jaxcluster.start(2, devices_per_process=2, name="fewer") as fewer:
        assert "Restored" in fewer.restore("four", tmp_path)
        with pytest.raises(UsageError, match=r"There are: four\."):
            fewer.restore("five", tmp_path)
        assert run(fewer, "print(total(g), own, lr)") == [f"240.0 [{r}] 0.5\n" for r in range(2)]


# ---------------------------------------------------------------------- autosave


@pytest.mark.promise("What needs new processes")
def test_with_autosave_a_death_costs_the_running_cell(pair: jaxcluster.Cluster) -> None:
    """Its report of the save is sent before it has launched anything."""
    pair.set_autosave(is_on=True)
    for turn in range(3):
        dying = turn % 2
        run(pair, f"own = [rank, {turn}]; g = g + 1; random.seed(rank)")
        with pytest.raises(RankDied) as caught:
            pair.run(
                "own = [rank, 99]; g = g * 2; new = 1; float(jnp.sum(g))\n"
                f"if rank == {dying}: os.kill(os.getpid(), 9)\n"
                "float(jnp.sum(g))",
                show=False,
            )
        assert (
            f"Values of rank {dying}, and arrays that span processes, are those of the end"
            in str(caught.value)
        )
        told = run(pair, "print(own, float(jnp.sum(g)), alias is g, globals().get('new'))")
        lived = f"[{1 - dying}, 99] {120.0 + 16 * (turn + 1)} False 1\n"
        died = f"[{dying}, {turn}] {120.0 + 16 * (turn + 1)} False None\n"
        assert told == ([died, lived] if dying == 0 else [lived, died])
        run(pair, "new = None")


def test_the_last_cells_end_comes_back_on_all_ranks(pair: jaxcluster.Cluster) -> None:
    with pytest.raises(UsageError, match="Autosave saved nothing"):
        pair.restore_last()
    pair.set_autosave(is_on=True)
    run(pair, "lr = 0.25")
    with pytest.raises(CellFailed):
        pair.run("lr, words = 7, words.clear()\ng = g * 3\n1 / 0", show=False)
    assert "Restored" in pair.restore_last()
    check(pair, own=False)
    assert run(pair, "print(lr, words)") == ["0.25 ['one', 'two']\n"] * 2
    pair.restart()
    run(pair, "lr = 1")
    pair.autosave.wait()
    run(pair, "print(lr)")
    assert pair.autosave.why_not == ""
    pair.set_autosave(is_on=False)
    with pytest.raises(UsageError):
        pair.restore_last()
