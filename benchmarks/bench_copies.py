"""What it costs to keep copies of the ranks' variables, and how fast they are made.

Cells with copies and without, in turn: one that does nothing, and one that rebinds much. Then how
long after it the copy is whole, against a copy of as many bytes with memcpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from harness import median, ratio, sandbox, table

import jaxcluster
from jaxcluster.wire.ops.state import Kept

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
step = jax.jit(lambda tree: jax.tree.map(lambda v: v * 1.0001 + 1, tree))
def made(nbytes, parts=16):
    shape = (jax.device_count(), nbytes // parts // jax.device_count() // 4)
    zeros = lambda index: np.zeros((1, shape[1]), np.float32)
    return [jax.make_array_from_callback(shape, split, zeros) for _ in range(parts)]
"""
REBIND = """
for _ in range(12):
    x = step(x)
jax.block_until_ready(x)
None
"""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def wait(cluster: jaxcluster.Cluster) -> None:
    """Until all ranks have a copy of now."""
    ranks = range(cluster.num_processes)
    while True:
        answers = cluster.link.gather(ranks, Kept(), timeout_s=5.0)
        if all(event.body.is_current for event in answers.values()):
            return
        time.sleep(0.002)


def compare(cluster: jaxcluster.Cluster, source: str, rounds: int, cells: int) -> list[float]:
    """Seconds of a cell without copies and with them; the median over the rounds."""
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for place, nbytes in enumerate((0, None)):
            cluster.copies(nbytes)
            cluster.run("x = x", show=False)
            if nbytes is None:
                wait(cluster)
            for _ in range(cells):
                found[place].append(timed(lambda: cluster.run(source, show=False)))
    return [median(one) for one in found]


def memcpy_s(nbytes: int) -> float:
    """Into memory that is there already."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return median([timed(lambda: np.copyto(target, source)) for _ in range(5)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="ranks")
    parser.add_argument("--mib", type=int, default=1024, help="what a cell rebinds, in all")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    nbytes = args.mib << 20
    with sandbox(), jaxcluster.start(args.n, devices_per_process=1) as cluster:
        cluster.run(SETUP + f"x = made({nbytes})", show=False)
        rows, ratios = [], {}
        for name, source, cells in (("no-op", "pass", 100), ("rebinds", REBIND, 3)):
            without, with_copies = compare(cluster, source, args.rounds, cells)
            rows.append([name, f"{without * 1e3:.2f}", f"{with_copies * 1e3:.2f}"])
            ratios[name] = with_copies / without
        took = []
        for _ in range(args.rounds):
            cluster.run(REBIND, show=False)
            took.append(timed(lambda: wait(cluster)))
        copied, straight = median(took), memcpy_s(nbytes)
    table(["a cell, ms", "without copies", "with them"], rows)
    for name, limit in (("no-op", 1.05), ("rebinds", 1.1)):
        ratio(f"a cell that {name}" if name == "rebinds" else f"a {name} cell", ratios[name], limit)
    print(f"{args.mib} MiB are copied {copied:.2f} s after the cell; memcpy takes {straight:.2f} s")
    ratio("speed of the copy, of memcpy's", straight / copied, 0.5, at_least=True)


if __name__ == "__main__":
    main()
