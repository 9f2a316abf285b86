"""Recovery with 16 MB, 256 MB and 1 GB of state on 4 ranks, against the bare copy of the bytes.

    python benchmarks/bench_recovery.py [--sizes 16 256 1024]

For each size: ``replay`` (a skipped sum: from the call to the next right result), ``new
processes`` (all ranks in different collectives: saved, ended, started, restored), and ``rank
killed`` (the same with one rank dead). The ratio is to numpy copying the same bytes once.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import numpy as np

import jaxcluster
from jaxcluster.errors import JaxClusterError

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils as mhu
mesh = jax.make_mesh((jax.device_count(),), ("i",))
n = {mb} * 2**20 // 4
state = jax.make_array_from_callback(
    (n,), NamedSharding(mesh, P("i")),
    lambda index: np.ones(index[0].stop - index[0].start, np.float32))
small = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("i")), lambda index: np.arange(8.0)[index])
r = jax.process_index()
float(jnp.sum(small))
"""
SKIP = "if r != 1: print(float(jnp.sum(small)))"
MIXED = "if r % 2: print(jnp.sum(small))\nelse: print(mhu.process_allgather(np.ones(1000)))"
NEXT = "print(float(jnp.sum(small)) if 'small' in globals() else float(1))"


def until_next_result(cluster: jaxcluster.Cluster, source: str) -> float:
    """Seconds from a cell that breaks to the next right result."""
    started = time.perf_counter()
    try:
        cluster.run(source, show=False)
    except JaxClusterError:
        pass
    cluster.run(NEXT, show=False)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 256, 1024], help="in MB")
    sizes = parser.parse_args().sizes
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, seconds (x numpy copy)")
    print(f"{'MB':>6}  {'copy':>8}  {'replay':>16}  {'new processes':>16}  {'rank killed':>16}")
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
            replayed = until_next_result(cluster, SKIP)
            rebuilt = until_next_result(cluster, MIXED)
            os.kill(cluster.record.pids[2], signal.SIGKILL)
            replaced = until_next_result(cluster, "print(1)")
        row = "  ".join(f"{s:7.2f} ({s / copy:5.0f}x)" for s in (replayed, rebuilt, replaced))
        print(f"{mb:6}  {copy:8.4f}  {row}", flush=True)


if __name__ == "__main__":
    main()
