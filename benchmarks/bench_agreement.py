"""What it costs to agree on each launch, and how soon a mistake is an error under its cell.

Two clusters run side by side in one process: one agrees on its launches, the other was started
with ``JAXCLUSTER_AGREE=0`` and launches as plain JAX does. The same cells run on them in turn.
``--busy`` adds a Python thread on each rank that never waits, as a data loader may have one.
``--referee`` measures the referee alone: one process plays the ranks, and announces for all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from harness import median, ratio, sandbox, table

import jaxcluster
from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.messages import NOWHERE, Program
from jaxcluster.errors import JaxClusterError

SETUP = """
import threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ('i',), axis_types=(jax.sharding.AxisType.Auto,))
split = NamedSharding(mesh, P('i'))
x = jax.make_array_from_callback((64,), split, lambda i: np.arange(64.0)[i])
large = jax.make_array_from_callback((1 << 21,), split, lambda i: np.ones(1 << 21)[i])
add = jax.jit(lambda x: x + 1)
total = jax.jit(lambda x: x.sum())
step = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda i, y: jnp.sin(y), x).sum())
def launches_us(f, x, count):
    took = []
    for _ in range(count):
        began = time.perf_counter()
        f(x).block_until_ready()
        took.append(time.perf_counter() - began)
    return sorted(took)[count // 2] * 1e6
def dispatch_us(f, x, count):
    began = time.perf_counter()
    for _ in range(count):
        y = f(x)
    took = time.perf_counter() - began
    y.block_until_ready()
    return took / count * 1e6
for f, a in ((add, x), (total, x), (step, large)):
    f(a).block_until_ready()
"""
BUSY = """
def spin():
    while True:
        sum(range(1000))
for _ in range(1):
    threading.Thread(target=spin, daemon=True).start()
"""
CELLS = {
    "a tiny all-reduce": "launches_us(total, x, 100)",
    "a step of some 10 ms": "launches_us(step, large, 10)",
    "a launch without a collective": "dispatch_us(add, x, 50)",
}
MISTAKES = {
    "a skip": "if rank != 1: s = total(x)",
    "a mix": "s = total(x) if rank else add(x).max()",
    "a wrong shape": "s = total(jnp.resize(x, (64 + (rank == jax.process_count() - 1) * 64,)))",
    "an error": "1 / 0 if rank == 1 else total(x)",
    "one launch more": "for _ in range(3 if rank else 4): s = total(x)",
}


def start(num_processes: int, agrees: bool, busy: bool) -> jaxcluster.Cluster:
    """A cluster whose launches are agreed on, or are plain JAX's."""
    os.environ["JAXCLUSTER_AGREE"] = "1" if agrees else "0"
    name = f"{'agreed' if agrees else 'plain'}-{num_processes}"
    cluster = jaxcluster.start(num_processes=num_processes, name=name)
    cluster.run(SETUP + (BUSY if busy else ""), show=False)
    return cluster


def value(cluster: jaxcluster.Cluster, source: str) -> float:
    """The slowest rank's figure."""
    record = cluster.run(source, show=False)
    return max(float(record.result(rank)["text/plain"]) for rank in record.ranks)  # type: ignore[index]


def compared(num_processes: int, rounds: int, busy: bool) -> Iterator[tuple[str, float, float]]:
    with start(num_processes, True, busy) as agreed, start(num_processes, False, busy) as plain:
        for name, source in CELLS.items():
            took: dict[bool, list[float]] = {True: [], False: []}
            for number in range(-2, rounds):
                for cluster in (agreed, plain) if number % 2 else (plain, agreed):
                    found = value(cluster, source)
                    if number >= 0:
                        took[cluster is agreed].append(found)
            yield name, median(took[True]), median(took[False])


def mistakes(num_processes: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Each mistake, and the seconds until it is an error under its cell."""
    with start(num_processes, True, False) as cluster:
        for name, source in MISTAKES.items():
            took = []
            for number in range(-1, rounds):
                began = time.perf_counter()
                try:
                    cluster.run(source, show=False)
                except JaxClusterError:
                    if number >= 0:
                        took.append(time.perf_counter() - began)
            yield name, median(took)
        cluster.run("assert float(total(x)) == 2016", show=False)


def referee(num_ranks: int, rounds: int) -> tuple[float, float]:
    """(announcements per second, the median microseconds of one launch of all these ranks)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = f"{folder}/referee.sock"
        module = "jaxcluster.agreement.server"
        argv = [sys.executable, "-m", module, "referee", path, str(num_ranks)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it listens
            ranks = [Agreement(rank) for rank in range(num_ranks)]
            bases = [rank.connect(path) for rank in ranks]
            program = Program(tuple(range(num_ranks)), 1, "step")
            lanes = [rank._lane() for rank in ranks]
            took = []
            for _ in range(rounds):
                messages = [lane.announcement(program, NOWHERE, 0, 0) for lane in lanes]
                began = time.perf_counter()
                for lane, message in zip(lanes, messages, strict=True):
                    lane.socket.send(message)
                for lane in lanes:
                    lane.socket.recv(1 << 16)
                took.append(time.perf_counter() - began)
            process.kill()
            del bases
    return num_ranks / median(took), median(took) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="of each figure (%(default)s)")
    parser.add_argument("--busy", action="store_true", help="a busy thread on each rank")
    parser.add_argument("--referee", action="store_true", help="the referee alone")
    args = parser.parse_args()
    if args.referee:
        rows = []
        for num_ranks in (4, 64, 256):
            rate, us = referee(num_ranks, 300)
            rows.append([str(num_ranks), f"{rate:,.0f}", f"{us:,.0f}"])
        table(["ranks", "announcements/s", "a launch of all, us"], rows)
        return
    with sandbox():
        rows = []
        for name, agreed, plain in compared(args.n, args.rounds, args.busy):
            rows.append([name, f"{agreed:.0f}", f"{plain:.0f}", f"{agreed / plain:.2f}"])
        table([f"{args.n} ranks, us", "agreed", "plain", "ratio"], rows)
        for name, seconds in mistakes(args.n, max(5, args.rounds // 3)):
            ratio(f"{name}: until the error, of 0.3 s", seconds / 0.3, 1.0)


if __name__ == "__main__":
    main()
