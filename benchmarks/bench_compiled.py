"""The first call of a program in new processes: compiled again, or loaded from the folder.

    python benchmarks/bench_compiled.py [-n 4] [--only TEXT]

20 short programs with the calls of JAX's guides to sharding and of Flax's examples, on one cluster.
Seconds of the slowest rank: ``first`` is the very first call, ``warm`` the median of later ones.
Then the cluster is restarted, and each program is called again: ``loaded``, with what ranks have
compiled kept, as it is by default, and ``compiled``, with that switched off. ``traced`` and
``load`` are parts of ``loaded``: what Python traces and lowers, and what JAX then takes to have an
executable. ``rest`` is what is left beside these two and one warm call: connecting the processes,
the program's fingerprint, its announcement to the other ranks.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

import harness

import jaxcluster

SETUP = """
import functools, json, time
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
n = jax.device_count()
auto = (AxisType.Auto, AxisType.Auto)
mesh = jax.make_mesh((n // 2, 2), ("data", "model"), axis_types=auto)
line = jax.make_mesh((n,), ("i",), axis_types=auto[:1])
explicit = jax.make_mesh((n // 2, 2), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
def put(shape, *spec, on=mesh, seed=0):
    whole = np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 0.1
    where = NamedSharding(on, P(*spec))
    return jax.make_array_from_callback(shape, where, lambda index: whole[index])
def mapped(f, ins, outs, on=line):
    return jax.jit(jax.shard_map(f, mesh=on, in_specs=ins, out_specs=outs, check_vma=False))
def sgd(loss, rate=0.1):
    def step(weights, *batch):
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - rate * g, weights, gradients), value
    return jax.jit(step)
def dense(sizes, *spec):
    pairs = zip(sizes, sizes[1:])
    return [(put(pair, *spec, seed=k), put(pair[1:])) for k, pair in enumerate(pairs)]
def mlp(weights, x):
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    return x @ weights[-1][0] + weights[-1][1]
def cross_entropy(logits, labels):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * labels, -1))
def norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
def attention(w, x):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, w[name]) for name in "qkv")
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k) / 4.0
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    mixed = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, w["o"])
def block(w, x):
    x = x + attention(w, norm(x))
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]
def layer(seed):
    heads = {name: put((32, 4, 8), None, "model", seed=seed + k) for k, name in enumerate("qkv")}
    return heads | {"o": put((4, 8, 32), "model", seed=seed), "up": put((32, 128), None, "model"),
                    "down": put((128, 32), "model")}
def measure(step, args):
    took = {"traced": 0.0, "load": 0.0}
    def heard(event, seconds, **more):
        if "trace_duration" in event or "to_mlir" in event:
            took["traced"] += seconds
        elif "backend_compile" in event:
            took["load"] += seconds
    def call():
        began = time.perf_counter()
        jax.block_until_ready(step(*args))
        return time.perf_counter() - began
    jax.monitoring.register_event_duration_secs_listener(heard)
    first = call()
    jax.monitoring.unregister_event_duration_listener(heard)
    print(json.dumps({"call": first, "warm": sorted(call() for _ in range(9))[4]} | took))
"""

# Each binds ``step`` and ``args``.
PROGRAMS = {
    "distributed arrays: matmul": """
step = jax.jit(lambda a, b: jnp.sin(a @ b).T)
args = put((128, 128), "data"), put((128, 128), None, "model")""",
    "constraints": """
def step(a):
    b = lax.with_sharding_constraint(jnp.tanh(a @ a.T), NamedSharding(mesh, P("model", "data")))
    return (b * 2).sum(0) + jnp.fft.fft(b[0]).real
step, args = jax.jit(step), (put((64, 64), "data", "model"),)""",
    "batch parallel net": """
step = sgd(lambda w, x, y: jnp.mean((mlp(w, x) - y) ** 2))
both = ("data", "model")
args = dense([64, 128, 128, 64, 8]), put((64, 64), both), put((64, 8), both)""",
    "model parallel net": """
step = sgd(lambda w, x, y: jnp.mean((mlp(w, x) - y) ** 2))
args = dense([64, 128, 128, 64], None, "model"), put((64, 64), "data"), put((64, 64), "data")""",
    "explicit sharding": """
def step(x, w):
    y = jnp.dot(jnp.sin(x), w, out_sharding=NamedSharding(explicit, P("X", "Y")))
    return jax.sharding.reshard(y, NamedSharding(explicit, P("Y", None))) * 2
step = jax.jit(step)
args = put((32, 32), "X", "Y", on=explicit), put((32, 32), "Y", None, on=explicit)""",
    "shard_map: matmul": """
step = mapped(lambda a, b: lax.psum(a @ b, "model"), (P("data", "model"), P("model", None)),
              P("data", None), mesh)
args = put((64, 64), "data", "model"), put((64, 64), "model")""",
    "shard_map: collective matmul": """
def ring(lhs, rhs):
    size, at = lax.axis_size("i"), lax.axis_index("i")
    total = jnp.zeros((lhs.shape[0] * size, rhs.shape[1]))
    for k in range(size):
        total = lax.dynamic_update_slice(total, lhs @ rhs, (((at + k) % size) * lhs.shape[0], 0))
        lhs = lax.ppermute(lhs, "i", [(j, (j - 1) % size) for j in range(size)])
    return total
step = mapped(ring, (P("i"), P()), P())
args = put((64, 32), "i", on=line), put((32, 32), on=line)""",
    "shard_map: FSDP": """
def loss(ws, x):
    for w in ws:
        x = jax.nn.relu(x @ lax.all_gather(w, "i", tiled=True))
    return lax.pmean((x ** 2).mean(), "i")
step = mapped(jax.value_and_grad(loss), (P("i"), P("i")), (P(), P("i")))
args = [put((64, 64), "i", on=line, seed=k) for k in range(4)], put((32, 64), "i", on=line)""",
    "shard_map: tensor parallel": """
def loss(ws, x):
    for up, down in ws:
        x = x + lax.psum(jax.nn.relu(x @ up) @ down, "i")
    return (x ** 2).mean()
step = mapped(jax.grad(loss), ([(P(None, "i"), P("i"))] * 3, P()), [(P(None, "i"), P("i"))] * 3)
pair = put((32, 128), None, "i", on=line), put((128, 32), "i", on=line)
args = [pair] * 3, put((16, 32), on=line)""",
    "shard_map: pipeline": """
def stage(ws, x):
    size, at = lax.axis_size("i"), lax.axis_index("i")
    def tick(carry, k):
        state, out = carry
        state = jnp.where(at == 0, x[jnp.minimum(k, x.shape[0] - 1)], state)
        state = jnp.tanh(state @ ws[0])
        out = out.at[jnp.maximum(k - size + 1, 0)].set(jnp.where(at == size - 1, state, 0))
        return (lax.ppermute(state, "i", [(j, (j + 1) % size) for j in range(size)]), out), None
    start = jnp.zeros_like(x[0]), jnp.zeros_like(x)
    return lax.psum(lax.scan(tick, start, jnp.arange(x.shape[0] + size))[0][1], "i")
step = mapped(jax.grad(lambda ws, x: (stage(ws, x) ** 2).sum()), (P("i"), P()), P("i"))
args = put((n, 32, 32), "i", on=line), put((8, 16, 32), on=line)""",
    "shard_map: experts": """
def moe(gate, up, x):
    to = jnp.argmax(x @ gate, -1)
    sent = jnp.zeros((n, x.shape[0], x.shape[1])).at[to, jnp.arange(x.shape[0])].set(x)
    got = jax.nn.gelu(lax.all_to_all(sent, "i", 0, 0) @ up[0])
    return lax.all_to_all(got, "i", 0, 0).sum(0)
step = mapped(jax.grad(lambda g, u, x: lax.psum((moe(g, u, x) ** 2).sum(), "i"), argnums=1),
              (P(), P("i"), P("i")), P("i"))
args = put((32, n), on=line), put((n, 32, 32), "i", on=line), put((64, 32), "i", on=line)""",
    "sharded random numbers": """
where = NamedSharding(mesh, P("data", "model"))
def step(key):
    keys = jax.random.split(key, 4)
    return (jax.random.normal(keys[0], (256, 64)), jax.random.uniform(keys[1], (256, 64)),
            jax.random.permutation(keys[2], 256))
step = jax.jit(step, out_shardings=(where, where, NamedSharding(mesh, P())))
args = (jax.random.key(0),)""",
    "linear regression, Newton": """
def loss(w, x, y):
    return jnp.mean(jnp.log1p(jnp.exp(-y * (x @ w)))) + 0.01 * w @ w
def step(w, x, y):
    return w - jnp.linalg.solve(jax.hessian(loss)(w, x, y), jax.grad(loss)(w, x, y))
step, args = jax.jit(step), (put((16,)), put((256, 16), "data"), jnp.sign(put((256,), "data")))""",
    "MNIST (Flax)": """
def cnn(w, x):
    for kernel in w["conv"]:
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME",
                        dimension_numbers=("NHWC", "HWIO", "NHWC")))
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return mlp(w["dense"], x.reshape(x.shape[0], -1))
step = sgd(lambda w, x, y: cross_entropy(cnn(w, x), y))
conv = [put((3, 3, 1, 8)), put((3, 3, 8, 16))]
args = ({"conv": conv, "dense": dense([784, 64, 10])}, put((32, 28, 28, 1), "data"),
        jax.nn.softmax(put((32, 10), "data")))""",
    "VAE (Flax)": """
def loss(w, x, key):
    h = mlp(w["encode"], x)
    mean, scale = jnp.split(h, 2, -1)
    z = mean + jnp.exp(scale / 2) * jax.random.normal(key, mean.shape)
    kl = 1 + scale - mean ** 2 - jnp.exp(scale)
    return cross_entropy(mlp(w["decode"], z), x) - 0.5 * jnp.mean(kl)
step = sgd(loss)
args = ({"encode": dense([128, 64, 32]), "decode": dense([16, 64, 128])}, put((64, 128), "data"),
        jax.random.key(1))""",
    "seq2seq LSTM (Flax)": """
def lstm(w, carry, x):
    c, h = carry
    i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h
def loss(w, x, y):
    zero = (jnp.zeros((x.shape[1], 64)),) * 2
    carry, _ = lax.scan(functools.partial(lstm, w["in"]), zero, x)
    _, out = lax.scan(functools.partial(lstm, w["out"]), carry, y)
    return jnp.mean((out @ w["read"] - y) ** 2)
step = sgd(loss)
weights = {"in": put((96, 256)), "out": put((96, 256)), "read": put((64, 32))}
args = weights, put((16, 32, 32), None, "data"), put((16, 32, 32), None, "data")""",
    "language model (Flax)": """
def loss(w, tokens):
    x = w["embed"][tokens[:, :-1]]
    for one in w["layers"]:
        x = block(one, x)
    logits = norm(x) @ w["embed"].T
    return cross_entropy(logits, jax.nn.one_hot(tokens[:, 1:], 64))
step = sgd(loss)
args = {"embed": put((64, 32)), "layers": [layer(k) for k in range(4)]}, jnp.abs(
    put((16, 17), "data") * 300).astype("int32") % 64""",
    "language model, scanned": """
def loss(w, x):
    x, _ = lax.scan(lambda x, one: (jax.checkpoint(block)(one, x), None), x, w)
    return jnp.mean(norm(x) ** 2)
step = sgd(loss)
weights = {name: put((4, *v.shape), None, *v.sharding.spec) for name, v in layer(0).items()}
args = weights, put((16, 16, 32), "data")""",
    "Adam": """
def step(state, x, y):
    w, m, v, k = state
    value, g = jax.value_and_grad(lambda w: cross_entropy(mlp(w, x), y))(w)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    w = jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), w, m, v)
    return (w, m, v, k + 1), value
nets = [dense([64, 128, 128, 10], None, "model") for _ in range(3)]
step = jax.jit(step)
args = (*nets, put(())), put((64, 64), "data"), jax.nn.softmax(put((64, 10), "data"))""",
    "gradients by example": """
step = jax.jit(jax.vmap(jax.grad(lambda w, x: (mlp(w, x) ** 2).sum()), in_axes=(None, 0)))
args = dense([32, 64, 32]), put((32, 32), "data")""",
}


def measured(cluster: jaxcluster.Cluster, number: int) -> dict[str, float]:
    """What one program's calls took, on the slowest rank."""
    record = cluster.run(f"measure(step_{number}, args_{number})", show=False)
    told = [json.loads(record.stdout(rank)) for rank in range(cluster.record.spec.num_processes)]
    return {name: max(one[name] for one in told) for name in told[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=4, help="processes, an even number")
    parser.add_argument("--only", default="", help="the programs with this text in their name")
    chosen = parser.parse_args()
    programs = {name: text for name, text in PROGRAMS.items() if chosen.only in name}
    rows: list[dict[str, Any]] = [{"program": name} for name in programs]
    with harness.sandbox(), jaxcluster.start(chosen.n) as cluster:
        cluster.run(SETUP, show=False)
        for number, text in enumerate(programs.values()):
            body = textwrap.indent(f"{text}\nreturn step, args", "    ")
            cell = f"def program():\n{body}\nstep_{number}, args_{number} = program()"
            cluster.run(cell, show=False)
            took = measured(cluster, number)
            rows[number] |= {"first": took["call"], "warm": took["warm"]}
        cluster.restart()
        for number, row in enumerate(rows):
            took = measured(cluster, number)
            row |= {"loaded": took["call"], "traced": took["traced"], "load": took["load"]}
            row["warm"] = min(row["warm"], took["warm"])
        cluster.run("jax.config.update('jax_enable_compilation_cache', False)", show=False)
        cluster.restart()
        for number, row in enumerate(rows):
            row["compiled"] = measured(cluster, number)["call"]
        show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["rest"] = row["loaded"] - row["traced"] - row["load"] - row["warm"]
    names = ("first", "warm", "compiled", "loaded", "traced", "load", "rest")
    total = {name: sum(row[name] for row in rows) for name in names}
    lines = [*rows, {"program": f"all {len(rows)}"} | total]
    harness.table(
        ("program", *names, "of compiled"),
        [
            (row["program"], *(f"{row[name]:.3f}" for name in names),
             f"{row['loaded'] / row['compiled']:.2f}")
            for row in lines
        ],
    )  # fmt: skip
    for parts, limit in ((("load",), 1), (("traced", "load"), 1.2)):
        what = total["loaded"] / (1.2 * total["warm"] + sum(total[part] for part in parts))
        harness.ratio(f"loaded / (1.2 x warm + {' + '.join(parts)})", what, limit)


if __name__ == "__main__":
    main()
