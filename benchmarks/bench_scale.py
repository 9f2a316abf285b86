"""How a cluster grows: start, no-op cell and memory at 4 to 64 engines on this machine.

Each engine has one CPU device, the least that it needs. A start begins without a fork server; a
restart finds one. Memory is the proportional set size (PSS), which shares out common pages.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

import psutil
from harness import MARK, median, sandbox, table

import jaxcluster
from jaxcluster.hosts.here import quit_warm

COLUMNS = (
    "start s",
    "restart s",
    "stop s",
    "cell p50 ms",
    "cell p90 ms",
    "PSS/engine MB",
    "PSS of the rest MB",
)


def pss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def others(ranks: list[int]) -> list[int]:
    """The pids of the fork server, the controller and its schedulers."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == os.environ[MARK]
        except psutil.Error:
            continue
        if ours and process.pid not in {*ranks, os.getpid()}:
            found.append(process.pid)
    return found


def measure(n: int, cells: int) -> list[float]:
    """One value for each of COLUMNS."""
    quit_warm()
    began = time.perf_counter()
    cluster = jaxcluster.start(n, devices_per_process=1, timeout_s=300)
    start_s = time.perf_counter() - began
    for _ in range(5):
        cluster.run("pass", show=False)
    took = []
    for _ in range(cells):
        began = time.perf_counter()
        cluster.run("pass", show=False)
        took.append((time.perf_counter() - began) * 1e3)
    ranks = cluster.record.pids
    engine_mb = sum(pss_mb(pid) for pid in ranks) / n
    rest_mb = sum(pss_mb(pid) for pid in others(ranks))
    began = time.perf_counter()
    cluster.restart(clean=True)
    restart_s = time.perf_counter() - began
    stop_s = cluster.stop()
    p90 = sorted(took)[-(cells // 10) - 1]
    return [start_s, restart_s, stop_s, median(took), p90, engine_mb, rest_mb]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--cells", type=int, default=50, help="per size and round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="over all sizes (%(default)s)")
    args = parser.parse_args()
    measured: dict[int, list[list[float]]] = {n: [] for n in args.engines}
    with sandbox():
        for _ in range(args.rounds):
            for n in args.engines:
                measured[n].append(measure(n, args.cells))
        figures = {n: [median(v) for v in zip(*rows, strict=True)] for n, rows in measured.items()}
        rows = [[str(n), *(f"{v:.2f}" for v in values)] for n, values in figures.items()]
        table(["engines", *COLUMNS], rows)
        low, high = min(figures), max(figures)
        print(f"growth from {low} to {high} engines ({high / low:.0f} times as many):")
        for name, a, b in zip(COLUMNS, figures[low], figures[high], strict=True):
            print(f"  {name.rpartition(' ')[0]}: {b / a:.1f}x")


if __name__ == "__main__":
    main()
