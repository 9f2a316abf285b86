"""A random session: cells that compute, fail, skip, mix, stall, are stopped, and ranks that die.

After each the invariant is checked against numpy: whatever a cell says without an error is right on
every rank, the rank that skipped a program is named, what a broken cell assigned is undone, and the
session goes on with its variables. JAXCLUSTER_SOAK_S sets how long (20 s by default, 30 in
.ci/run, 3600 for a nightly run), JAXCLUSTER_SOAK_SEED repeats a session, and JAXCLUSTER_SOAK_KINDS
("skip,death") has it made of these cells alone.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence

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
    RankHung,
)
from jaxcluster.records import registry

SECONDS = float(os.environ.get("JAXCLUSTER_SOAK_S", "20"))
SEED = int(os.environ.get("JAXCLUSTER_SOAK_SEED", "0")) or random.randrange(1, 10**6)
RANKS = 4
SUBSETS = ("0,1", "1,2", "2,3", "0,1,2", "0,1,2,3")

SETUP = f"""
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
part = {{}}  # set of processes -> an array that spans them, on its members
for processes in {SUBSETS}:
    members = [int(p) for p in processes.split(",")]
    if r in members:
        devices = np.array([d for d in jax.devices() if d.process_index in members])
        where = NamedSharding(jax.sharding.Mesh(devices, ("i",)), P("i"))
        part[processes] = spread(np.arange(devices.size * 2, dtype=np.float32), where)
def _sums(v, n):
    def body(i, total):
        return total + jax.lax.psum(v.sum() * (i + 1), "i")
    return jax.lax.fori_loop(0, n, body, jnp.float32(0))
steered = jax.jit(jax.shard_map(
    _sums, mesh=mesh, in_specs=(P("i"), P()), out_specs=P(), check_vma=False))
def launches(count, sums):
    for k in range(count):
        sums.append(float(jnp.sum(a * k)))
        time.sleep(0.05)
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
    ("float(steered(a, np.int32(3)))", float(VALUES.sum() * 6)),
]
KINDS = (
    "right", "right", "right", "loop", "subsets", "steered", "overlapping", "two_notebooks",
    "thread", "skip", "alone", "error", "late_error", "all_error", "mix", "constant", "stop",
    "timeout", "ranks", "death", "crossed", "crossed_subsets", "skip_steered", "deleted_input",
    "death_in_recovery", "stop_in_recovery", "queue", "queue_skip", "queue_skip", "queue_stop",
    "queue_of_two", "alarm", "alarm_comes", "strict",
)  # fmt: skip
CROSSED = (
    "if r % 2: print(float(jnp.sum(a)))\nelse: print(mhu.process_allgather(np.ones(999)).sum())"
)


class Session:
    """Cells chosen by a seed, and what each must end with."""

    def __init__(self, cluster: jaxcluster.Cluster, devices: int, chance: random.Random) -> None:
        self.cluster = cluster
        self.devices = devices
        self.chance = chance
        self.ended: dict[str, int] = {}
        self.number = 0

    def step(self, kinds: Sequence[str]) -> None:
        kind = self.chance.choice(kinds)
        print(f"{self.number} {kind}", flush=True)
        getattr(self, kind)()
        self.ended[kind] = self.ended.get(kind, 0) + 1
        self.number += 1
        self.check()

    # ------------------------------------------------------------------ cells that are right

    def right(self) -> None:
        expression, value = self.chance.choice(SUMS)
        self.prints(f"print({expression})", value)

    def loop(self) -> None:
        n = self.chance.randrange(2, 40)
        self.prints(
            f"for i in range({n}):\n    s = jnp.sum(a * i)\nprint(float(s))",
            float(VALUES.sum()) * (n - 1),
        )

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
                self.part(processes) * (k + 1)
                for k, processes in enumerate(order)
                if str(rank) in processes
            ]
            assert [float(line) for line in record.stdout(rank).split()] == expected

    def steered(self) -> None:
        n = self.chance.randrange(0, 6)
        self.prints(
            f"print(float(steered(a, np.int32({n}))))", float(VALUES.sum()) * n * (n + 1) / 2
        )

    def overlapping(self) -> None:
        """Two background cells; each is slow on another rank for longer than a poll takes."""
        cells = []
        for _ in range(2):
            expression, value = self.chance.choice(SUMS)
            cells.append((self.cluster.submit(late(self.chance, 1.3, expression)), value))
        for cell, value in cells:
            self.are(cell.wait(), value)

    def two_notebooks(self) -> None:
        other = connect(registry.read(self.cluster.name))
        failed: list[BaseException] = []

        def run(cluster: jaxcluster.Cluster, chance: random.Random) -> None:
            try:
                for _ in range(3):
                    expression, value = chance.choice(SUMS)
                    source = late(chance, chance.random(), expression)
                    self.are(cluster.run(source, show=False), value)
            except BaseException as error:
                failed.append(error)

        try:
            seeds = [random.Random(self.chance.random()) for _ in range(2)]
            thread = threading.Thread(target=run, args=(other, seeds[0]))
            thread.start()
            run(self.cluster, seeds[1])
            thread.join()
        finally:
            other.close()
        assert not failed, failed

    def thread(self) -> None:
        """A thread of the user's launches on all ranks alike while cells launch nothing."""
        count = self.chance.randrange(1, 20)
        self.cluster.run(
            "sums = []\n"
            f"loader = threading.Thread(target=launches, args=({count}, sums))\nloader.start()",
            show=False,
        )
        for _ in range(self.chance.randrange(3)):
            self.prints(f"if r == {self.rank()}: time.sleep(1.2)\nprint(7)", 7.0)
        self.prints("loader.join()\nprint(sum(sums))", float(VALUES.sum()) * sum(range(count)))

    def queue(self) -> None:
        sums = [self.chance.choice(SUMS) for _ in range(self.chance.randrange(2, 6))]
        cells = [self.cluster.submit(late(self.chance, 0.3, e)) for e, _ in sums]
        for cell, (_, value) in zip(cells, sums, strict=True):
            self.are(cell.wait(), value)

    def alarm(self) -> None:
        """The usual time limit by a signal, which comes to nothing here."""
        expression, value = self.chance.choice(SUMS)
        self.prints(
            "import signal\n"
            "def late(*_): raise TimeoutError\n"
            "signal.signal(signal.SIGALRM, late); signal.alarm(60)\n"
            f"value = {expression}\n"
            "signal.alarm(0); signal.signal(signal.SIGALRM, signal.SIG_DFL)\nprint(value)",
            value,
        )

    def alarm_comes(self) -> None:
        """It raises on one rank, at any moment of a loop of launches, and that rank tries again.

        Where the launch had been made it is made once too often: that is found.
        """
        rank, after_s = self.rank(), self.chance.uniform(0, 0.02)
        sums = [float(VALUES.sum()) * k for k in range(12)]
        source = (
            "mark = 'alarm'\nfrom signal import *\n"
            "def late(*_): raise TimeoutError\n"
            "_ = signal(SIGALRM, late)\n"
            f"if r == {rank}: setitimer(ITIMER_REAL, {after_s})\n"
            "got, k = {}, 0\n"
            "while k < 12:\n"
            "    try:\n"
            "        while k < 12:\n"
            "            got[k] = float(jnp.sum(a * k))\n"
            "            k += 1\n"
            "    except TimeoutError: pass\n"
            "mark = 'before'\n"
            "_ = setitimer(ITIMER_REAL, 0), signal(SIGALRM, SIG_DFL)\n"
            f"print(list(got.values()) == {sums})"
        )
        try:
            record = self.cluster.run(source, show=False)
        except (Divergence, CellFailed) as error:
            assert "undone" in str(error) or "TimeoutError" in str(error), error
        else:
            assert [record.stdout(rank) for rank in range(RANKS)] == ["True\n"] * RANKS

    def strict(self) -> None:
        """Strict mode for a right cell, and for one that skips."""
        self.cluster.strict(True)
        try:
            expression, value = self.chance.choice(SUMS)
            self.prints(f"print({expression})", value)
            rank = self.rank()
            self.breaks(f"if r != {rank}: x = float(jnp.sum(a))", undone=True)
        finally:
            self.cluster.strict(False)

    # ------------------------------------------------------------------ cells that go wrong

    def queue_skip(self) -> None:
        """One of several queued cells skips, and another one may launch in its place."""
        rank = self.rank()
        sources = [f"if r != {rank}: x = jnp.sum(a * {k})" for k in range(self.chance.randrange(3))]
        skips = self.cluster.submit("mark = 'queued'\n" + self.skipping(rank))
        behind = [
            f"x = float(jnp.sum(a))\nif r == {rank}: jnp.sum(a * 3)",
            "print(float(jnp.sum(a)))",
        ]
        later = [self.cluster.submit(source) for source in [*behind, *sources]]
        with pytest.raises(Divergence) as caught:
            skips.wait()
        assert caught.value.report is not None
        assert set(caught.value.report.culprits) == {rank}, caught.value
        for cell in later:
            with pytest.raises(CellFailed, match="was not run"):
                cell.wait()

    def skipping(self, rank: int) -> str:
        return f"y = [jnp.sum(a * k) for k in range(5) if (r, k) != ({rank}, 2)]"

    def queue_stop(self) -> None:
        """One of several queued cells is stopped at some moment; the others are right, or fail."""
        sums = [self.chance.choice(SUMS) for _ in range(3)]
        cells = [self.cluster.submit(late(self.chance, 0.5, e)) for e, _ in sums]
        stopped = self.chance.randrange(3)
        timer = threading.Timer(self.chance.uniform(0.0, 1.2), cells[stopped].stop)
        timer.start()
        for number, (cell, (_, value)) in enumerate(zip(cells, sums, strict=True)):
            try:
                self.are(cell.wait(), value)
            except CellInterrupted:
                assert number == stopped
            except RankDied:  # it took new processes
                assert self.cluster.recovered or self.cluster.restored
        timer.join()

    def queue_of_two(self) -> None:
        """A cell of this notebook skips while one of another notebook waits."""
        rank = self.rank()
        expression, value = self.chance.choice(SUMS)
        other = connect(registry.read(self.cluster.name))
        try:
            skips = self.cluster.submit("mark = 'queued'\n" + self.skipping(rank))
            theirs = other.submit(f"print({expression})")
            with pytest.raises(Divergence) as caught:
                skips.wait()
            assert caught.value.report is not None
            assert set(caught.value.report.culprits) == {rank}, caught.value
            self.are(theirs.wait(), value)
        finally:
            other.close()

    def skip(self) -> None:
        rank = self.rank()
        self.diverges(f"if r != {rank}: print({self.expression()})", [rank])

    def alone(self) -> None:
        rank = self.rank()
        others = [r for r in range(RANKS) if r != rank]
        self.diverges(f"if r == {rank}: print({self.expression()})", others)

    def error(self) -> None:
        source = f"if r == {self.rank()}: raise ValueError('early')\nprint({self.expression()})"
        assert "early" in str(self.breaks(source))

    def late_error(self) -> None:
        source = f"x = {self.expression()}\nif r == {self.rank()}: raise ValueError('late')"
        assert "late" in str(self.breaks(source))

    def all_error(self) -> None:
        error = self.breaks(f"x = {self.expression()}\n1 / 0")
        assert isinstance(error, RankError)
        assert len(error.ranks) == RANKS

    def mix(self) -> None:
        rank = self.rank()
        self.diverges(
            f"if r == {rank}: print(float(jnp.max(a)))\nelse: print(float(jnp.sum(a)))", [rank]
        )

    def constant(self) -> None:
        """One program but for a constant that differs on one rank."""
        rank = self.rank()
        self.diverges(
            f"c = 2.5 + (r == {rank})\nprint(float(jax.jit(lambda v: jnp.sum(v * c))(a)))", [rank]
        )

    def timeout(self) -> None:
        source = f"if r == {self.rank()}:\n    while True: pass\nprint({self.expression()})"
        assert "took more than" in str(self.breaks(source, timeout_s=0.5, undone=True))

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
        """A rank is killed in the middle of a cell; what only it held is made again."""
        timer = self.kill_in(self.chance.uniform(0.0, 0.5))
        error = self.breaks("while True: x = float(jnp.sum(a))", undone=True)
        timer.join()
        assert isinstance(error, RankDied)
        self.cluster.run(SETUP, show=False)

    def crossed(self) -> None:
        """All ranks wait, in different collectives: nothing can release them in place."""
        assert isinstance(self.breaks(CROSSED, undone=True), Divergence)

    def crossed_subsets(self) -> None:
        """Two sets that share processes, in another order on one of these."""
        first, second = self.chance.sample([s for s in SUBSETS if "1" in s and s != "2,3"], 2)
        both = sorted(set(first.split(",")) & set(second.split(",")))
        if len(both) < 2:
            return
        error = self.breaks(
            f"order = {(first, second)}\n"
            f"for processes in order[::-1] if r == {self.chance.choice(both)} else order:\n"
            "    if processes in part: print(float(jnp.sum(part[processes])))",
            undone=True,
        )
        assert isinstance(error, Divergence)

    def skip_steered(self) -> None:
        """The skipped program would take another way with zeros for inputs."""
        rank = self.rank()
        self.diverges(f"if r != {rank}: print(float(steered(a, np.int32(3))))", [rank])

    def deleted_input(self) -> None:
        """A call that raises before it launches counts for nothing."""
        rank = self.rank()
        self.diverges(
            "z = spread(values * 2)\n"
            "double = jax.jit(lambda v: v.sum()).lower(z).compile()\n"
            f"if r == {rank}: z.delete()\n"
            "try: print(float(double(z)))\n"
            "except (RuntimeError, ValueError): pass",
            [rank],
        )

    def death_in_recovery(self) -> None:
        timer = self.kill_in(self.chance.uniform(0.5, 3.0))
        self.breaks(CROSSED)
        timer.join()
        self.mended()
        self.cluster.run(SETUP, show=False)

    def stop_in_recovery(self) -> None:
        """The stop button, once or twice, at some moment of a recovery by new processes."""
        with pressing(self.chance, 0.5, 3.0):
            self.cluster.run(CROSSED, show=False)
        self.mended()

    # ------------------------------------------------------------------ parts

    def rank(self) -> int:
        return self.chance.randrange(RANKS)

    def expression(self) -> str:
        return self.chance.choice(SUMS)[0]

    def part(self, processes: str) -> float:
        """The sum of an array that spans these processes."""
        return float(np.arange(len(processes.split(",")) * self.devices * 2).sum())

    def prints(self, source: str, value: float) -> None:
        self.are(self.cluster.run(source, show=False), value)

    @staticmethod
    def are(record: jaxcluster.CellRecord, value: float) -> None:
        for rank in range(RANKS):
            np.testing.assert_allclose(float(record.stdout(rank)), value, rtol=1e-6)

    def breaks(self, source: str, undone: bool = False, **options: object) -> JaxClusterError:
        """The error of a cell; ``undone``: what it assigned is as before it."""
        first = f"mark = 'cell {self.number}'\n" if undone else ""
        with pytest.raises(JaxClusterError) as caught:
            self.cluster.run(first + source, show=False, **options)
        return caught.value

    def diverges(self, source: str, culprits: Sequence[int]) -> None:
        error = self.breaks(source, undone=True)
        assert isinstance(error, Divergence), error
        assert error.report is not None
        # On a busy machine it may be certain of some ranks before others have ended the cell.
        named = set(error.report.culprits)
        assert named and named <= set(culprits), error

    def kill_in(self, seconds: float) -> threading.Timer:
        rank = self.rank()

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError):
                send_signal(self.cluster, rank)

        timer = threading.Timer(seconds, kill)
        timer.start()
        return timer

    def mended(self) -> None:
        """A session whose recovery was broken off is whole again after a restart."""
        for _ in range(3):
            try:
                self.cluster.run("pass", show=False)
                return
            except JaxClusterError as error:
                print(f"    {str(error)[:200]!r}", flush=True)
                left = isinstance(error, RankHung)  # after two stops, in what they hang in
                if left or self.cluster.is_broken or self.cluster.closed:
                    self.cluster.restart()  # what was saved is there

    def check(self) -> None:
        """The next number is right everywhere, and what the session has gathered is there."""
        source = f"kept.append({self.number})\nprint(float(jnp.sum(a)), len(kept), mark)"
        record = self.cluster.run(source, show=False)
        expected = f"{float(VALUES.sum())} {self.number} before\n"
        assert [record.stdout(rank) for rank in range(RANKS)] == [expected] * RANKS


def late(chance: random.Random, seconds: float, expression: str) -> str:
    """A cell in which one rank is late, before the launch that all make or after it."""
    lines = [f"if r == {chance.randrange(RANKS)}: time.sleep({seconds})", f"value = {expression}"]
    chance.shuffle(lines)
    return "\n".join([*lines, "print(value)"])


@contextlib.contextmanager
def pressing(chance: random.Random, earliest_s: float, latest_s: float) -> Iterator[None]:
    """Press the stop button once or twice in the block, which may end in any way that is told."""
    over = threading.Event()

    def press(times: Sequence[float]) -> None:
        for seconds in times:
            if over.wait(seconds):
                return
            os.kill(os.getpid(), signal.SIGINT)

    waits = [chance.uniform(earliest_s, latest_s)]
    if chance.random() < 0.5:
        waits.append(chance.uniform(0.05, 0.5))
    thread = threading.Thread(target=press, args=(waits,))
    thread.start()
    try:
        with contextlib.suppress(JaxClusterError, KeyboardInterrupt):
            yield
    finally:
        over.set()
        with contextlib.suppress(KeyboardInterrupt):  # one that came at the very end
            thread.join()


# Python passes over a stop that comes while it is in a weak reference's callback.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("devices_per_process", [1, 2])
def test_a_random_session_never_shows_a_wrong_number(home: Home, devices_per_process: int) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    kinds = os.environ.get("JAXCLUSTER_SOAK_KINDS", "").split(",")
    with jaxcluster.start(RANKS, devices_per_process=devices_per_process, name="soak") as cluster:
        cluster.run(SETUP + "kept = []\nmark = 'before'")
        session = Session(cluster, devices_per_process, chance)
        ends = time.monotonic() + SECONDS / 2
        while time.monotonic() < ends:
            session.step(kinds if kinds[0] else KINDS)
        print(f"{session.number} cells: {session.ended}")
