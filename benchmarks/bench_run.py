"""What `jaxcluster run` costs a script that trains: its steps, beside those of bare processes.

    python benchmarks/bench_run.py [--rounds 5] [--steps 300] [--num-processes 2]
                                   [--devices-per-process 2] [--width 256]

The same script runs in turn as bare processes, which initialize JAX themselves, and with
``jaxcluster run``. Each tells the CPU time and the wall time of its steps after the first ones; on
a busy machine the CPU time is what can be compared. All of it is one machine's.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxcluster.plan.placement import CPU_NPROC

TRAIN = """
import os, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

steps, width = int(sys.argv[1]), int(sys.argv[2])
if not jax.distributed.is_initialized():
    jax.distributed.initialize(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
mesh = jax.make_mesh((jax.device_count(),), ("data",))
batch = NamedSharding(mesh, P("data"))
rows = np.random.default_rng(0).normal(size=(64 * jax.device_count(), width)).astype("float32")
x = jax.make_array_from_callback(rows.shape, batch, lambda at: rows[at])
key = jax.random.key(0)
params = [jax.random.normal(key, (width, width)) / 16 for _ in range(4)]
params = jax.tree.map(lambda w: jax.make_array_from_callback(
    w.shape, NamedSharding(mesh, P()), lambda at: np.asarray(w)[at]), params)

def loss(params, x):
    y = x
    for w in params:
        y = jnp.tanh(y @ w)
    return jnp.mean((y - x) ** 2)

@jax.jit
def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

for _ in range(20):
    params, value = step(params, x)
float(value)
wall, cpu = time.perf_counter(), time.process_time()
for number in range(steps):
    params, value = step(params, x)
    if number % 10 == 0:
        print("loss", float(value))
float(value)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
if jax.process_index() == 0:
    print("STEPS", cpu / steps * 1e3, wall / steps * 1e3, flush=True)
"""


def steps_of(output: str) -> tuple[float, float]:
    """(CPU, wall) milliseconds of a step."""
    (line,) = [line for line in output.splitlines() if line.startswith("STEPS")]
    return float(line.split()[1]), float(line.split()[2])


def bare(script: Path, steps: int, width: int, n: int, d: int) -> tuple[float, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, str(script), str(steps), str(width), address, str(n)]
    # NPROC: as a start has it on CPU, so that XLA's thread pools are of one size.
    chosen = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(d), "NPROC": str(CPU_NPROC)}
    env = {**os.environ, **chosen}
    running = [
        subprocess.Popen([*words, str(rank)], env=env, stdout=subprocess.PIPE, text=True)
        for rank in range(n)
    ]
    outputs = [one.communicate()[0] for one in running]
    return steps_of(outputs[0])


def ours(script: Path, steps: int, width: int, n: int, d: int) -> tuple[float, float]:
    words = ["run", "-n", str(n), "--platform", "cpu", "--devices-per-process", str(d)]
    done = subprocess.run(
        [sys.executable, "-m", "jaxcluster", *words, str(script), str(steps), str(width)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return steps_of(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--devices-per-process", type=int, default=2)
    parser.add_argument("--width", type=int, default=256, help="of the model's layers")
    args = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {"bare processes": [], "jaxcluster run": []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        ranks = args.num_processes, args.devices_per_process
        for number in range(args.rounds):
            ways = [("bare processes", bare), ("jaxcluster run", ours)]
            for name, way in ways if number % 2 == 0 else reversed(ways):
                times[name].append(way(script, args.steps, args.width, *ranks))
                cpu, wall = times[name][-1]
                print(f"{name}: {cpu:.3f} ms CPU, {wall:.3f} ms a step", flush=True)
    for what, column in (("CPU time", 0), ("wall time", 1)):
        ran, bare_ones = times["jaxcluster run"], times["bare processes"]
        ratios = [a[column] / b[column] for a, b in zip(ran, bare_ones, strict=True)]
        best = min(t[column] for t in ran) / min(t[column] for t in bare_ones)
        print(
            f"{what} of a step, jaxcluster run to bare processes: "
            f"{statistics.median(ratios):.3f} (median of {args.rounds} pairs, {min(ratios):.3f} to "
            f"{max(ratios):.3f}), {best:.3f} (best of each)"
        )
    print("load average:", *os.getloadavg())


if __name__ == "__main__":
    main()
