"""How long a rank's arrays take to be saved in shared memory and loaded, against two copies.

One process, and two new copies of the same bytes by numpy in the same rounds, in turn. All of it
is in small pages: most kernels have no others for shared memory. Where numpy gets huge pages, its
copies take a fifth of the time, which ``--huge-pages`` shows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if "--huge-pages" not in sys.argv:
    os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # numpy reads it once

import numpy as np
from harness import median, ratio, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from savednames import load, namespace, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="of all arrays (%(default)s)")
    parser.add_argument("--arrays", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--huge-pages", action="store_true", help="for numpy's copies")
    args = parser.parse_args()
    import jax

    count = (args.mib << 18) // args.arrays
    made = [np.random.default_rng(n).random(count, np.float32) for n in range(args.arrays)]
    names = namespace() | {f"x{n}": jax.device_put(one) for n, one in enumerate(made)}
    took: dict[str, list[float]] = {"copies": [], "saved": [], "loaded": []}

    def timed(what: str, do: Callable[[], object]) -> None:
        began = time.perf_counter()
        do()
        took[what].append(time.perf_counter() - began)

    for _ in range(args.rounds):
        timed("copies", lambda: [one.copy() for one in [one.copy() for one in made]])
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            timed("saved", lambda: save(names, Path(folder)))
            timed("loaded", lambda: jax.block_until_ready(list(load(Path(folder))[0].values())))
    table(
        [f"{args.mib} MiB", "median, s", "least, s"],
        [[what, f"{median(each):.3f}", f"{min(each):.3f}"] for what, each in took.items()],
    )
    pairs = zip(took["saved"], took["loaded"], took["copies"], strict=True)
    ratio("saved and loaded", median([(a + b) / c for a, b, c in pairs]), 2.0)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
