"""What a cluster costs on NVIDIA cards: a cell, a launch, a pull, a skip and a restart.

Two ranks, each with a card of its own, or both on the only one (NCCL 2.30 or later). In turn:

1. A cell that does nothing, against ipyparallel's ``DirectView.execute`` on the same ranks.
2. Launches that are agreed on, against those of a cluster that launches as plain JAX does.
3. An array's pull, against ipyparallel's pull of the shards.
4. Seconds until a rank that skips a collective is named, and one that skips a *new* program, which
   the others are about to compile; and a restart that keeps arrays.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
from bench_agreement import CELLS, SETUP, value
from bench_pull import MAKE
from harness import median, sandbox, table

import jaxcluster
from jaxcluster.errors import Divergence

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from gpucards import find_cards


def of_theirs(ours: list[float], theirs: list[float]) -> str:
    return f"{median(ours) / median(theirs):.2f}"


def measure_cells(cluster: jaxcluster.Cluster, rounds: int) -> None:
    view = cluster.client[:]
    ours, theirs = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        cluster.run("pass", show=False)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        view.execute("pass", block=True)
        theirs.append(time.perf_counter() - began)
    rows = [["a cell that does nothing", f"{median(ours) * 1e3:.2f} ms", of_theirs(ours, theirs)]]
    table(["what", "took", "of ipyparallel's"], rows)


def measure_launches(cluster: jaxcluster.Cluster, rounds: int) -> dict[str, float]:
    """The slowest rank's microseconds, by what is launched."""
    cluster.run(SETUP, show=False)
    took = {name: [value(cluster, source) for _ in range(rounds)] for name, source in CELLS.items()}
    return {name: median(each) for name, each in took.items()}


def measure_pull(cluster: jaxcluster.Cluster, nbytes: int, rounds: int) -> None:
    size = nbytes // 4
    cluster.run(MAKE.format(size=size), show=False)
    view = cluster.client[:]
    ours, theirs = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        value = cluster["x"]
        ours.append(time.perf_counter() - began)
        assert value[-1] == size - 1
        began = time.perf_counter()
        view.execute("_shards = shards(x)", block=True)
        whole = np.empty(size, np.int32)
        for shards in view.pull("_shards", block=True):
            for index, values in shards:
                whole[index] = values
        theirs.append(time.perf_counter() - began)
    speed = f"{nbytes / median(ours) / 2**30:.1f} GiB/s"
    rows = [[f"{nbytes >> 20} MiB", speed, of_theirs(ours, theirs)]]
    table(["a pull of", "speed", "time, of ipyparallel's"], rows)


def measure_skips(cluster: jaxcluster.Cluster, nbytes: int) -> None:
    """Also how long a restart takes that keeps ``nbytes`` on the cards."""
    rows = []
    for what, source in (
        ("a collective", "if rank: print(float(total(x)))"),
        ("a new program", "if rank: print(float(total(x * {n})))"),
    ):
        took = []
        for n in range(3):
            cluster.run(SETUP, show=False)
            began = time.perf_counter()
            try:
                cluster.run(source.format(n=n + 2), show=False)
            except Divergence:
                took.append(time.perf_counter() - began)
        rows.append([f"a rank skips {what}", f"{median(took):.1f} s"])
    began = time.perf_counter()
    cluster.restart()
    rows.append([f"a restart, {nbytes >> 20} MiB kept", f"{time.perf_counter() - began:.1f} s"])
    table(["what", "until its error"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024, help="of the array (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="of cells (default: %(default)s)")
    args = parser.parse_args()
    cards = find_cards()
    if isinstance(cards, str) or cards.num_ranks < 2:
        sys.exit(cards if isinstance(cards, str) else cards.why_one)
    with sandbox():
        began = time.perf_counter()
        with cards.start("gpu") as cluster:
            print(f"{cluster!r}, after {time.perf_counter() - began:.1f} s")
            nbytes = args.megabytes << 20
            measure_cells(cluster, args.rounds)
            agreed = measure_launches(cluster, args.rounds)
            measure_pull(cluster, nbytes, 5)
            measure_skips(cluster, nbytes)
        os.environ["JAXCLUSTER_AGREE"] = "0"
        with cards.start("plain") as cluster:
            plain = measure_launches(cluster, args.rounds)
        rows = [
            [name, f"{us:.0f}", f"{plain[name]:.0f}", f"{us / plain[name]:.2f}"]
            for name, us in agreed.items()
        ]
        table(["us", "agreed", "plain", "ratio"], rows)


if __name__ == "__main__":
    main()
