"""A cluster gets another number of ranks, and its variables with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied, RecoveryError, UsageError
from jaxcluster.text import plural

SETUP = """
import jax, jax.numpy as jnp, numpy as np, optax, jaxcluster
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.process_count(), 2), ("data", "model"))
flat = jax.sharding.Mesh(np.array(jax.devices()), ("all",))
w = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)
def on(values, spec, mesh=mesh, **kind):
    where = NamedSharding(mesh, spec, **kind)
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
kinds = {
    "both": P("data", "model"), "turned": P("model", "data"), "first": P("data"),
    "second": P(None, "data"), "tensor": P(None, "model"), "whole": P(),
    "fsdp": P(("data", "model")), "columns": P(None, ("model", "data")), "rows": P("model"),
}
arrays = {name: on(w, spec) for name, spec in kinds.items()}
arrays["on flat"] = on(w, P("all"), flat)
arrays["on flat's columns"] = on(w, P(None, "all"), flat)
backwards = jax.sharding.Mesh(np.array(jax.devices())[::-1], ("all",))
arrays["backwards"] = on(w, P("all"), backwards)
auto = jax.make_mesh((jax.process_count(), 2), ("data", "model"),
                     axis_types=(jax.sharding.AxisType.Auto,) * 2)
arrays["auto"] = on(w, P("data", "model"), auto)
deep = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 2, 1), ("data", "model", "one"))
arrays["three axes"] = on(w, P(("data", "one"), "model"), deep)
arrays["complex64"] = on(w * np.complex64(1j), P("model", "data"))
arrays["bfloat16"] = on(w.astype(jnp.bfloat16), P("data"))
arrays["int8"] = on(w.astype(np.int8), P("data", "model"))
arrays["3d"] = on(w.reshape(8, 8, 4), P("data", None, "model"))
arrays["empty"] = on(np.zeros((0, 4), np.float32), P())
arrays["scalar"] = on(np.float32(5), P())
arrays["mine alone"] = jnp.arange(3.0)
values = {name: np.asarray(x.addressable_data(0)) if x.is_fully_addressable else None
          for name, x in arrays.items()}
key = jax.make_array_from_callback((), NamedSharding(mesh, P()), lambda i: np.uint32(3))
keys = jax.random.split(jax.random.key(7), 16)
keys = jax.random.wrap_key_data(on(np.asarray(jax.random.key_data(keys)), P("data")))
key_data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(7), 16)))
params = {"w": arrays["first"], "b": arrays["whole"]}
tx = optax.adam(1e-3)
state = tx.init(params)
alias = params["w"]
rank = jax.process_index()
lr, mine, table = 0.5, f"rank {rank}", np.arange(5)
total = jax.jit(lambda p: jnp.sum(p["w"]))
"""
CHECK = """
def check(name, x, values):
    for shard in x.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), values[shard.index]), name
of = {"complex64": w * np.complex64(1j), "bfloat16": w.astype(jnp.bfloat16),
      "int8": w.astype(np.int8), "3d": w.reshape(8, 8, 4),
      "empty": np.zeros((0, 4)), "scalar": np.float32(5), "mine alone": np.arange(3.0)}
for name, x in arrays.items():
    check(name, x, of.get(name, w))
check("keys", jax.random.key_data(keys), key_data)
assert alias is params["w"] is arrays["first"]
assert {name: x.sharding.spec for name, x in arrays.items() if name in kinds} == kinds
assert float(total(params)) == w.sum() and lr == 0.5 and rank == jax.process_index()
assert mesh.size == flat.size == jax.device_count() and table.tolist() == [0, 1, 2, 3, 4]
updates, state = tx.update(jax.tree.map(jnp.ones_like, params), state)
print(jax.process_count(), globals().get("mine"), dict(mesh.shape))
"""


def test_arrays_are_cut_for_the_ranks_that_there_are(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """Bit for bit, with their shardings and aliases, on more ranks and on fewer."""
    cluster = start(4, devices_per_process=2, name="resized")
    cluster.run(SETUP, show=False)
    cluster.run(CHECK, show=False)
    line = cluster.resize(8, {"data": 8})
    assert "8 ranks after" in line
    assert "Lost" not in line
    assert "Each rank had its own mine: ranks 4-7 have none." in line
    record = cluster.run(CHECK, show=False)
    assert record.stdout(7) == "8 None {'data': 8, 'model': 2}\n"
    with pytest.raises(CellFailed, match=r"'mine' has no value on this rank, which is new"):
        cluster.run("if rank == 5: mine", show=False)
    line = cluster.resize(2, {"data": 2})
    assert "Gone with ranks 2-7: their own mine." in line
    assert cluster.run(CHECK, show=False).stdout(1).startswith("2 rank 1 ")
    assert "Lost" not in cluster.resize(4, {"data": 4})
    record = cluster.run(CHECK, show=False)
    assert [record.stdout(r) for r in (0, 3)] == [
        f"4 {name} {{'data': 4, 'model': 2}}\n" for name in ("rank 0", None)
    ]
    assert len(cluster.status()) == cluster.num_processes == len(cluster.record.pids) == 4
    assert cluster.run("assert params['w'].sum() == w.sum()", show=False).replies.keys() == {
        *range(4)
    }
    assert "New processes after" in cluster.restart()
    cluster.run(CHECK, show=False)


def test_what_fits_no_mesh_waits_until_it_is_placed(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, name="waits")
    cluster.run(
        "import jax, jax.numpy as jnp, numpy as np, jaxcluster\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((2,), ('i',))\n"
        "x = jax.make_array_from_callback((4,), NamedSharding(mesh, P('i')),"
        " lambda i: np.arange(4.0)[i])\n"
        "tree = {'x': x, 'n': 1}",
        show=False,
    )
    line = cluster.resize(3)
    assert "Not on any device yet: tree, x. Place each: tree = jaxcluster.place(" in line
    for use in ("x + 1", "jnp.sum(x)", "jax.jit(lambda a: a)(x)"):
        with pytest.raises(CellFailed, match=r"not placed .* over i=3\. Place it first: x = jaxcl"):
            cluster.run(use, show=False)
    cluster.restart()
    placed = (
        "tree = jaxcluster.place(tree, NamedSharding(mesh, P()))\nx = tree['x']\n"
        "print(float(jnp.sum(x)), x.sharding.is_fully_replicated, tree['n'])"
    )
    assert cluster.run(placed, show=False).stdout(2).startswith("6.0 True 1")


def test_what_can_not_be_done_is_refused_and_nothing_is_changed(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(2, devices_per_process=2, name="refused")
    cluster.run("import jax\nmesh = jax.make_mesh((2, 2), ('data', 'model'))\na = 1", show=False)
    pids = list(cluster.record.pids)
    with pytest.raises(UsageError) as caught:
        cluster.resize(4)
    assert "can become data=4,model=2 or data=2,model=4 on 8 devices." in str(caught.value)
    assert "Nothing was changed." in str(caught.value)
    assert "--mesh data=4,model=2" in caught.value.hint
    with pytest.raises(UsageError, match="would become data=3,model=2, which are not 8 devices"):
        cluster.resize(4, {"data": 3})
    assert cluster.record.pids == pids
    assert cluster.run("print(a)", show=False).stdout(1) == "1\n"
    with pytest.raises(RankDied):
        cluster.recovery = "never"
        cluster.run(
            "import os, signal\nif jax.process_index(): os.kill(os.getpid(), 9)", show=False
        )
    with pytest.raises(RecoveryError, match=r"Rank 1 died, so the cluster can't be resized\."):
        cluster.resize(4, {"data": 4})


def test_what_is_one_ranks_alone_is_named_where_it_gets_others(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """With one rank all values are equal on all ranks, also its own number."""
    cluster = start(1, devices_per_process=2, name="grows")
    cluster.run(
        "import jax, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "rank, lr, f = jax.process_index(), 0.5, lambda x: x\n"
        "mesh = jax.make_mesh((2, 1), ('data', 'model'))\n"
        "two = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 2), ('i', 'j'))\n"
        "x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P('data')))",
        show=False,
    )
    line = cluster.resize(2)
    assert "own, so rank 1 got rank 0's lr and rank. Run again the cells of those" in line
    cluster.run(
        "rank = jax.process_index()\n"
        "whole = NamedSharding(mesh, P())\n"
        "odd = jax.make_array_from_callback((3,), whole, lambda i: np.full(3, rank)[i])",
        show=False,
        on_notice=lambda told: None,
    )
    line = cluster.resize(3)
    assert "The copies of odd were not equal on all ranks: each has the lowest rank's now." in line
    shown = cluster.run("print(odd.addressable_data(0), rank, x.shape)", show=False)
    assert [shown.stdout(rank) for rank in range(3)] == [f"[0 0 0] {r} (8,)\n" for r in range(3)]


def test_a_mesh_of_one_rank_is_asked_about_too(start: Callable[..., jaxcluster.Cluster]) -> None:
    cluster = start(1, name="asked")
    cluster.run("import jax\nmesh = jax.make_mesh((1, 1), ('data', 'model'))\na = 1", show=False)
    pids = list(cluster.record.pids)
    with pytest.raises(UsageError, match="become data=2,model=1 or data=1,model=2 on 2 devices"):
        cluster.resize(2)
    assert cluster.record.pids == pids
    assert "Lost" not in cluster.resize(2, {"data": 2})
    assert cluster.run("print(mesh.shape['data'], a)", show=False).stdout(1) == "2 1\n"


HALVES = """
half = jax.process_index() // 2
devices = np.array(jax.devices())[half * 2 : half * 2 + 2]
own = on(np.arange(4.0) + 100 * half, P("half"), jax.sharding.Mesh(devices, ("half",)))
copied = {"w": on(np.arange(4.0) + 100 * half, P(), jax.sharding.Mesh(devices, ("half",)))}
del devices
"""
SUMS = "total = jax.jit(jnp.sum); print([float(total(x)) for x in (own, copied['w'])])"


def test_arrays_of_some_ranks_each_are_not_taken_for_one_another(home: object) -> None:
    """Their shardings say the same of them: a mesh's text does not tell its devices."""
    with jaxcluster.start(4, devices_per_process=1, name="halves") as cluster:
        cluster.run(SETUP.partition("kinds =")[0].replace(", 2)", ", 1)") + HALVES, show=False)
        expected = [f"{[6.0 + 400 * (rank // 2)] * 2}\n" for rank in range(4)]
        shown = cluster.run(SUMS, show=False)
        assert [shown.stdout(rank) for rank in range(4)] == expected
        said = cluster.resize(5)
        assert "copied" in said and "own: rank 4 has none" in said
        shown = cluster.run(SUMS, ranks=range(4), show=False)
        assert [shown.stdout(rank) for rank in range(4)] == expected
        cluster.resize(2)
        shown = cluster.run(SUMS, show=False)
        assert [shown.stdout(rank) for rank in range(2)] == expected[:2]


def test_an_array_in_a_value_of_each_ranks_own_is_put_together_beside_local_ones(
    home: object,
) -> None:
    with jaxcluster.start(3, devices_per_process=1, name="own") as cluster:
        cluster.run(SETUP.partition("kinds =")[0].replace(", 2)", ", 1)"), show=False)
        cluster.run(
            "rank = jax.process_index()\nv = w[:12]\n"
            "model = {'key': jax.random.key(rank), 'rank': rank, 'w': on(v, P('data'))}",
            show=False,
        )
        assert "Lost" not in cluster.resize(2)
        shown = cluster.run(
            "print(model['rank'], jax.random.key_data(model['key'])[1],"
            " all((s.data == v[s.index]).all() for s in model['w'].addressable_shards))",
            show=False,
        )
        assert [shown.stdout(rank) for rank in range(2)] == ["0 0 True\n", "1 1 True\n"]


@pytest.mark.any_jax
def test_the_magics_say_what_has_become_of_it(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --devices-per-process 1 --platform cpu")
    notebook.ok("%%spmd\nimport jax\nlr = 0.5")
    for command, count in (("restart -n 3", 3), ("resize -n 2", 2)):
        told = notebook.ok(f"%jaxcluster {command}").text
        assert f"{count} ranks after" in told
        assert "Lost" not in told
        assert notebook.ok("%spmd (lr, jax.process_count())").result == f"(0.5, {count})"
    for command, why in (
        ("restart -n 4 --clean", "restart -n keeps the variables, so it does not take --clean."),
        ("restart --mesh data=2", "--mesh is for another number of ranks."),
        ("resize", "How many ranks should it have?"),
    ):
        cell = notebook.run(f"%jaxcluster {command}")
        assert why in cell.error
        assert "Traceback" not in cell.error


@pytest.mark.promise("Another number of ranks")
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_a_checkpoint_comes_back_on_another_number_of_ranks(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path, before: int, after: int
) -> None:
    first = start(before, devices_per_process=2, name="first")
    first.run(
        "import jax, jax.numpy as jnp, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((jax.device_count(),), ('i',))\n"
        "x = jax.make_array_from_callback((12,), NamedSharding(mesh, P('i')),"
        " lambda i: np.arange(12.0)[i])\n"
        "params, lr, mine = {'x': x}, 0.5, jax.process_index() + 0.5\n"
        # Which array is which can't be known of other ranks here.
        "ones, twos = x + 1, x + 2\n"
        "mixed = {'a': ones, 'b': twos} if jax.process_index() else {'b': twos, 'a': ones}\n"
        "del ones, twos",
        show=False,
    )
    first.checkpoint("c", tmp_path)
    first.stop()
    second = start(after, devices_per_process=2, name="second")
    line = second.restore("c", tmp_path)
    assert f" on {plural(after, 'rank')}." in line
    own = (
        "Each rank had its own mine" if after > before else "Gone with ranks 1, 2: their own mine."
    )
    assert own in line
    assert "Lost: mixed (a part of [" in line
    second.run(
        "assert params['x'] is x and lr == 0.5 and mesh.size == jax.device_count()\n"
        "for s in x.addressable_shards:\n"
        "    assert (np.asarray(s.data) == np.arange(12.0)[s.index]).all()\n"
        "assert float(jnp.sum(x)) == 66",
        show=False,
    )
