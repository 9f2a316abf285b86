"""Pull an array that is sharded over n processes: ``cluster["x"]`` against numpy and ipyparallel.

On the same array on the same ranks: in turn jaxcluster's pull and numpy's copy of as many bytes
within this process. Each round has a ratio of its own, since other work slows both: a wide spread
says that the machine was busy. Then what one would write with ipyparallel alone: pull every rank's
list of addressable shards and assemble them here. Each result is compared with the expected values.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import median, ratio, sandbox, table

import jaxcluster

PAUSE_S = 0.3  # in which the ranks end what the way before has left to them
MAKE = """\
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ('i',))
x = jax.make_array_from_callback(
    ({size},), NamedSharding(mesh, P('i')),
    lambda index: np.arange(*index[0].indices({size})[:2], dtype=np.int32))
x.block_until_ready()
def shards(array):
    return [(s.index, np.asarray(s.data)) for s in array.addressable_shards if s.replica_id == 0]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="processes (default: %(default)s)")
    parser.add_argument("-d", type=int, default=2, help="devices per process (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=256, help="of int32 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=21, help="of all ways (%(default)s)")
    args = parser.parse_args()
    size = args.megabytes * 2**20 // 4
    expected = np.arange(size, dtype=np.int32)
    with sandbox(), jaxcluster.start(args.n, devices_per_process=args.d) as cluster:
        cluster.run(MAKE.format(size=size))
        view = cluster.client[:]

        def pull() -> Any:
            return cluster["x"]

        def copy() -> Any:
            return expected.copy()

        def pull_with_ipyparallel() -> Any:
            view.execute("_shards = shards(x)", block=True)
            whole = np.empty(size, np.int32)
            for shards in view.pull("_shards", block=True):
                for index, values in shards:
                    whole[index] = values
            view.execute("del _shards", block=True)
            return whole

        ways: dict[str, Callable[[], Any]] = {
            "numpy copy of the bytes": copy,
            'cluster["x"]': pull,
            "ipyparallel: shards pulled, assembled": pull_with_ipyparallel,
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        pairs, times = [*ways.items()], range(-3, args.rounds)
        # ipyparallel's last: it leaves pages free on this machine that are slow to come back.
        rounds = [(n, way) for some in (pairs[:2], pairs[2:]) for n in times for way in some]
        for number, (name, way) in rounds:
            time.sleep(PAUSE_S)
            began = time.perf_counter()
            value = way()
            seconds = time.perf_counter() - began
            if number < 0:
                np.testing.assert_array_equal(value, expected)
            else:
                took[name].append(seconds)
            del value
            # ipyparallel's client keeps every result that it ever got.
            cluster.client.purge_everything()
        base, ours, theirs = (median(values) for values in took.values())
        rows = [
            [
                name,
                f"{median(values) * 1e3:.0f}",
                f"{min(values) * 1e3:.0f}",
                f"{args.megabytes / median(values):.0f}",
                f"{median(values) / base:.1f}",
            ]
            for name, values in took.items()
        ]
        header = [f"{args.megabytes} MB over {args.n} processes", "p50 ms", "best ms", "MB/s"]
        table([*header, "of numpy"], rows)
        ratio('ipyparallel\'s pull / cluster["x"]', theirs / ours, 3, at_least=True)
        copies, pulls, _ = took.values()
        each = sorted(pulled / copied for copied, pulled in zip(copies, pulls, strict=True))
        spread = f"{each[len(each) // 10]:.2f} to {each[-(len(each) // 10) - 1]:.2f}"
        print(f"of {len(each)} rounds' own ratios, p10 to p90: {spread}")
        ratio('cluster["x"] / numpy copy, median of the rounds', median(each), 1.6)


if __name__ == "__main__":
    main()
