"""A random session: cells that compute, fail, skip, mix, wait, are stopped, and ranks that die.

Whatever a cell says without an error is right on every rank, who did something else is named, all
ranks have made the same launches, the processes stay unless one died, and the session goes on.
JAXCLUSTER_SOAK_S sets how long (12 s by default), JAXCLUSTER_SOAK_SEED repeats a session.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from helpers import Home
from overhosts import send_signal

import jaxcluster
from jaxcluster.cluster import connect
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    JaxClusterError,
    RankDied,
)

SECONDS = float(os.environ.get("JAXCLUSTER_SOAK_S", "12"))
SEED = int(os.environ.get("JAXCLUSTER_SOAK_SEED", "0")) or random.randrange(1, 10**6)
RANKS = 4

SETUP = """
import jax, jax.numpy as jnp, numpy as np, threading, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
values = np.random.default_rng(7).integers(0, 100, 64).astype(np.float32)
def spread(values, where=split):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
a = spread(values)
r = jax.process_index()
train = jax.jit(lambda p, v: p + jnp.sum(v), donate_argnums=0)
params, steps = train(spread(np.zeros(64, np.float32)), a * 0), 0
pair = None  # an array of ranks 0 and 1
if r < 2:
    devices = np.array([d for d in jax.devices() if d.process_index < 2])
    where = NamedSharding(jax.sharding.Mesh(devices, ("i",)), P("i"))
    pair = spread(np.arange(devices.size, dtype=np.float32), where)
def launches(count):
    for k in range(count):
        sums.append(float(jnp.sum(a * k)))
        time.sleep(0.01 * r)
float(jnp.sum(a))  # of threads that first call one function at once, JAX has one wait
"""
VALUES = np.random.default_rng(7).integers(0, 100, 64).astype(np.float32)
TOTAL = float(VALUES.sum())

# (expression on the ranks, its value by numpy)
SUMS = [
    ("float(jnp.sum(a))", TOTAL),
    ("float(jnp.max(a))", float(VALUES.max())),
    ("float(jnp.sum(jnp.where(a > 50, a, 0)))", float(VALUES[VALUES > 50].sum())),
    ("mhu.process_allgather(np.float32(r)).sum().item()", 6.0),
]
# In what follows {rank} is a rank by chance, {n} a number, {one} less than that, {sum} one of SUMS.
RIGHT = {
    "late before": "if r == {rank}: time.sleep(0.2)\nprint({sum})",
    "late after": "value = {sum}\nif r == {rank}: time.sleep(0.2)\nprint(value)",
    "loop": "for i in range({n}): s = jnp.sum(a * i)\nprint({sum})",
    "a pair's": "for i in range({n}):\n    if r < 2: jnp.sum(pair * i)\nprint({sum})",
    "thread": "sums, loader = [], threading.Thread(target=launches, args=({n},))\nloader.start()\n"
    "value = {sum}\nloader.join()\nassert sums == [k * float(values.sum()) for k in range({n})]\n"
    "print(value)",
}
# The rank that does something else is named.
DIVERGES = {
    "skip": "if r != {rank}: print({sum})",
    "alone": "if r == {rank}: print({sum})",
    "mix": "print(float((jnp.min if r == {rank} else jnp.sum)(a)))",
    "constant": "c = 2.5 + (r == {rank})\nprint(float(jax.jit(lambda v: jnp.sum(v * c))(a)))",
    "value": "f = jax.jit(lambda v, c: jnp.sum(v) * c)\nf(a, 1.0 * (r == {rank}))",
    "fewer turns": "for i in range({n}):\n    if (r, i) == ({rank}, {one}): continue\n"
    "    s = jnp.sum(a)",
    "swallowed": "for i in range({n}):\n    try:\n"
    "        if (r, i) == ({rank}, {one}): raise ValueError\n"
    "        new = train(params, a)\n        params, steps = new, steps + 1\n"
    "    except Exception: continue",
}
FAILS = {
    "early": "if r == {rank}: raise ValueError('early')\nprint({sum})",
    "late": "y = {sum}\nif r == {rank}: raise ValueError('late')",
    "on ranks 0-3": "y = {sum}\n1 / 0",
    "took more than": "if r == {rank}:\n    while True: pass\nprint({sum})",
    "wait for each other": "sums = [lambda: jnp.sum(a), lambda: jnp.sum(pair) if r < 2 else None]\n"
    "for f in sums[:: 1 - 2 * (r == 1)]: f()",
}
STOPPED = {
    "late": "if r == {rank}: time.sleep(5)\nprint({sum})",
    "training": "while True:\n    params = train(params, a)\n    steps += 1",
}


class Session:
    """Cells chosen by a seed, and what each must end with."""

    def __init__(self, cluster: jaxcluster.Cluster) -> None:
        self.cluster, self.chance = cluster, random.Random(SEED)

    def step(self) -> None:
        kinds = [self.right, self.diverges, self.fails, self.queue, self.stop]
        kind = self.chance.choice([*kinds * 4, self.death])
        pids = list(self.cluster.record.pids)
        kind()
        assert (self.cluster.record.pids == pids) == (kind != self.death)
        # The next number is right everywhere, and training is at one step with one result.
        source = "print(float(jnp.sum(a)), steps, float(jnp.sum(params)))"
        record = self.cluster.run(source, show=False, timeout_s=60)
        (text,) = {record.stdout(rank) for rank in range(RANKS)}
        total, steps, trained = map(float, text.split())
        np.testing.assert_allclose([total, trained], [TOTAL, steps * TOTAL * 64], rtol=1e-4)

    def right(self) -> None:
        source, value, _ = self.cell(RIGHT)
        self.prints(self.cluster.submit(source), value)

    def queue(self) -> None:
        """Cells of two notebooks; what is queued behind one that fails does not run."""
        other = connect(self.cluster.record)
        wrong, _, _ = self.cell({"skip": DIVERGES["skip"]})
        (source, value, _), (theirs, their_value, _) = self.cell(RIGHT), self.cell(RIGHT)
        try:
            first, failing = self.cluster.submit(source), self.cluster.submit(wrong)
            later, other_cell = self.cluster.submit("steps += 1"), other.submit(theirs)
            self.prints(first, value)
            with pytest.raises(Divergence):
                failing.wait()
            with pytest.raises(CellFailed, match="was skipped"):
                later.wait()
            self.prints(other_cell, their_value)
        finally:
            other.close()

    def diverges(self) -> None:
        source, _, rank = self.cell(DIVERGES)
        with pytest.raises(Divergence) as caught:
            self.cluster.run(source, show=False, timeout_s=60)
        told = str(caught.value)
        if "still at work" in told:  # on a busy machine this rank and another one may differ first
            title = told.partition("\n")[0].partition("]")[2]
            assert str(rank) in re.findall(r"\d+", title), told
        else:
            assert caught.value.ranks == (rank,), caught.value

    def fails(self) -> None:
        told = self.chance.choice([*FAILS])
        source, _, _ = self.cell({told: FAILS[told]})
        with pytest.raises(JaxClusterError, match=told):
            self.cluster.run(source, show=False, timeout_s=0.5 if told == "took more than" else 60)

    def stop(self) -> None:
        """What the stop button does, at some moment of a cell."""
        source, _, _ = self.cell(STOPPED)
        cell = self.cluster.submit(source)
        with pytest.raises(CellInterrupted):
            self.at_some_moment(cell.stop, cell.wait)

    def death(self) -> None:
        """A rank is killed at some moment of a cell; what only it held is made again."""
        cell, rank = self.cluster.submit("while True: y = float(jnp.sum(a))"), self.rank()
        with pytest.raises(RankDied):
            self.at_some_moment(lambda: send_signal(self.cluster, rank), cell.wait)
        self.cluster.run(SETUP, show=False)

    # ------------------------------------------------------------------ parts

    def rank(self) -> int:
        return self.chance.randrange(RANKS)

    def cell(self, some: dict[str, str]) -> tuple[str, float, int]:
        """One of the sources, the value that it prints, and the rank that differs in it."""
        kind, rank, n = self.chance.choice([*some]), self.rank(), self.chance.randrange(2, 30)
        one, (expression, value) = self.chance.randrange(n), self.chance.choice(SUMS)
        print(kind, rank, n, flush=True)
        return some[kind].format(rank=rank, n=n, one=one, sum=expression), value, rank

    @staticmethod
    def prints(cell: jaxcluster.cluster.RunningCell, value: float) -> None:
        record = cell.wait()
        for rank in record.ranks:
            np.testing.assert_allclose(float(record.stdout(rank)), value, rtol=1e-6)

    def at_some_moment(self, do: Callable[[], object], wait: Callable[[], object]) -> None:
        timer = threading.Timer(self.chance.uniform(0.0, 0.5), do)
        timer.start()
        try:
            wait()
        finally:
            timer.join()


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("devices_per_process", [1, 2])
def test_a_random_session_never_shows_a_wrong_number(home: Home, devices_per_process: int) -> None:
    print(f"seed {SEED}")
    with jaxcluster.start(RANKS, devices_per_process=devices_per_process, name="soak") as cluster:
        cluster.run(SETUP, show=False)
        session = Session(cluster)
        ends = time.monotonic() + SECONDS / 2
        while time.monotonic() < ends:
            session.step()
