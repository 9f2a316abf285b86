"""Which skipped programs are replayed, and that a replay is believed only once it is checked.

Each case with one and with two devices per process: with one a launch blocks, with two it waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil
import pytest
from helpers import GONE_S, Home, until

import jaxcluster
from jaxcluster.errors import Divergence, JaxClusterError

TOLD_WITHIN_S = 30.0  # new processes on a busy machine

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, same = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, sharding=split):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
big = spread(np.full(1000 * jax.device_count(), 2.0, np.float32))
small = spread(np.arange(16.0, dtype=np.float32))
flag, count = spread(np.array(True), same), spread(np.array(3), same)
keep = "mine"
r = jax.process_index()
def mapped(f, *specs):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False))
def total(v):
    return lax.psum(v.sum(), "i")
def local(v):
    return v.sum() * 2
float(jnp.sum(small))
"""

# What decides here how often ranks meet: with zeros it is another number.
STEERED = {
    "cond": "step = mapped(lambda v, f: lax.cond(f, total, local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "switch": "step = mapped(lambda v, k: lax.switch(k, [local, local, local, total], v),"
    " P('i'), P())\nask = lambda: step(big, count)",
    "fori_loop": "step = mapped(lambda v, k: lax.fori_loop(0, k, lambda i, s:"
    " 1 + total(v * s) / 9e9, 0.0), P('i'), P())\nask = lambda: step(big, count)",
    "while_loop": "step = mapped(lambda v: lax.while_loop(lambda s: s[1] < v[0] * 3, lambda s:"
    " (1 + total(v * s[0]) / 9e9, s[1] + 1.0), (0.0, 0.0))[0], P('i'))\nask = lambda: step(big)",
    "cond in a scan": "step = mapped(lambda v, f: lax.scan(lambda c, x: (lax.cond(f, lambda:"
    " total(v) + c, lambda: c * 3), None), 0.0, None, length=4)[0], P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "scan in a cond": "step = mapped(lambda v, f: lax.cond(f, lambda w: lax.scan(lambda c, x:"
    " (1 + total(w * c) / 9e9, None), 0.0, None, length=4)[0], local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "jit in a cond": "inner = jax.jit(total)\n"
    "step = mapped(lambda v, f: lax.cond(f, lambda w: inner(w) * 2, local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "gradient of a remat in a cond": "inner = jax.checkpoint(lambda w: total(jnp.sin(w)) ** 2)\n"
    "def loss(v, f): return lax.cond(f, inner, local, v)\n"
    "step = mapped(lambda v, f: jax.grad(loss)(v, f).sum(), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "shard_map in a cond": "part = jax.shard_map(total, mesh=mesh, in_specs=P('i'), out_specs=P(),"
    " check_vma=False)\n"
    "step = jax.jit(lambda v, f: lax.cond(f, part, lambda w: jnp.float32(2), v))\n"
    "ask = lambda: step(big, flag)",
    "a branch of sharded arrays": "step = jax.jit(lambda v, f: lax.cond(f, lambda w: w.sum(),"
    " lambda w: jnp.float32(2), v), out_shardings=same)\nask = lambda: step(big, flag)",
}  # fmt: skip

# Here nothing does.
STEADY = {
    "scan": "step = mapped(lambda v: lax.scan(lambda c, x: (1 + total(v * c) / 9e9, None), 0.0,"
    " None, length=4)[0], P('i'))\nask = lambda: step(big)",
    "fori_loop": "step = mapped(lambda v: lax.fori_loop(0, 5, lambda i, s: 1 + total(v * s) / 9e9,"
    " 0.0), P('i'))\nask = lambda: step(big)",
    "a collective that the compiler takes out of a loop": "step = mapped(lambda v, k:"
    " lax.fori_loop(0, k, lambda i, s: s * 0.5 + total(v), 0.0), P('i'), P())\n"
    "ask = lambda: step(big, count)",
    "cond without a collective": "step = mapped(lambda v, f: total(lax.cond(f, jnp.sin, jnp.cos,"
    " v)), P('i'), P())\nask = lambda: step(big, flag)",
    "where": "step = mapped(lambda v, f: jnp.where(f, total(v), local(v)), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "random numbers": "step = jax.jit(lambda v: (v * jax.random.normal(jax.random.key(1),"
    " v.shape)).sum())\nask = lambda: step(big)",
}  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2], ids=["D=1", "D=2"])
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        4, devices_per_process=request.param, name=f"replay-{request.param}"
    ) as cluster:
        cluster.run(SETUP)
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left_over(home: Home, ranks: jaxcluster.Cluster) -> Iterator[None]:
    """A cluster's processes may have been replaced: whatever is there belongs to those of now."""
    yield

    def left() -> set[int]:
        server = psutil.Process(ranks.record.pids[0]).parent()
        known = {os.getpid(), server.pid, *(p.pid for p in server.children(recursive=True))}
        return {pid for pid in home.processes() if pid not in known and not is_idle_server(pid)}

    until(lambda: not left(), "end of the processes that were replaced", GONE_S)


def is_idle_server(pid: int) -> bool:
    """Whether it is a fork server of ours that waits for the next start."""
    try:
        process = psutil.Process(pid)
        return process.ppid() == os.getpid() and not process.children()
    except psutil.NoSuchProcess:
        return True


def fails(cluster: jaxcluster.Cluster, source: str, **options: object) -> JaxClusterError:
    """The error of a cell that must fail soon, after which the session must be whole."""
    started = time.monotonic()
    with pytest.raises(JaxClusterError) as caught:
        cluster.run(source, show=False, **options)
    assert time.monotonic() - started < TOLD_WITHIN_S
    check_whole(cluster)
    return caught.value


def check_whole(cluster: jaxcluster.Cluster) -> None:
    """The next results are right on every rank, and old variables are there."""
    source = "print(float(jnp.sum(small)), float(jnp.max(small)), keep)"
    for _ in range(3):  # what is left over somewhere may come one launch later
        record = cluster.run(source, timeout_s=TOLD_WITHIN_S, show=False)
        assert [record.stdout(rank) for rank in range(4)] == ["120.0 15.0 mine\n"] * 4


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "never compiled there"])
@pytest.mark.parametrize("steered", STEERED)
def test_a_program_whose_inputs_steer_its_collectives_is_not_run_with_zeros(
    ranks: jaxcluster.Cluster, steered: str, compiled: bool
) -> None:
    ranks.run(STEERED[steered], show=False)
    if compiled:
        ranks.run("value = float(ask())", show=False)
    error = fails(ranks, "if r != 1: s = ask()")
    assert isinstance(error, Divergence)
    assert error.report.culprits == (1,)
    assert "New processes" in error.hint
    assert "depends on its inputs" in error.hint


@pytest.mark.parametrize("steady", STEADY)
def test_a_program_that_always_makes_the_same_collectives_is_replayed(
    ranks: jaxcluster.Cluster, steady: str
) -> None:
    ranks.run(STEADY[steady], show=False)
    pids = list(ranks.record.pids)
    error = fails(ranks, "if r != 1: s = ask()")
    assert isinstance(error, Divergence)
    assert "Back in step" in error.hint
    assert ranks.record.pids == pids
