"""What it takes to put the profiles of many ranks together, and how surely a laggard is named.

The profiles are made up, as ranks send them: so many slices as a notebook asks for, and steps with
collectives in them. ``--live`` runs real ranks: one of them 50 ms late, then all of them alike.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import median, sandbox, table

import jaxcluster
from jaxcluster import wire
from jaxcluster.cluster import profiling
from jaxcluster.model import arrivals, profile
from jaxcluster.model.stragglers import Made

STEP_S, COLLECTIVES = 0.02, 16  # of a step
SPAN_S = 10.0
SETUP = """import jax, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
x = jax.device_put(np.ones((jax.device_count(), 64)), NamedSharding(mesh, PartitionSpec("i")))
total = jax.jit(lambda x: (x * x).sum())
float(total(x))
"""
LOOP = """for number in range(40):
    time.sleep(0.002 + {late} * (rank == {rank}))
    float(total(x))
"""

Packed = tuple[wire.ProfileTracks, list[bytes]]


def made_up(rank: int, ranks: int, late_s: float, seed: int) -> tuple[Packed, list[Made]]:
    """The profile of one rank, and its launches, by a clock of its host."""
    own, common = np.random.default_rng([seed, rank]), random.Random(seed)
    count, every_s = profile.most_slices(ranks), STEP_S + late_s  # the others wait for the laggard
    starts = np.sort(own.integers(0, int(1e9 * SPAN_S), count))
    # Of a few tracks, on each of which one ends before the next begins.
    columns = [np.arange(count) % 4, own.integers(0, 400, count), starts, np.full(count, 1000)]
    launch = wire.Launch(0, ",".join(map(str, range(ranks))), "jit(step)", 1, 4, 6, cell_seq=3)
    made, runs = [], []
    for step in range(int(SPAN_S / every_s)):
        begin = 1e9 * (every_s * step + 0.002 * common.random()) + 1e6 * own.exponential()
        begin += 1e9 * late_s * (rank == 1)
        made.append(Made(launch.processes, step, begin / 1e9, launch))
        for number in range(COLLECTIVES):
            at = begin + 1e6 * number
            runs.append((number, 1000 + step, 0, 0, at, at + 5e5))
    table_of = np.array(runs).T
    columns += [*table_of]
    kinds = (*wire.SLICE_COLUMNS, *wire.COLLECTIVE_COLUMNS)
    told = wire.ProfileTracks(
        rank, 1, [f"operation {k}" for k in range(400)], [f"device {k}" for k in range(4)],
        [["jit_step", f"all-reduce.{k}"] for k in range(COLLECTIVES)],
    )  # fmt: skip
    packed = [column.astype(kind).tobytes() for column, kind in zip(columns, kinds, strict=True)]
    return (told, packed), made


def merge(ranks: int, late_s: float, seed: int) -> tuple[float, float, profile.Profile, int]:
    """(seconds, of a processor, what is found, bytes of the trace)."""
    sent = {rank: made_up(rank, ranks, late_s, seed) for rank in range(ranks)}
    made = {rank: launches for rank, (_, launches) in sent.items()}
    hosts = {rank: f"host {rank // 8}" for rank in range(ranks)}
    clocks = arrivals.Clocks(hosts, dict.fromkeys(hosts.values(), (0.0, 0.0005)))
    names = {rank: f"rank {rank}" for rank in range(ranks)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.gz"
        began, cpu = time.perf_counter(), time.process_time()
        found = {rank: arrivals.unpacked(*packed) for rank, (packed, _) in sent.items()}
        told, processes = profile.put_together(found, clocks, made, names, 3)
        profiling.write(path, processes)
        took = time.perf_counter() - began, time.process_time() - cpu
        return *took, told, path.stat().st_size


def is_named(found: profile.Profile, *ranks: int) -> bool:
    """Whether these keep the others waiting, and nobody else; without any: nobody."""
    return (found.straggler.ranks if found.straggler is not None else ()) == ranks


def live(rounds: int) -> list[tuple[str, str]]:
    """How often the laggard was named, and how often somebody where all are alike."""
    named, wrong = 0, 0
    with (
        sandbox(),
        tempfile.TemporaryDirectory() as folder,
        jaxcluster.start(4, devices_per_process=1, platform="cpu") as cluster,
    ):
        cluster.run(SETUP, show=False)
        for number in range(rounds):
            rank = number % 4
            found = cluster.profile(LOOP.format(late=0.05, rank=rank), folder)
            named += is_named(found, rank)
            wrong += not is_named(cluster.profile(LOOP.format(late=0, rank=rank), folder))
    return [
        ("a laggard of 50 ms is named", f"{named} of {rounds}"),
        ("somebody is named in an even run", f"{wrong} of {rounds}"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=64, help="ranks that are made up (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each (%(default)s)")
    parser.add_argument("--live", type=int, default=0, help="rounds on real ranks (%(default)s)")
    args = parser.parse_args()
    late = [merge(args.n, 0.05, seed) for seed in range(args.rounds)]
    even = [merge(args.n, 0.0, seed) for seed in range(args.rounds)]
    named = sum(is_named(found, 1) for *_, found, _ in late)
    wrong = sum(not is_named(found) for *_, found, _ in even)
    wall_s, cpu_s = (median([one[at] for one in late]) for at in (0, 1))
    rows = [
        ("slices of each rank", f"{profile.most_slices(args.n):,}"),
        (f"{args.n} ranks x {SPAN_S:g} s put together", f"{wall_s:.1f} s"),
        ("of a processor", f"{cpu_s:.1f} s"),
        ("the trace", f"{late[0][3] / 1e6:.0f} MB"),
        ("a laggard of 50 ms is named", f"{named} of {args.rounds}"),
        ("somebody is named in an even run", f"{wrong} of {args.rounds}"),
    ]
    table(("made up", ""), rows)
    if args.live:
        table(("on 4 ranks", ""), live(args.live))


if __name__ == "__main__":
    main()
