"""Time from ``%jaxcluster start`` to the first ``%%spmd`` result, against bare python scripts.

Both sides run in turn: n bare processes that import jax, initialize and compute a global sum; then
in a fresh kernel (up, extension loaded) the first start, a second start after a stop, a restart.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time

from harness import Kernel, median, ratio, sandbox, table

COMPUTE = """\
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh(({n}, {d}), ('i', 'j'))
x = np.arange({n} * {d} * 4).reshape({n}, -1)
x = jax.device_put(x, NamedSharding(mesh, P('i', 'j')))
print('RESULT', jax.process_count(), f'{{float(jnp.sum(jnp.sin(x))):.4f}}', flush=True)
"""

BARE = """\
import sys
import jax
jax.config.update('jax_num_cpu_devices', {d})
jax.distributed.initialize(sys.argv[1], {n}, int(sys.argv[2]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def result_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("RESULT")]
    if not lines:
        raise RuntimeError(f"no result in:\n{text}")
    return lines[0].strip()


def bare(script: str, n: int) -> tuple[float, str]:
    """Seconds until all of n bare scripts have printed their result, and the result."""
    address = f"127.0.0.1:{free_port()}"
    began = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, address, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        results = []
        for process in processes:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")  # gloo prints some before
            results.append(next((line for line in lines if line.startswith("RESULT")), ""))
        seconds = time.perf_counter() - began
    finally:
        for process in processes:  # their own exit would wait for one another
            process.kill()
            process.communicate()
    return seconds, result_line(results[0])


def timed(kernel: Kernel, magic: str, cell: str) -> tuple[float, float, str]:
    """Seconds of the magic and of the first cell after it, and the cell's result."""
    started = kernel.run(magic)
    first = kernel.run(cell)
    return started.seconds, first.seconds, result_line(first.text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="processes (default: %(default)s)")
    parser.add_argument("-d", type=int, default=2, help="devices per process (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of all sides (%(default)s)")
    args = parser.parse_args()
    n, d = args.n, args.d
    compute = COMPUTE.format(n=n, d=d)
    script = BARE.format(n=n, d=d) + compute
    start = f"%jaxcluster start -n {n} --devices-per-process {d}"
    bares: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {}
    with sandbox():
        bare(script, n)  # the first of all reads files into the page cache
        for _ in range(args.rounds):
            seconds, expected = bare(script, n)
            bares.append(seconds)
            with Kernel() as kernel:
                kernel.run("%load_ext jaxcluster")
                for name, magic in (
                    ("first start in a kernel", start),
                    ("second start", start),
                    ("restart", "%jaxcluster restart"),
                ):
                    magic_s, cell_s, result = timed(kernel, magic, "%%spmd\n" + compute)
                    if result != expected:
                        raise RuntimeError(f"{name}: {result!r}, bare scripts: {expected!r}")
                    times.setdefault(name, []).append((magic_s, cell_s))
                    if name != "second start":
                        kernel.run("%jaxcluster stop")
        base = median(bares)
        rows = [[f"{n} bare python scripts", f"{base:.2f}", "", "", f"{min(bares):.2f}", "1.00"]]
        ratios = {}
        for name, pairs in times.items():
            totals = [a + b for a, b in pairs]
            ratios[name] = median(totals) / base
            parts = [f"{median([p[i] for p in pairs]):.2f}" for i in (0, 1)]
            total = f"{median(totals):.2f}"
            rows.append([name, total, *parts, f"{min(totals):.2f}", f"{ratios[name]:.2f}"])
        header = ["until the first result", "median s", "magic", "cell", "best s", "ratio"]
        table(header, rows)
        for name, value in ratios.items():
            ratio(f"{name} / bare", value, 1.2 if name.startswith("first") else 0.5)


if __name__ == "__main__":
    main()
