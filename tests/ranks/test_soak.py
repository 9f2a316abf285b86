"""A random session: cells that compute, fail, skip, mix, stall, are stopped, and ranks that die.

After each the invariant is checked against numpy: whatever a cell says without an error is right on
every rank, and the session goes on with its variables. JAXCLUSTER_SOAK_S sets how long (20 s by
default, 120 in .ci/run, 600 for a nightly run) and JAXCLUSTER_SOAK_SEED repeats a session.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellInterrupted, Divergence, JaxClusterError, RankDied, RankError

SECONDS = float(os.environ.get("JAXCLUSTER_SOAK_S", "20"))
SEED = int(os.environ.get("JAXCLUSTER_SOAK_SEED", "0")) or random.randrange(1, 10**6)
RANKS = 4

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
values = np.random.default_rng(7).integers(0, 100, 64).astype(np.float32)
a = jax.make_array_from_callback(values.shape, split, lambda index: values[index])
r = jax.process_index()
"""
VALUES = np.random.default_rng(7).integers(0, 100, 64).astype(np.float32)

# (expression on the ranks, its value by numpy)
SUMS = [
    ("float(jnp.sum(a))", float(VALUES.sum())),
    ("float(jnp.max(a))", float(VALUES.max())),
    ("float(jnp.sum(a * 2))", float((VALUES * 2).sum())),
    ("float(jnp.mean(a))", float(VALUES.mean())),
    ("float(jnp.sum(jnp.where(a > 50, a, 0)))", float(VALUES[VALUES > 50].sum())),
    ("mhu.process_allgather(np.float32(r)).sum().item()", 6.0),
]


class Session:
    """Cells chosen by a seed, and what each must end with."""

    def __init__(self, cluster: jaxcluster.Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.ended: dict[str, int] = {}
        self.number = 0

    def step(self) -> None:
        kind = self.chance.choice(
            ["right", "right", "right", "loop", "skip", "alone", "error", "late_error",
             "all_error", "mix", "stop", "timeout", "ranks", "death", "crossed"]
        )  # fmt: skip
        getattr(self, kind)()
        self.ended[kind] = self.ended.get(kind, 0) + 1
        self.number += 1
        self.check()

    def right(self) -> None:
        expression, value = self.chance.choice(SUMS)
        record = self.cluster.run(f"print({expression})", show=False)
        for rank in range(RANKS):
            np.testing.assert_allclose(float(record.stdout(rank)), value, rtol=1e-6)

    def loop(self) -> None:
        n = self.chance.randrange(2, 40)
        source = f"total = 0.0\nfor i in range({n}):\n    s = jnp.sum(a * i)\nprint(float(s))"
        record = self.cluster.run(source, show=False)
        for rank in range(RANKS):
            np.testing.assert_allclose(float(record.stdout(rank)), VALUES.sum() * (n - 1))

    def skip(self) -> None:
        self.breaks(f"if r != {self.rank()}: print({self.expression()})")

    def alone(self) -> None:
        self.breaks(f"if r == {self.rank()}: print({self.expression()})")

    def error(self) -> None:
        source = f"if r == {self.rank()}: raise ValueError('early')\nprint({self.expression()})"
        error = self.breaks(source)
        assert "early" in str(error)

    def late_error(self) -> None:
        source = f"x = {self.expression()}\nif r == {self.rank()}: raise ValueError('late')"
        assert "late" in str(self.breaks(source))

    def all_error(self) -> None:
        error = self.breaks(f"x = {self.expression()}\n1 / 0")
        assert isinstance(error, RankError)
        assert len(error.ranks) == RANKS

    def mix(self) -> None:
        rank = self.rank()
        self.breaks(f"if r == {rank}: print(float(jnp.max(a)))\nelse: print(float(jnp.sum(a)))")

    def timeout(self) -> None:
        source = f"if r == {self.rank()}:\n    while True: pass\nprint({self.expression()})"
        assert "took more than" in str(self.breaks(source, timeout_s=0.5))

    def ranks(self) -> None:
        self.breaks(f"print({self.expression()})", ranks=[0, 1])

    def stop(self) -> None:
        """What the stop button does, at some moment of a cell in which one rank is late."""
        source = f"if r == {self.rank()}: time.sleep(5)\nprint({self.expression()})"
        cell = self.cluster.submit(source)
        timer = threading.Timer(self.chance.uniform(0.0, 1.0), cell.stop)
        timer.start()
        with pytest.raises(CellInterrupted):
            cell.wait()
        timer.join()

    def death(self) -> None:
        """A rank is killed in the middle of a cell; what only it held is made anew."""
        rank = self.rank()
        pid = self.cluster.record.pids[rank]
        timer = threading.Timer(self.chance.uniform(0.0, 0.5), os.kill, (pid, signal.SIGKILL))
        timer.start()
        error = self.breaks("while True: x = float(jnp.sum(a))")
        timer.join()
        assert isinstance(error, RankDied)
        self.cluster.run(SETUP, show=False)

    def crossed(self) -> None:
        """All ranks wait, in different collectives: nothing can release them in place."""
        error = self.breaks(
            "if r % 2: print(float(jnp.sum(a)))\n"
            "else: print(mhu.process_allgather(np.ones(999)).sum())"
        )
        assert isinstance(error, Divergence)

    # ------------------------------------------------------------------ parts

    def rank(self) -> int:
        return self.chance.randrange(RANKS)

    def expression(self) -> str:
        return self.chance.choice(SUMS)[0]

    def breaks(self, source: str, **options: object) -> JaxClusterError:
        with pytest.raises(JaxClusterError) as caught:
            self.cluster.run(source, show=False, **options)
        return caught.value

    def check(self) -> None:
        """The next number is right everywhere, and what the session has gathered is there."""
        source = f"kept.append({self.number})\nprint(float(jnp.sum(a)), len(kept))"
        record = self.cluster.run(source, show=False)
        expected = f"{float(VALUES.sum())} {self.number}\n"
        assert [record.stdout(rank) for rank in range(RANKS)] == [expected] * RANKS


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("devices_per_process", [1, 2])
def test_a_random_session_never_shows_a_wrong_number(home: Home, devices_per_process: int) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    with jaxcluster.start(RANKS, devices_per_process=devices_per_process, name="soak") as cluster:
        cluster.run(SETUP + "kept = []")
        session = Session(cluster, chance)
        ends = time.monotonic() + SECONDS / 2
        while time.monotonic() < ends:
            session.step()
        print(f"{session.number} cells: {session.ended}")
