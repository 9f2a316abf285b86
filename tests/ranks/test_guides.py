"""What JAX's guides to sharding do goes as in plain processes, and as in one process.

The programs are short ones with the calls of the guides: automatic and explicit sharding,
``shard_map``, several processes, data loading; and of equinox's guide to parallelism. Each is run
cell by cell on ranks, in as many plain processes, and in one with as many devices.
"""

from __future__ import annotations

import plaincells
import pytest
from plaincells import Went

import jaxcluster
from jaxcluster.errors import CellFailed

pytestmark = [pytest.mark.any_jax, pytest.mark.one_machine, pytest.mark.timeout(400)]

SETUP = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
jax.set_mesh(Mesh(np.empty((), dtype=object), ()))  # none, whatever ran before
def show(*values):
    print(*(round(float(jnp.sum(jnp.sin(jnp.asarray(v, "float32")))), 3) for v in values))
"""

# What each process has of its own, by index or shards, is not compared with the one process.
GUIDES: dict[str, list[str]] = {
    "automatic sharding": [
        "auto = jax.make_mesh((4, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)\n"
        "put = lambda v, *spec: jax.device_put(v, NamedSharding(auto, P(*spec)))\n"
        "a = put(np.arange(128, dtype='float32').reshape(8, 16) / 99, 'x', 'y')\n"
        "print(jnp.sin(a).sharding.spec, a.shape, a.dtype)",
        "b = put(np.ones((16, 8), 'float32'), 'y', None)\n"
        "c = a @ b\n"
        "print(c.sharding.spec); show(c, a.T, a[:, ::2], a.sum(0))",
        "@jax.jit\n"
        "def f(v): return jax.lax.with_sharding_constraint(v * 2, NamedSharding(auto, P('y')))\n"
        "print(f(a).sharding.spec); show(f(a))",
        "w = [put(np.full((16, 16), 0.01 * k, 'float32'), None, 'y') for k in (1, 2)]\n"
        "def loss(w, v):\n"
        "    for one in w: v = jnp.tanh(v @ one)\n"
        "    return jnp.mean(v ** 2)\n"
        "step = jax.jit(lambda w, v: [p - g for p, g in zip(w, jax.grad(loss)(w, v))])\n"
        "for _ in range(3): w = step(w, a)\n"
        "show(*w)",
        "keys = jax.jit(jax.random.normal, static_argnums=1,\n"
        "               out_shardings=NamedSharding(auto, P('x')))(jax.random.key(0), (8, 4))\n"
        "show(keys)",
        "jax.device_put(np.ones((6, 3)), NamedSharding(auto, P('x')))",
    ],
    "explicit sharding": [
        "mesh = jax.make_mesh((4, 2), ('X', 'Y'))\n"
        "jax.set_mesh(mesh)\n"
        "x = jax.device_put(np.arange(32.).reshape(8, 4), NamedSharding(mesh, P('X', 'Y')))\n"
        "print(jax.typeof(x), jax.typeof(jnp.sin(x).T))",
        "y = x.sum(0)\nprint(jax.typeof(y)); show(y)",
        "@jax.jit\n"
        "def g(v):\n"
        "    print('traced', jax.typeof(v))\n"
        "    return jax.sharding.reshard(v, P('Y', None)) * 2\n"
        "z = g(x); print(jax.typeof(z)); show(z)",
        "l = jax.device_put(np.ones((8, 4)), NamedSharding(mesh, P(None, 'X')))\n"
        "m = jax.device_put(np.ones((4, 16)), NamedSharding(mesh, P('X', None)))\n"
        "jnp.dot(l, m)",
        "z = jnp.dot(l, m, out_sharding=P('X', None))\nprint(jax.typeof(z)); show(z)",
        "add = jax.sharding.auto_axes(lambda a, b: a + b)\n"
        "one = jax.device_put(np.arange(16.).reshape(4, 4), NamedSharding(mesh, P('X', None)))\n"
        "other = jax.device_put(np.arange(16.).reshape(4, 4), NamedSharding(mesh, P(None, 'X')))\n"
        "r = add(one, other, out_sharding=P('X', None)); print(jax.typeof(r)); show(r)",
        "one + other",
    ],
    "shard_map": [
        "mesh = jax.make_mesh((4, 2), ('x', 'y'))\njax.set_mesh(mesh)\n"
        "a = np.arange(128.).reshape(8, 16) / 99\n"
        "a = jax.device_put(a, NamedSharding(mesh, P('x', 'y')))\n"
        "b = jax.device_put(np.ones((16, 4)), NamedSharding(mesh, P('y', None)))\n"
        "@partial(jax.shard_map, mesh=mesh, in_specs=(P('x', 'y'), P('y', None)),\n"
        "         out_specs=P('x', None))\n"
        "def product(l, r): return jax.lax.psum(l @ r, 'y')\n"
        "c = product(a, b); print(c.shape); show(c)\n"
        "print(bool(jnp.allclose(c, jnp.dot(a, b, out_sharding=P('x', None)), atol=1e-2)))",
        # Four of eight devices: some ranks have none of them, and call all the same.
        "some = Mesh(np.array(jax.devices()[:4]), ('i',))\njax.set_mesh(some)\n"
        "part = NamedSharding(some, P('i'))\n"
        "def over(f, out=P('i')):\n"
        "    return partial(jax.shard_map, mesh=some, in_specs=P('i'), out_specs=out)(f)\n"
        "v = jax.device_put(np.arange(16.), part)\n"
        "gathered = jax.jit(over(lambda s: jax.lax.all_gather(s, 'i', tiled=True)))(v)\n"
        "scattered = jax.jit(over(lambda s: jax.lax.psum_scatter(s, 'i', tiled=True)))(v)\n"
        "turned = over(lambda s: jax.lax.all_to_all(s, 'i', 0, 0, tiled=True))(v)\n"
        "print(gathered.shape, scattered.shape, turned.shape)",
        "@jax.jit\n"
        "@over\n"
        "def ring(s):\n"
        "    n, total = jax.lax.axis_size('i'), s\n"
        "    for _ in range(n - 1):\n"
        "        s = jax.lax.ppermute(s, 'i', [(k, (k + 1) % n) for k in range(n)])\n"
        "        total = total + s\n"
        "    return total\n"
        "for _ in range(30): out = ring(v)\n"
        "print(out.shape, out.sharding.num_devices)",
        "for _ in range(20):\n"
        "    same = jnp.allclose(over(lambda s: jax.lax.psum(s, 'i'), P())(v), out[:4])\n"
        "print(same.shape)",
        "jax.set_mesh(mesh)\nshow(product(a, b))",
        "@partial(jax.shard_map, mesh=mesh, in_specs=P('x', 'y'), out_specs=P('x', 'y'))\n"
        "def wrong(s): return s[None]\n"
        "wrong(a)",
        "jax.shard_map(lambda s: jax.lax.psum(s, 'z'), mesh=mesh, in_specs=P('x', 'y'),\n"
        "              out_specs=P('x', 'y'))(a)",
        "print(float(jax.jit(jax.grad(lambda s: product(s, b).sum()))(a).sum()))",
    ],
    "several processes": [
        "print(jax.process_index(), jax.process_count(), jax.device_count(),"
        " len(jax.local_devices()))",
        "mesh = jax.make_mesh((8,), ('a',), axis_types=(AxisType.Auto,))\n"
        "put = lambda v, *spec: jax.device_put(v, NamedSharding(mesh, P(*spec)))\n"
        "x = put(np.arange(64).reshape(8, 8), 'a')\n"
        "for s in x.addressable_shards: print(jax.process_index(), s.index, s.data)",
        "show(x)\nif jax.process_index() == 0: print('logged once')",
        "half = jax.make_mesh((4,), ('a',), devices=jax.devices()[4:])\n"
        "y = jax.device_put(np.arange(64).reshape(8, 8), NamedSharding(half, P('a')))\n"
        "result = jnp.sum(jnp.sin(y))\n"
        "print(jax.process_index(), len(y.addressable_shards), result.shape)",
        "print(y.addressable_shards[0].data if y.addressable_shards else 'none here')",
        "print(float(jnp.sum(y)))",
        "whole = multihost_utils.process_allgather(x, tiled=True)\nprint(whole.sum(), whole.shape)",
        "multihost_utils.sync_global_devices('here')\n"
        "print(multihost_utils.broadcast_one_to_all(np.arange(3) + jax.process_index()))",
        "import os; np.asarray(x)",
    ],
    "data loading": [
        "mesh = jax.make_mesh((8,), ('batch',), axis_types=(AxisType.Auto,))\n"
        "rows = NamedSharding(mesh, P('batch'))\n"
        "each = 16 // jax.process_count()\n"
        "own = np.arange(16 * 3.).reshape(16, 3)[jax.process_index() * each:][:each]\n"
        "batch = jax.make_array_from_process_local_data(rows, own)\n"
        "print(batch.shape, batch.addressable_shards[0].data.shape); show(batch)",
        "singles = [jax.device_put(np.array([float(d.id % 1024 + jax.process_index())]), d)\n"
        "           for d in jax.local_devices()]\n"
        "array = jax.make_array_from_single_device_arrays((8,), rows, singles)\n"
        "print(array.shape)",
        "grid = Mesh(np.array(jax.devices()).reshape(4, 2), ('replicas', 'data'))\n"
        "copies = jax.make_array_from_callback((4, 2), NamedSharding(grid, P('replicas')),\n"
        "    lambda index: np.arange(8.).reshape(4, 2)[index])\n"
        "show(copies); print(copies.sharding.spec)",
        "@jax.jit\n"
        "def step(w, b): return w - 0.01 * jax.grad(lambda w: jnp.mean((b @ w) ** 2))(w)\n"
        "w = jax.device_put(np.ones(3), NamedSharding(mesh, P()))\n"
        "for _ in range(10): w = step(w, batch / 50)\n"
        "show(w)",
    ],
    "equinox": [
        "import equinox as eqx\n"
        "mesh = jax.make_mesh((8,), ('batch',), axis_types=(AxisType.Auto,))\n"
        "data, whole = NamedSharding(mesh, P('batch')), NamedSharding(mesh, P())\n"
        "model = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))\n"
        "model = eqx.filter_shard(model, whole)",
        "@eqx.filter_jit(donate='all-except-first')\n"
        "def step(batch, model):\n"
        "    model = eqx.filter_shard(model, whole)\n"
        "    x = eqx.filter_shard(batch, data)\n"
        "    loss_of = lambda model: jnp.mean((jax.vmap(model)(x) - x[:, :1]) ** 2)\n"
        "    loss, grads = eqx.filter_value_and_grad(loss_of)(model)\n"
        "    model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))\n"
        "    return eqx.filter_shard(model, whole), loss",
        "draw = np.random.default_rng(0)\n"
        "for _ in range(4):\n"
        "    rows = draw.normal(size=(16, 2)).astype('float32')\n"
        "    x = jax.make_array_from_callback(rows.shape, data, lambda index: rows[index])\n"
        "    model, loss = step(x, model)\n"
        "print(round(float(loss), 3))",
    ],
}


def programs() -> dict[str, list[str]]:
    """Those of what is installed; each begins as if nothing had been run before."""
    found = {name: [SETUP, *cells] for name, cells in GUIDES.items()}
    try:
        import equinox  # noqa: F401
    except ImportError:
        del found["equinox"]
    return found


@pytest.fixture(scope="module")
def plain() -> dict[int, dict[str, list[list[Went]]]]:
    """For 4 and for 1 plain processes, by guide: how each cell went in each process."""
    guides = programs()
    cells = [cell for guide in guides.values() for cell in guide]
    found = {}
    for num_processes in (4, 1):
        went = plaincells.run(cells, num_processes, 8 // num_processes)
        found[num_processes] = {}
        at = 0
        for name, guide in guides.items():
            found[num_processes][name] = [one[at : at + len(guide)] for one in went]
            at += len(guide)
    return found


def on_ranks(cluster: jaxcluster.Cluster, cell: str) -> list[Went]:
    """How a cell goes on each rank; any other end than its own fails the test."""
    try:
        record = cluster.run(cell, show=False, timeout_s=120)
    except CellFailed as failed:
        return [Went("", failed.ename if r in failed.ranks else "?") for r in range(4)]
    return [Went(record.stdout(rank)) for rank in range(4)]


@pytest.mark.parametrize("guide", programs())
def test_a_guides_cells_go_as_in_plain_processes_and_as_in_one(
    cluster: jaxcluster.Cluster, plain: dict[int, dict[str, list[list[Went]]]], guide: str
) -> None:
    pids = list(cluster.record.pids)
    for number, cell in enumerate(programs()[guide]):
        here = on_ranks(cluster, cell)
        there = [process[number] for process in plain[4][guide]]
        (alone,) = (process[number] for process in plain[1][guide])
        if any(went.error for went in there):
            # Those that had not failed by then may have been interrupted.
            failed = [(h, t) for h, t in zip(here, there, strict=True) if h.error != "?"]
            assert failed, cell
            assert all(h.error == t.error for h, t in failed), cell
        else:
            assert here == there, cell
        of_a_process = "process_index" in cell or "addressable_shards" in cell
        if not of_a_process and not any(went.error for went in there):
            assert here[0] == alone, cell
    assert cluster.record.pids == pids
    cluster.run(SETUP, show=False)
