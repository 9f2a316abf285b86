"""A random session: cells that compute, fail, skip, mix, wait, are stopped, and ranks that die.

Each is checked against numpy: whatever a cell says without an error is right on every rank, who did
something else is named, all ranks have made the same launches, the processes stay unless one died,
and the session goes on. JAXCLUSTER_SOAK_S sets how long (20 s by default, 30
in .ci/run, 3600 for a nightly run), JAXCLUSTER_SOAK_SEED repeats a session, and
JAXCLUSTER_SOAK_KINDS ("skip,death") has it made of these cells alone.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence

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
    RankError,
)

SECONDS = float(os.environ.get("JAXCLUSTER_SOAK_S", "20"))
SEED = int(os.environ.get("JAXCLUSTER_SOAK_SEED", "0")) or random.randrange(1, 10**6)
RANKS = 4
SUBSETS = ("0,1", "1,2", "2,3", "0,1,2", "0,1,2,3")

SETUP = f"""
import jax, jax.numpy as jnp, numpy as np, signal, threading, time
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
part = {{}}  # set of processes -> an array that spans them, on its members
for processes in {SUBSETS}:
    members = [int(p) for p in processes.split(",")]
    if r in members:
        devices = np.array([d for d in jax.devices() if d.process_index in members])
        where = NamedSharding(jax.sharding.Mesh(devices, ("i",)), P("i"))
        part[processes] = spread(np.arange(devices.size * 2, dtype=np.float32), where)
def launches(count, sums):
    for k in range(count):
        sums.append(float(jnp.sum(a * k)))
        time.sleep(0.01 * r)
"""
VALUES = np.random.default_rng(7).integers(0, 100, 64).astype(np.float32)
TOTAL = float(VALUES.sum())

# (expression on the ranks, its value by numpy)
SUMS = [
    ("float(jnp.sum(a))", TOTAL),
    ("float(jnp.max(a))", float(VALUES.max())),
    ("float(jnp.sum(a * 2))", 2 * TOTAL),
    ("float(jnp.mean(a))", float(VALUES.mean())),
    ("float(jnp.sum(jnp.where(a > 50, a, 0)))", float(VALUES[VALUES > 50].sum())),
    ("mhu.process_allgather(np.float32(r)).sum().item()", 6.0),
]
KINDS = (
    "right", "right", "loop", "subsets", "two_notebooks", "thread", "queue", "crossing_parts",
    "skip", "alone", "mix", "constant", "value", "fewer_turns", "swallowed", "error", "late_error",
    "all_error", "circle", "alarm", "some_ranks", "stop", "stop_training", "timeout",
    "queue_of_failures", "death",
)  # fmt: skip


class Session:
    """Cells chosen by a seed, and what each must end with."""

    def __init__(self, cluster: jaxcluster.Cluster, devices: int, chance: random.Random) -> None:
        self.cluster, self.devices, self.chance = cluster, devices, chance
        self.ended: dict[str, int] = {}
        self.number = 0

    def step(self, kinds: Sequence[str]) -> None:
        kind = self.chance.choice(kinds)
        print(f"{self.number} {kind}", flush=True)
        pids = list(self.cluster.record.pids)
        getattr(self, kind)()
        assert (self.cluster.record.pids == pids) == (kind != "death")
        self.ended[kind] = self.ended.get(kind, 0) + 1
        self.number += 1
        self.check()

    def check(self) -> None:
        """The next number is right everywhere, and training is at one step with one result."""
        source = "print(float(jnp.sum(a)), steps, float(jnp.sum(params)))"
        record = self.cluster.run(source, show=False, timeout_s=60)
        (text,) = {record.stdout(rank) for rank in range(RANKS)}
        total, steps, trained = map(float, text.split())
        np.testing.assert_allclose([total, trained], [TOTAL, steps * TOTAL * 64], rtol=1e-4)

    # ------------------------------------------------------------------ cells that are right

    def right(self) -> None:
        expression, value = self.chance.choice(SUMS)
        self.prints(late(self.chance, 0.3, expression), value)

    def loop(self) -> None:
        n = self.chance.randrange(2, 40)
        source = f"for i in range({n}):\n    s = jnp.sum(a * i)\nprint(float(s))"
        self.prints(source, TOTAL * (n - 1))

    def subsets(self) -> None:
        """Sets of processes in any order, the same on all ranks."""
        order = [self.chance.choice(SUBSETS) for _ in range(self.chance.randrange(2, 12))]
        record = self.cluster.run(
            f"for k, processes in enumerate({order}):\n"
            "    if processes in part: print(float(jnp.sum(part[processes] * (k + 1))))",
            show=False,
        )
        for rank in range(RANKS):
            expected = [
                float(np.arange(len(processes.split(",")) * self.devices * 2).sum()) * (k + 1)
                for k, processes in enumerate(order)
                if str(rank) in processes
            ]
            assert [float(line) for line in record.stdout(rank).split()] == expected

    def two_notebooks(self) -> None:
        other = connect(self.cluster.record)
        try:
            sent = []
            for _ in range(self.chance.randrange(2, 8)):
                expression, value = self.chance.choice(SUMS)
                whose = self.chance.choice([self.cluster, other])
                sent.append((whose.submit(late(self.chance, 0.1, expression)), value))
            for cell, value in sent:
                self.are(cell.wait(), value)
        finally:
            other.close()

    def thread(self) -> None:
        """A thread of the user's launches on all ranks alike, while cells launch too."""
        count = self.chance.randrange(1, 20)
        self.cluster.run(
            "sums = []\n"
            f"loader = threading.Thread(target=launches, args=({count}, sums))\nloader.start()",
            show=False,
        )
        for _ in range(self.chance.randrange(3)):
            self.right()
        self.prints("loader.join()\nprint(sum(sums))", TOTAL * sum(range(count)))

    def queue(self) -> None:
        sums = [self.chance.choice(SUMS) for _ in range(self.chance.randrange(2, 6))]
        cells = [self.cluster.submit(late(self.chance, 0.1, e)) for e, _ in sums]
        for cell, (_, value) in zip(cells, sums, strict=True):
            self.are(cell.wait(), value)

    def crossing_parts(self) -> None:
        """Cells on parts of the ranks that meet in one program."""
        expression, value = self.chance.choice(SUMS)
        source = late(self.chance, 0.2, expression)
        cells = [self.cluster.submit(source, ranks=ranks) for ranks in ([0, 1], [2, 3])]
        for cell in cells:
            record = cell.wait()
            for rank in record.ranks:
                np.testing.assert_allclose(float(record.stdout(rank)), value, rtol=1e-6)

    # ------------------------------------------------------------------ cells that go wrong

    def skip(self) -> None:
        rank = self.rank()
        self.diverges(f"if r != {rank}: print({self.expression()})", [rank])

    def alone(self) -> None:
        rank = self.rank()
        self.diverges(f"if r == {rank}: print({self.expression()})", [rank])

    def mix(self) -> None:
        rank = self.rank()
        self.diverges(f"print(float((jnp.min if r == {rank} else jnp.sum)(a)))", [rank])

    def constant(self) -> None:
        """One program but for a constant that differs on one rank."""
        rank = self.rank()
        source = f"c = 2.5 + (r == {rank})\nprint(float(jax.jit(lambda v: jnp.sum(v * c))(a)))"
        self.diverges(source, [rank])

    def value(self) -> None:
        """One program with another value on one rank."""
        rank = self.rank()
        self.diverges(
            f"f = jax.jit(lambda v, c: jnp.sum(v) * c)\nf(a, 1.0 * (r == {rank}))", [rank]
        )

    def fewer_turns(self) -> None:
        """A rank leaves out a turn: the cell is an error on all, whatever has met whatever."""
        rank, n = self.rank(), self.chance.randrange(2, 30)
        left_out = self.chance.randrange(n)
        self.diverges(
            f"for i in range({n}):\n    if (r, i) == ({rank}, {left_out}): continue\n"
            "    s = jnp.sum(a)",
            [rank],
        )

    def swallowed(self) -> None:
        """A loop that goes on after any exception launches nothing behind the first."""
        rank, n = self.rank(), self.chance.randrange(2, 30)
        self.diverges(
            f"for i in range({n}):\n    try:\n"
            f"        if (r, i) == ({rank}, {n // 2}): raise ValueError\n"
            "        new = train(params, a)\n        params, steps = new, steps + 1\n"
            "    except Exception: continue",
            [rank],
        )

    def error(self) -> None:
        source = f"if r == {self.rank()}: raise ValueError('early')\nprint({self.expression()})"
        assert "early" in str(self.fails(source))

    def late_error(self) -> None:
        source = f"y = {self.expression()}\nif r == {self.rank()}: raise ValueError('late')"
        assert "late" in str(self.fails(source))

    def all_error(self) -> None:
        error = self.fails(f"y = {self.expression()}\n1 / 0")
        assert isinstance(error, RankError)
        assert len(error.ranks) == RANKS

    def circle(self) -> None:
        error = self.fails(
            "sums = [lambda: jnp.sum(a), lambda: jnp.sum(part['0,1']) if r < 2 else None]\n"
            "for f in sums[:: 1 - 2 * (r == 1)]: f()"
        )
        assert isinstance(error, Divergence)
        assert {*error.ranks} & {0, 1}

    def alarm(self) -> None:
        """It raises on one rank, at any moment of a loop of launches, and that rank tries again."""
        rank, after_s = self.rank(), self.chance.uniform(0, 0.02)
        source = (
            "def late(*_): raise TimeoutError\n"
            "_ = signal.signal(signal.SIGALRM, late)\n"
            f"if r == {rank}: signal.setitimer(signal.ITIMER_REAL, {after_s})\n"
            "got, k = {}, 0\n"
            "while k < 12:\n"
            "    try:\n"
            "        while k < 12:\n"
            "            got[k] = float(jnp.sum(a * k))\n"
            "            k += 1\n"
            "    except TimeoutError: pass\n"
            "_ = signal.setitimer(signal.ITIMER_REAL, 0), signal.signal(signal.SIGALRM, "
            "signal.SIG_DFL)\n"
            f"print(list(got.values()) == [{TOTAL} * k for k in range(12)])"
        )
        try:
            record = self.cluster.run(source, show=False, timeout_s=60)
        except (Divergence, CellFailed) as error:
            assert "took more" not in str(error)
        else:
            assert [record.stdout(rank) for rank in range(RANKS)] == ["True\n"] * RANKS

    def some_ranks(self) -> None:
        with pytest.raises(Divergence, match="which run no cell"):
            self.cluster.run(f"print({self.expression()})", ranks=[0, 1], show=False)

    def stop(self) -> None:
        """What the stop button does, at some moment of a cell in which one rank is late."""
        source = f"if r == {self.rank()}: time.sleep(5)\nprint({self.expression()})"
        self.stops(self.cluster.submit(source), self.chance.uniform(0.0, 1.0))

    def stop_training(self) -> None:
        cell = self.cluster.submit("while True:\n    params = train(params, a)\n    steps += 1")
        self.stops(cell, self.chance.uniform(0.0, 0.5))

    def stops(self, cell: object, after_s: float) -> None:
        timer = threading.Timer(after_s, cell.stop)
        timer.start()
        with pytest.raises(CellInterrupted):
            cell.wait()
        timer.join()

    def timeout(self) -> None:
        source = f"if r == {self.rank()}:\n    while True: pass\nprint({self.expression()})"
        assert "took more than" in str(self.fails(source, timeout_s=0.5))

    def queue_of_failures(self) -> None:
        """What is queued behind a cell that fails does not run; another notebook's does."""
        rank, other = self.rank(), connect(self.cluster.record)
        expression, value = self.chance.choice(SUMS)
        try:
            first = self.cluster.submit(f"if r != {rank}: y = {self.expression()}")
            later = [self.cluster.submit("steps += 1") for _ in range(3)]
            theirs = other.submit(f"print({expression})")
            with pytest.raises(Divergence):
                first.wait()
            for cell in later:
                with pytest.raises(CellFailed, match="was skipped"):
                    cell.wait()
            self.are(theirs.wait(), value)
        finally:
            other.close()

    def death(self) -> None:
        """A rank is killed at some moment of a cell; what only it held is made again."""
        timer = threading.Timer(
            self.chance.uniform(0.0, 0.5), send_signal, (self.cluster, self.rank())
        )
        timer.start()
        error = self.fails("while True: y = float(jnp.sum(a))")
        timer.join()
        assert isinstance(error, RankDied)
        self.cluster.run(SETUP, show=False)

    # ------------------------------------------------------------------ parts

    def rank(self) -> int:
        return self.chance.randrange(RANKS)

    def expression(self) -> str:
        return self.chance.choice(SUMS)[0]

    def prints(self, source: str, value: float) -> None:
        self.are(self.cluster.run(source, show=False, timeout_s=60), value)

    @staticmethod
    def are(record: jaxcluster.CellRecord, value: float) -> None:
        for rank in record.ranks:
            np.testing.assert_allclose(float(record.stdout(rank)), value, rtol=1e-6)

    def fails(self, source: str, timeout_s: float = 60.0) -> JaxClusterError:
        with pytest.raises(JaxClusterError) as caught:
            self.cluster.run(source, show=False, timeout_s=timeout_s)
        return caught.value

    def diverges(self, source: str, culprits: Sequence[int]) -> None:
        error = self.fails(source)
        assert isinstance(error, Divergence), error
        assert error.ranks == tuple(culprits), error


def late(chance: random.Random, seconds: float, expression: str) -> str:
    """A cell in which one rank is late, before the launch that all make or after it."""
    lines = [f"if r == {chance.randrange(RANKS)}: time.sleep({seconds})", f"value = {expression}"]
    chance.shuffle(lines)
    return "\n".join([*lines, "print(value)"])


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("devices_per_process", [1, 2])
def test_a_random_session_never_shows_a_wrong_number(home: Home, devices_per_process: int) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    kinds = os.environ.get("JAXCLUSTER_SOAK_KINDS", "").split(",")
    with jaxcluster.start(RANKS, devices_per_process=devices_per_process, name="soak") as cluster:
        cluster.run(SETUP, show=False)
        session = Session(cluster, devices_per_process, chance)
        ends = time.monotonic() + SECONDS / 2
        while time.monotonic() < ends:
            session.step(kinds if kinds[0] else KINDS)
        print(f"{session.number} cells: {session.ended}")
