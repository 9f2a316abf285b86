"""What a cluster costs while nobody runs a cell, beside as many bare processes of JAX.

All are idle at once, in the same minutes: a kernel whose cluster is open in the panel, a bare
kernel, and bare processes that have initialized JAX and computed one sum together. A rank is an
idle process of JAX, too: gloo, which carries collectives between CPU processes, looks for messages
100 times a second, and gRPC has timers of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
from harness import Kernel, is_ours, sandbox, table

from jaxcluster.plan.placement import CPU_NPROC

BARE = """
import sys, time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
address, n, rank = sys.argv[1:]
jax.distributed.initialize(address, int(n), int(rank))
multihost_utils.process_allgather(jnp.ones(1))
print("ready", flush=True)
time.sleep(100_000)
"""
SUM = """\
%%spmd
from jax.experimental import multihost_utils
import jax.numpy as jnp
_ = multihost_utils.process_allgather(jnp.ones(1))
"""


@contextlib.contextmanager
def bare_processes(n: int) -> Iterator[list[int]]:
    """Their pids, once they have computed the sum."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "NPROC": str(CPU_NPROC)}
    words = [sys.executable, "-c", BARE, address, str(n)]
    started = [
        subprocess.Popen(
            [*words, str(rank)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if "ready\n" not in process.stdout:  # reads on until it is there; gloo writes, too
                raise RuntimeError("a bare process has ended")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def cpu_s(pid: int) -> float:
    """What a process's threads have run so far, to the nanosecond."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def pid_of(kernel: Kernel) -> int:
    return int(kernel.run("import os; print(os.getpid())").text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="ranks and processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="to look at (%(default)g)")
    args = parser.parse_args()
    with sandbox() as folder, Kernel() as kernel, Kernel() as plain:
        kernel.run("%load_ext jaxcluster")
        kernel.run(f"%jaxcluster start -n {args.n}")
        kernel.run(SUM)
        kernel.open_panel()
        told = kernel.run("import jaxcluster\nprint(*jaxcluster.current().record.pids)").text
        ranks = [*map(int, told.split())]
        with bare_processes(args.n) as bare:
            kinds = {
                pid_of(kernel): "kernel",
                pid_of(plain): "bare kernel",
                os.getpid(): "this benchmark",
                **dict.fromkeys(ranks, "ranks"),
                **dict.fromkeys(bare, "bare processes"),
            }
            others = [p.pid for p in psutil.process_iter() if is_ours(p, folder)]
            kinds = dict.fromkeys(others, "the cluster's other processes") | kinds
            time.sleep(15)  # what a start leaves to do, as to end what was preloaded
            before = {pid: cpu_s(pid) for pid in kinds}
            time.sleep(args.seconds)
            used: Counter[str] = Counter()
            for pid, kind in kinds.items():
                used[kind] += (cpu_s(pid) - before[pid]) * 60 / args.seconds
        kernel.run("%jaxcluster stop --all")
        del used["this benchmark"]
        rows = [[kind, f"{1e3 * seconds:.0f}"] for kind, seconds in used.most_common()]
        table(["idle", "ms of CPU a minute"], rows)
        cluster = used["ranks"] + used["the cluster's other processes"]
        cluster += used["kernel"] - used["bare kernel"]
        print(f"a cluster / {args.n} bare processes: {cluster / used['bare processes']:.2f}x")


if __name__ == "__main__":
    main()
