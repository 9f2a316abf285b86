"""``%shards``: time and bytes for a tree of 2,000 leaves on 4 processes, and for 64 ranks' reports.

python benchmarks/bench_shards.py
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import layouts

import jaxcluster
from jaxcluster import wire
from jaxcluster.cluster import array_queries
from jaxcluster.model import layout
from jaxcluster.views import blocks, shards
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.arrays import Arrays

LEAVES = 2000
REPEATS = 7

TREE = f"""
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("data", "model"))
def make(shape, *spec):
    zeros = np.zeros(shape, np.float32)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, P(*spec)), lambda i: zeros[i])
params = {{
    f"layer{{i}}": {{
        "kernel": make((64, 64), "data", "model"),
        "bias": make((64,), "model"),
        "scale": make((64,)),
        "up": make((64, 128), None, ("data", "model")),
    }}
    for i in range({LEAVES // 4})
}}
distinct = [make((8 + i % 500, 8)) for i in range({LEAVES})]
x = params["layer0"]["kernel"]
"""


def median_ms(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def kib(nbytes: int) -> str:
    return f"{nbytes / 1024:.0f} KiB"


def sizes(view: shards.View) -> str:
    document, html = len(json.dumps(view.document)), len(blocks.html(view.blocks))
    return f"{kib(document)} JSON, {kib(html)} HTML, {kib(len(view.text))} text"


def wire_nbytes(cluster: jaxcluster.Cluster, name: str) -> int:
    answers = replies(cluster.world.ask(range(cluster.num_processes), Arrays(name, [])))
    return sum(len(wire.encode("reply", "", reply)) for reply in answers.values())


def main() -> None:
    with jaxcluster.start(4, devices_per_process=2) as cluster:
        cluster.run(TREE)
        for name, what in (
            ("x", "one array"),
            ("params", f"{LEAVES:,} leaves, 4 layouts"),
            ("distinct", f"{LEAVES:,} leaves, 500 layouts"),
        ):
            look = median_ms(lambda name=name: cluster.layout(name))
            view = median_ms(lambda name=name: shards.shards(cluster, name))
            moved = kib(wire_nbytes(cluster, name))
            print(f"4 ranks, {what}: layout {look:.1f} ms, view {view:.1f} ms")
            print(f"    {moved} from the ranks; {sizes(shards.shards(cluster, name))}")
        check = median_ms(lambda: array_queries.check(cluster.world, "params"))
        print(f"4 ranks, check of {LEAVES:,} leaves: {check:.0f} ms")
        print(f"4 ranks, memory: {median_ms(lambda: array_queries.memory(cluster.world)):.0f} ms")
    reports, known = layouts.tree(LEAVES, ranks=64, per_rank=8)
    tree: Any = layout.tree_layout("params", reports, known)
    join = median_ms(lambda: layout.tree_layout("params", reports, known))
    shown = median_ms(lambda: shards.layout_view(tree))
    received = kib(sum(len(wire.encode("reply", "", report)) for report in reports.values()))
    print(f"64 ranks x 8 devices, {LEAVES:,} leaves: join {join:.0f} ms, view {shown:.0f} ms")
    print(f"    {received} from the ranks; {sizes(shards.layout_view(tree))}")
    array = layouts.array((512, 64), {"a": 512, "b": 8}, ("a", "b"), ranks=512)
    shown = median_ms(lambda: shards.layout_view(array))
    print(f"4,096 devices, one array: view {shown:.0f} ms; {sizes(shards.layout_view(array))}")


if __name__ == "__main__":
    main()
