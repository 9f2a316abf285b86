"""How long variables take to come to other ranks on hosts.

Two hosts, which are namespaces of this machine (``tests/rig``): root and sshd are needed. An array
that is cut over all ranks, and values of each rank's own. Hosts read from each other, and all that
they need is brought through the notebook, in turn; the same cluster does both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from harness import median, ratio, table

import jaxcluster
from jaxcluster.hosts.states import HostStates

ROOT = Path(__file__).parents[1]
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
def part(index):
    return np.arange(*index[0].indices(ROWS)[:2], dtype="f4")[:, None] + np.zeros((1, 256), "f4")
x = [jax.make_array_from_callback((ROWS, 256), split, part) for _ in range(16)]
own, both = np.full(1 << 20, 7, "u1"), {"a": 1}
"""
CHECK = """
for one in x:
    for s in one.addressable_shards:
        assert (np.asarray(s.data) == part(s.index)).all()
"""
WAYS = ("from host to host", "through the notebook")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="of the array (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print("=" + json.dumps(measure(args.mib << 20, args.rounds)))
        return
    found = on_the_rig(args.mib, args.rounds)
    rows = [
        [what, *(f"{median(by[way]):.2f}" for way in WAYS), f"{max(by[WAYS[0]]):.2f}"]
        for what, by in found.items()
    ]
    table([f"{args.mib} MiB, s", *WAYS, "slowest of the first"], rows)
    for what, by in found.items():
        ratio(what, median(by[WAYS[0]]) / median(by[WAYS[1]]), 0.5)


def on_the_rig(mib: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from rig import Rig, start_ssh

    with Rig() as rig:
        start_ssh(rig)
        env = {"JAX_PLATFORMS": "cpu", "JAXCLUSTER_SHARED_DIR": str(rig.shared)}
        command = (rig.python, Path(__file__).resolve(), "--inside")
        more = ("--mib", str(mib), "--rounds", str(rounds))
        done = rig["h0"].run(*command, *more, env=env, check=False, timeout_s=1200)
    line = next((s for s in done.stdout.splitlines() if s.startswith("=")), "")
    if not line:
        sys.exit(f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    print(done.stderr, file=sys.stderr)
    found: dict[str, dict[str, list[float]]] = json.loads(line[1:])
    return found


def measure(nbytes: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """On h0: seconds, by what is done and by the way."""
    found: dict[str, dict[str, list[float]]] = {}

    def timed(what: str, way: str, do: Callable[[], object]) -> None:
        ways = mock.patch.object(HostStates, "_way", lambda *_: {})
        with ways if way == WAYS[1] else contextlib.nullcontext():
            began = time.perf_counter()
            told = do()
            took = time.perf_counter() - began
        found.setdefault(what, {}).setdefault(way, []).append(took)
        print(f"{what}, {way}: {took:.2f} s. {told}", file=sys.stderr, flush=True)
        cluster.run(CHECK, show=False)

    with jaxcluster.start(4, launcher="ssh", hosts="h1:2,h2:2") as cluster:
        cluster.run(f"ROWS = {(nbytes >> 14) // 12 * 12}\n{SETUP}", show=False)
        for _ in range(rounds):
            for way in WAYS:
                timed("4 -> 2 ranks", way, lambda: cluster.restart(num_processes=2))
                timed("2 -> 4 ranks", way, lambda: cluster.restart(num_processes=4))
                timed("4 -> 3 ranks", way, lambda: cluster.restart(num_processes=3))
                cluster.restart(num_processes=4)
            # With nothing to bring: what is left is saving, and the new processes.
            print(f"restart: {cluster.restart()}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
