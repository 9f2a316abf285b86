"""What JAX's guides to sharding do goes as in plain processes.

The programs are short ones with the calls of the guides: automatic and explicit sharding,
``shard_map``, several processes, data loading; and of equinox's guide to parallelism. Four plain
processes of JAX have printed what stands after ``#:``, or failed with that.
"""

from __future__ import annotations

import importlib.util

import pytest

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

GUIDES: dict[str, list[str]] = {
    "automatic sharding": [
        "auto = jax.make_mesh((4, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)\n"
        "put = lambda v, *spec: jax.device_put(v, NamedSharding(auto, P(*spec)))\n"
        "a = put(np.arange(128, dtype='float32').reshape(8, 16) / 99, 'x', 'y')\n"
        "print(jnp.sin(a).sharding.spec, a.shape, a.dtype)\n#: P('x', 'y') (8, 16) float32",
        "b = put(np.ones((16, 8), 'float32'), 'y', None)\n"
        "c = a @ b\n"
        "print(c.sharding.spec); show(c, a.T, a[:, ::2], a.sum(0))\n"
        "#: P('x',) 4.914 71.362 35.44 -13.623",
        "@jax.jit\n"
        "def f(v): return jax.lax.with_sharding_constraint(v * 2, NamedSharding(auto, P('y')))\n"
        "print(f(a).sharding.spec); show(f(a))\n#: P('y',) 91.284",
        "w = [put(np.full((16, 16), 0.01 * k, 'float32'), None, 'y') for k in (1, 2)]\n"
        "def loss(w, v):\n"
        "    for one in w: v = jnp.tanh(v @ one)\n"
        "    return jnp.mean(v ** 2)\n"
        "step = jax.jit(lambda w, v: [p - g for p, g in zip(w, jax.grad(loss)(w, v))])\n"
        "for _ in range(3): w = step(w, a)\n"
        "show(*w)\n#: 1.844 4.783",
        "keys = jax.jit(jax.random.normal, static_argnums=1,\n"
        "               out_shardings=NamedSharding(auto, P('x')))(jax.random.key(0), (8, 4))\n"
        "show(keys)\n#: 4.083",
        "jax.device_put(np.ones((6, 3)), NamedSharding(auto, P('x')))\n#: IndivisibleError",
    ],
    "explicit sharding": [
        "mesh = jax.make_mesh((4, 2), ('X', 'Y'))\n"
        "jax.set_mesh(mesh)\n"
        "x = jax.device_put(np.arange(32.).reshape(8, 4), NamedSharding(mesh, P('X', 'Y')))\n"
        "print(jax.typeof(x), jax.typeof(jnp.sin(x).T))\n#: float32[8@X,4@Y] float32[4@Y,8@X]",
        "y = x.sum(0)\nprint(jax.typeof(y)); show(y)\n#: float32[4@Y] -0.379",
        "@jax.jit\n"
        "def g(v):\n"
        "    print('traced', jax.typeof(v))\n"
        "    return jax.sharding.reshard(v, P('Y', None)) * 2\n"
        "z = g(x); print(jax.typeof(z)); show(z)\n#: traced float32[8@X,4@Y] float32[8@Y,4] -0.265",
        "l = jax.device_put(np.ones((8, 4)), NamedSharding(mesh, P(None, 'X')))\n"
        "m = jax.device_put(np.ones((4, 16)), NamedSharding(mesh, P('X', None)))\n"
        "jnp.dot(l, m)\n#: ShardingTypeError",
        "z = jnp.dot(l, m, out_sharding=P('X', None))\nprint(jax.typeof(z)); show(z)\n"
        "#: float32[8@X,16] -96.871",
        "add = jax.sharding.auto_axes(lambda a, b: a + b)\n"
        "one = jax.device_put(np.arange(16.).reshape(4, 4), NamedSharding(mesh, P('X', None)))\n"
        "other = jax.device_put(np.arange(16.).reshape(4, 4), NamedSharding(mesh, P(None, 'X')))\n"
        "r = add(one, other, out_sharding=P('X', None)); print(jax.typeof(r)); show(r)\n"
        "#: float32[4@X,4] -0.222",
        "one + other\n#: ShardingTypeError",
    ],
    "shard_map": [
        "mesh = jax.make_mesh((4, 2), ('x', 'y'))\njax.set_mesh(mesh)\n"
        "a = np.arange(128., dtype='float32').reshape(8, 16) / 99\n"
        "a = jax.device_put(a, NamedSharding(mesh, P('x', 'y')))\n"
        "b = jax.device_put(np.ones((16, 4)), NamedSharding(mesh, P('y', None)))\n"
        "@partial(jax.shard_map, mesh=mesh, in_specs=(P('x', 'y'), P('y', None)),\n"
        "         out_specs=P('x', None))\n"
        "def product(l, r): return jax.lax.psum(l @ r, 'y')\n"
        "c = product(a, b); print(c.shape); show(c)\n"
        "print(bool(jnp.allclose(c, jnp.dot(a, b, out_sharding=P('x', None)), atol=1e-2)))\n"
        "#: (8, 4) 2.457 True",
        # Four of eight devices: some ranks have none of them, and call all the same.
        "some = Mesh(np.array(jax.devices()[:4]), ('i',))\njax.set_mesh(some)\n"
        "part = NamedSharding(some, P('i'))\n"
        "def over(f, out=P('i')):\n"
        "    return partial(jax.shard_map, mesh=some, in_specs=P('i'), out_specs=out)(f)\n"
        "v = jax.device_put(np.arange(16.), part)\n"
        "gathered = jax.jit(over(lambda s: jax.lax.all_gather(s, 'i', tiled=True)))(v)\n"
        "scattered = jax.jit(over(lambda s: jax.lax.psum_scatter(s, 'i', tiled=True)))(v)\n"
        "turned = over(lambda s: jax.lax.all_to_all(s, 'i', 0, 0, tiled=True))(v)\n"
        "print(gathered.shape, scattered.shape, turned.shape)\n#: (64,) (4,) (16,)",
        "@jax.jit\n"
        "@over\n"
        "def ring(s):\n"
        "    n, total = jax.lax.axis_size('i'), s\n"
        "    for _ in range(n - 1):\n"
        "        s = jax.lax.ppermute(s, 'i', [(k, (k + 1) % n) for k in range(n)])\n"
        "        total = total + s\n"
        "    return total\n"
        "for _ in range(30): out = ring(v)\n"
        "print(out.shape, out.sharding.num_devices)\n#: (16,) 4",
        "for _ in range(20):\n"
        "    same = jnp.allclose(over(lambda s: jax.lax.psum(s, 'i'), P())(v), out[:4])\n"
        "print(same.shape)\n#: ()",
        "jax.set_mesh(mesh)\nshow(product(a, b))\n#: 2.457",
        "@partial(jax.shard_map, mesh=mesh, in_specs=P('x', 'y'), out_specs=P('x', 'y'))\n"
        "def wrong(s): return s.sum()\n"
        "wrong(a)\n#: ValueError",
        "print(float(jax.jit(jax.grad(lambda s: product(s, b).sum()))(a).sum()))\n#: 512.0",
    ],
    "several processes": [
        "print(jax.process_count(), jax.device_count(), len(jax.local_devices()))\n#: 4 8 2",
        "mesh = jax.make_mesh((8,), ('a',), axis_types=(AxisType.Auto,))\n"
        "put = lambda v, *spec: jax.device_put(v, NamedSharding(mesh, P(*spec)))\n"
        "x = put(np.arange(64).reshape(8, 8), 'a')\n"
        "first = 2 * jax.process_index()\n"
        "assert [s.index[0].start for s in x.addressable_shards] == [first, first + 1]",
        "show(x)\nif jax.process_index() == 0: logged = x.shape\n#: 0.097",
        "half = jax.make_mesh((4,), ('a',), devices=jax.devices()[4:])\n"
        "y = jax.device_put(np.arange(64).reshape(8, 8), NamedSharding(half, P('a')))\n"
        "result = jnp.sum(jnp.sin(y))\n"
        "assert len(y.addressable_shards) == (2 if jax.process_index() > 1 else 0)",
        "print(float(jnp.sum(y)))\n#: RuntimeError",
        "whole = multihost_utils.process_allgather(x, tiled=True)\n"
        "print(whole.sum(), whole.shape)\n"
        "#: 2016 (8, 8)",
        "multihost_utils.sync_global_devices('here')\n"
        "print(multihost_utils.broadcast_one_to_all(np.arange(3) + jax.process_index()))\n"
        "#: [0 1 2]",
        "np.asarray(x)\n#: RuntimeError",
    ],
    "data loading": [
        "mesh = jax.make_mesh((8,), ('batch',), axis_types=(AxisType.Auto,))\n"
        "rows = NamedSharding(mesh, P('batch'))\n"
        "each = 16 // jax.process_count()\n"
        "own = np.arange(16 * 3.).reshape(16, 3)[jax.process_index() * each:][:each]\n"
        "batch = jax.make_array_from_process_local_data(rows, own)\n"
        "print(batch.shape, batch.addressable_shards[0].data.shape); show(batch)\n"
        "#: (16, 3) (2, 3) 1.885",
        "singles = [jax.device_put(np.array([float(d.id % 1024 + jax.process_index())]), d)\n"
        "           for d in jax.local_devices()]\n"
        "array = jax.make_array_from_single_device_arrays((8,), rows, singles)\n"
        "print(array.shape)\n#: (8,)",
        "grid = Mesh(np.array(jax.devices()).reshape(4, 2), ('replicas', 'data'))\n"
        "copies = jax.make_array_from_callback((4, 2), NamedSharding(grid, P('replicas')),\n"
        "    lambda index: np.arange(8.).reshape(4, 2)[index])\n"
        "show(copies); print(copies.sharding.spec)\n#: 0.554 P('replicas',)",
        "@jax.jit\n"
        "def step(w, b): return w - 0.01 * jax.grad(lambda w: jnp.mean((b @ w) ** 2))(w)\n"
        "w = jax.device_put(np.ones(3), NamedSharding(mesh, P()))\n"
        "for _ in range(10): w = step(w, batch / 50)\n"
        "show(w)\n#: 2.224",
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
        "print(round(float(loss), 3))\n#: 0.713",
    ],
}


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guides_cells_go_as_in_plain_processes(cluster: jaxcluster.Cluster, guide: str) -> None:
    if guide == "equinox" and importlib.util.find_spec("equinox") is None:
        pytest.skip("equinox is not installed")
    pids = list(cluster.record.pids)
    for cell in [SETUP, *GUIDES[guide]]:
        source, _, expected = cell.partition("#: ")
        try:
            record = cluster.run(source, show=False, timeout_s=120)
            went = [record.stdout(rank).split() for rank in range(4)]
        except CellFailed as failed:
            went = [failed.ename.split()] * 4
        assert went == [expected.split()] * 4, cell
    assert cluster.record.pids == pids
    cluster.run(SETUP, show=False)
