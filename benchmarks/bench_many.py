"""256 hosts of one rank each: the notebook's own work.

python benchmarks/bench_many.py [--hosts 256]

The hosts are played by one process (``tests/manyhosts``): real agents' sockets, keys and sessions,
ranks without jax, and an ``ssh`` that is a script. So what is measured is what the notebook's
process does, in seconds of its processors' time; the wall's time has the played side in it, which
shares this machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from harness import sandbox, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from manyhosts import ManyHosts

import jaxcluster
from jaxcluster.errors import Divergence
from jaxcluster.notebook.panel.model import AutoMode, Model

NOOPS = 20
LAUNCHES = 300  # of each rank: more than a look takes
MIB = 1 << 20


class Figures:
    """Rows of the table: (what, the processors' time, the wall's, bar)."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def time(self, what: str, bar_s: float | None, do: Callable[[], Any], times: int = 1) -> None:
        """Measure something, in seconds where its bar is that long, else in milliseconds."""
        cpu, wall = [], []
        for _ in range(times):
            began, clock = time.process_time(), time.perf_counter()
            do()
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - clock)
        told = [_told(statistics.median(values)) for values in (cpu, wall)]
        bar = ""
        if bar_s is not None:
            bar = f"<= {_told(bar_s)}"
            bar += " ok" if statistics.median(cpu) <= bar_s else " MISSED"
        self.rows.append([what, *told, bar])


def _told(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=256, help="%(default)s")
    args = parser.parse_args()
    with sandbox(), ManyHosts(args.hosts) as hosts:
        measure(hosts)


def measure(hosts: ManyHosts) -> None:
    """One cluster's life, printed as a table."""
    figures, made = Figures(), []
    before, threads = _memory(), threading.active_count()
    figures.time(
        "start", 5.0, lambda: made.append(jaxcluster.start(timeout_s=300, **hosts.options))
    )
    cluster = made[0]
    with cluster:
        cluster.run("pass", show=False)
        figures.time("no-op cell", 0.06, lambda: cluster.run("pass", show=False), NOOPS)
        figures.time(
            "cell in which each rank prints", None, lambda: cluster.run("# prints", show=False), 5
        )
        cluster.run(f"# launches {LAUNCHES}", show=False)
        figures.time(
            "a look at the last 256 launches",
            0.1,
            lambda: cluster.world.look(256, timeout_s=60),
            5,
        )

        def skip() -> None:
            with contextlib.suppress(Divergence):
                cluster.run(f"import jax\ns = jnp.sum(x)  # skipped by {min(17, last)}", show=False)

        last = hosts.num_hosts - 1
        figures.time("a launch that one rank skips: found and told", None, skip)
        _measure_panel(cluster, figures)
        more, files = _memory() - before, len(os.listdir("/proc/self/fd"))
        new = threading.active_count() - threads
        figures.time("stop", None, cluster.stop)
    table([f"{hosts.num_hosts} hosts of one rank", "processors", "wall", "bar"], figures.rows)
    met = "ok" if more <= 200 * MIB else "MISSED"
    print(f"memory of the notebook's process: {more / MIB:.0f} MiB more, bar 200 {met}")
    print(f"threads of ours: {new}; files open: {files}")


def _measure_panel(cluster: jaxcluster.Cluster, figures: Figures) -> None:
    """What the kernel's side of the sidebar does for one change: the state made and encoded."""
    model = Model(AutoMode())
    model.look()
    cluster.status()
    model.look()

    def change() -> None:
        shown, cells = model.take_in()
        msgspec.json.encode([shown, *cells])

    figures.time("sidebar: a state made and encoded", 0.05, change, NOOPS)


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
