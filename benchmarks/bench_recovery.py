"""Recovery with 16 MB, 256 MB and 1 GB of state on 4 ranks, against the bare copy of the bytes.

    python benchmarks/bench_recovery.py [--sizes 16 256 1024] [--names 1000 10000 100000]

For each size, from the call to the next right result: ``restart`` (the variables of all ranks are
saved, and new processes have them again), and ``rank killed`` (the same after a rank's death). The
ratio is to numpy copying the same bytes once.

Then what many names cost 2 ranks, and one list of a million lists: a no-op cell and a restart, and
for each name what they take more than with none. That should not grow with their number.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

import numpy as np

import jaxcluster
from jaxcluster.errors import JaxClusterError

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
n = {mb} * 2**20 // 4
state = jax.make_array_from_callback(
    (n,), NamedSharding(mesh, P("i")),
    lambda index: np.ones(index[0].stop - index[0].start, np.float32))
small = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("i")), lambda index: np.arange(8.0)[index])
float(jnp.sum(small))
"""
NEXT = "print(float(jnp.sum(small)) if 'small' in globals() else float(1))"


def until_next_result(cluster: jaxcluster.Cluster, renew: Callable[[], object]) -> float:
    """Seconds from a call that ends in new processes to the next right result."""
    started = time.perf_counter()
    with contextlib.suppress(JaxClusterError):
        renew()
    cluster.run(NEXT, show=False)
    return time.perf_counter() - started


def seconds(do: Callable[[], object], times: int = 1) -> float:
    """Of the quickest."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        do()
        took.append(time.perf_counter() - started)
    return min(took)


def many(cluster: jaxcluster.Cluster, source: str) -> tuple[float, float]:
    """Seconds of a no-op cell and of a restart, with what ``source`` makes."""
    cluster.run(source, show=False)
    return seconds(lambda: cluster.run("pass", show=False), 5), seconds(cluster.restart)


def show_many(numbers: Sequence[int]) -> None:
    print(f"{'':>16}  {'no-op cell':>10}  {'us/name':>8}  {'restart':>8}  {'us/name':>8}")
    with jaxcluster.start(2, name="bench-recovery") as cluster:
        cell, restart = many(cluster, "import numpy")
        print(f"{'no names':>16}  {cell:10.4f}  {'':8}  {restart:8.2f}", flush=True)
        makes = {
            f"{n} names": (n, f"globals().update({{f'v{{i}}': [i] for i in range({n})}})")
            for n in numbers
        }
        makes["a million lists"] = 10**6, "%reset -f\nlists = [[i] for i in range(10**6)]"
        for name, (n, source) in makes.items():
            with_them = many(cluster, source)
            each = [(s - b) * 1e6 / n for s, b in zip(with_them, (cell, restart), strict=True)]
            print(f"{name:>16}  {with_them[0]:10.4f}  {each[0]:8.2f}  ", end="")
            print(f"{with_them[1]:8.2f}  {each[1]:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 256, 1024], help="in MB")
    parser.add_argument("--names", type=int, nargs="*", default=[1000, 10_000, 100_000])
    args = parser.parse_args()
    sizes = args.sizes
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, seconds (x numpy copy)")
    print(f"{'MB':>6}  {'copy':>8}  {'restart':>16}  {'rank killed':>16}")
    for mb in sizes:
        values = np.ones(mb * 2**20 // 4, np.float32)
        copies = []
        for _ in range(3):
            started = time.perf_counter()
            values.copy()
            copies.append(time.perf_counter() - started)
        copy = sorted(copies)[1]
        with jaxcluster.start(4, devices_per_process=2, name="bench-recovery") as cluster:
            cluster.run(SETUP.format(mb=mb))
            restarted = until_next_result(cluster, cluster.restart)
            os.kill(cluster.record.pids[2], signal.SIGKILL)
            replaced = until_next_result(cluster, lambda: cluster.run("print(1)", show=False))
        row = "  ".join(f"{s:7.2f} ({s / copy:5.0f}x)" for s in (restarted, replaced))
        print(f"{mb:6}  {copy:8.4f}  {row}", flush=True)
    show_many(args.names)


if __name__ == "__main__":
    main()
