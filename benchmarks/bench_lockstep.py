"""What the lockstep guarantees cost, and how soon a session is whole again after a hang.

Three comparisons, each of whose sides run in turn:

1. A launch of a program that spans processes, with the journal against JAX alone (the same launches
   in plain python processes), with two devices a process and with one, without and with a
   collective. All keep JAX's fast path. It is the CPU time of the thread that launches: what the
   devices' threads do is not counted, nor what waits for a core. With one device a launch with a
   collective runs inline: that thread is then the device's.
   Two processes are never alike, so the fast path's cost is also measured within a rank: the same
   function compiled twice, recorded and not.
2. The same launches in one cluster with strict mode off and on.
3. A cell that hangs because a rank skips a collective: until it is diagnosed, until it has ended
   with the ranks back in lockstep, and until the next right result; against stock ipyparallel,
   whose user finds out alone, restarts the engines and initializes JAX again (and has lost all
   values).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from bench_start import free_port
from harness import median, sandbox, table

import jaxcluster

SETUP = '''\
import time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ('i',))
split = NamedSharding(mesh, P('i'))
def spread(values):
    return jax.make_array_from_callback(values.shape, split, lambda index: values[index])
g = spread(np.arange(64.0))
add = jax.jit(lambda x: x + 1)
total = jax.jit(lambda x: x.sum())
add(g).block_until_ready()
total(g).block_until_ready()
def launches_us(batches, size, clock, step=add):
    """The median cost; few enough at once that none waits until an earlier one is done."""
    took = []
    for _ in range(batches):
        began = clock()
        for _ in range(size):
            y = step(g)
        took.append((clock() - began) / size * 1e6)
        y.block_until_ready()
    return sorted(took)[len(took) // 2]
'''

# Within a rank: batches of a function that is recorded, and of one whose fast path is JAX's own.
PAIRED = """\
from jax._src import pjit
def paired(step, batches, size):
    ours, functions = pjit._get_fastpath_data, []
    for get_data in (ours.__wrapped__, ours):
        functions.append(jax.jit(lambda x: step(x)))
        pjit._get_fastpath_data = get_data
        try:
            jax.block_until_ready([functions[-1](g), functions[-1](g)])
        finally:
            pjit._get_fastpath_data = ours
    took = [], []
    for _ in range(batches):
        for own, function in zip(took, functions):
            own.append(launches_us(1, size, time.thread_time, function))
    return [sorted(own)[batches // 2] for own in took]
"""

# With what jaxcluster gives its ranks in the environment (see placement.CPU_NPROC).
BARE = """\
import sys
import jax
jax.config.update('jax_num_cpu_devices', {d})
jax.distributed.initialize(sys.argv[1], {n}, int(sys.argv[2]))
{setup}
from jax.experimental import multihost_utils
launches_us(5, {size}, time.thread_time, {step})
multihost_utils.sync_global_devices('begin')
print('RESULT', launches_us({batches}, {size}, time.thread_time, {step}), flush=True)
multihost_utils.sync_global_devices('end')
"""


def bare_launch_us(n: int, d: int, batches: int, size: int, step: str) -> float:
    """The median cost of a launch in n plain processes."""
    script = BARE.format(n=n, d=d, setup=SETUP, batches=batches, size=size, step=step)
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, address, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NPROC": "16"},
            text=True,
        )
        for rank in range(n)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [line for line in outputs[0].splitlines() if line.startswith("RESULT")]
    if not lines:
        raise RuntimeError(f"the plain processes gave no result:\n{outputs[0]}")
    return float(lines[0].split()[1])


def cluster_launch_us(
    cluster: jaxcluster.Cluster,
    batches: int,
    size: int,
    clock: str = "perf_counter",
    step: str = "add",
) -> float:
    cluster.run(f"launches_us(5, {size}, time.{clock}, {step})", show=False)
    cell = f"print(launches_us({batches}, {size}, time.{clock}, {step}))"
    return float(cluster.run(cell, show=False).stdout())


def measure_journal(n: int, rounds: int) -> None:
    rows = []
    for d in (2, 1):
        with jaxcluster.start(n, devices_per_process=d) as cluster:
            cluster.run(SETUP, show=False)
            for step, kind, batches in (
                ("add", "no collective", 500),
                ("total", "a collective", 100),
            ):
                plain, recorded = [], []
                for _ in range(rounds):
                    plain.append(bare_launch_us(n, d, batches, 16, step))
                    recorded.append(cluster_launch_us(cluster, batches, 16, "thread_time", step))
                a, b = median(plain), median(recorded)
                ratio = f"{b / a:.2f}"
                rows.append([f"D = {d}, {kind}", f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", ratio])
    table(["a launch, us of CPU", "JAX alone", "with the journal", "more", "ratio"], rows)


def measure_hook(n: int, batches: int) -> None:
    rows = []
    for d in (2, 1):
        with jaxcluster.start(n, devices_per_process=d) as cluster:
            cluster.run(SETUP + PAIRED, show=False)
            for step, kind in (("x + 1", "no collective"), ("x.sum()", "a collective")):
                source = f"print(*paired(lambda x: {step}, {batches}, 16))"
                record = cluster.run(source, show=False)
                for rank in range(n):
                    a, b = map(float, record.stdout(rank).split())
                    what = f"D = {d}, {kind}, rank {rank}"
                    rows.append([what, f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}"])
    table(["fast path, us of CPU", "not recorded", "recorded", "more"], rows)


def measure_strict(n: int, rounds: int) -> None:
    rows = []
    for d in (2, 1):
        off: list[float] = []
        strict: list[float] = []
        with jaxcluster.start(n, devices_per_process=d) as cluster:
            for _ in range(rounds):
                for took in (off, strict):
                    cluster.strict(took is strict)
                    cluster.run(SETUP, show=False)
                    took.append(cluster_launch_us(cluster, 10, 16))
            cluster.strict(False)
        a, b = median(off) / 1e3, median(strict) / 1e3
        rows.append([f"D = {d}", f"{a:.3f}", f"{b:.2f}", f"{b - a:+.2f}"])
    table(["a launch, ms", "strict off", "strict on", "more"], rows)


# ------------------------------------------------------------------------------------ after a hang


def hang_jaxcluster(cluster: jaxcluster.Cluster) -> list[float]:
    """Seconds until the diagnosis, until the cell has ended, and until the next right result."""
    began = time.perf_counter()
    cell = cluster.submit("if jax.process_index() != 1:\n    s = float(jnp.sum(g))")
    cell.run_in_background(lambda record: None)
    while cell.report is None:
        time.sleep(0.005)
    diagnosed = time.perf_counter() - began
    try:
        cell.wait()
        raise RuntimeError("the cell did not fail")
    except jaxcluster.JaxClusterError:
        ended = time.perf_counter() - began
    check_sum(cluster.run("print(float(jnp.sum(g)))", show=False).stdout())
    return [diagnosed, ended, time.perf_counter() - began]


STOCK_INITIALIZE = """\
import jax
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', {d})
jax.distributed.initialize('{address}', {n}, rank)
"""


class Stock:
    """An ipyparallel cluster as it comes, with JAX initialized on its engines by hand."""

    def __init__(self, n: int, d: int) -> None:
        import ipyparallel

        os.environ["NPROC"] = "16"
        self.n, self.d = n, d
        self.cluster = ipyparallel.Cluster(log_level=40)
        self.client = self.cluster.start_and_connect_sync(n=n)
        self.initialize()

    def initialize(self) -> None:
        ids = sorted(self.client.ids)[-self.n :]
        self.view = self.client[ids]
        self.view.scatter("rank", range(self.n), flatten=True, block=True)
        address = f"127.0.0.1:{free_port()}"
        code = STOCK_INITIALIZE.format(n=self.n, d=self.d, address=address)
        self.view.execute(code, block=True)
        self.view.execute(SETUP, block=True)

    def hang(self) -> float:
        """Seconds from the decision to restart, the hang being known, to the next right result."""
        self.view.execute("if rank != 1:\n    s = float(jnp.sum(g))", block=False)
        time.sleep(1)
        old = set(self.client.ids)
        began = time.perf_counter()
        self.cluster.restart_engines_sync()
        while len(set(self.client.ids) - old) < self.n:
            time.sleep(0.01)
        self.initialize()
        self.view.execute("total = float(jnp.sum(g))", block=True)
        check_sum(str(self.view.pull("total", targets=max(self.client.ids), block=True)))
        return time.perf_counter() - began

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


def check_sum(text: str) -> None:
    if float(text) != sum(range(64)):
        raise RuntimeError(f"a wrong sum: {text}")


def measure_hang(n: int, rounds: int) -> None:
    ours: list[list[float]] = []
    theirs: list[float] = []
    stock = Stock(n, 2)
    try:
        with jaxcluster.start(n, devices_per_process=2) as cluster:
            cluster.run(SETUP, show=False)
            cluster.run("float(jnp.sum(g))", show=False)
            for _ in range(rounds):
                ours.append(hang_jaxcluster(cluster))
                theirs.append(stock.hang())
    finally:
        stock.stop()
    diagnosed, ended, right = (median([row[i] for row in ours]) for i in range(3))
    restarted = median(theirs)
    table(
        ["a skipped collective, s after the cell began", "jaxcluster", "stock ipyparallel"],
        [
            ["told which rank and line", f"{diagnosed:.2f}", "never"],
            ["the cell has ended, ranks in lockstep", f"{ended:.2f}", "never"],
            ["the next right result", f"{right:.2f}", f"{restarted:.2f} *"],
            ["variables", "kept", "lost"],
        ],
    )
    print(
        "* after the user has decided to restart: restart_engines_sync, initialize, values made "
        f"again. {restarted / right:.1f}x as long."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=4, help="ranks, of 2 and 3 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each comparison (%(default)s)")
    parts = ("journal", "hook", "strict", "hang")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts)
    args = parser.parse_args()
    with sandbox():
        if "journal" in args.only:
            measure_journal(2, args.rounds)
        if "hook" in args.only:
            print()
            measure_hook(2, 60 * args.rounds)
        if "strict" in args.only:
            print()
            measure_strict(args.n, args.rounds)
        if "hang" in args.only:
            print()
            measure_hang(args.n, args.rounds)


if __name__ == "__main__":
    main()
