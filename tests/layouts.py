"""Ranks' reports of arrays as JAX makes them, for any number of ranks, without running any.

``NamedSharding``'s rule: devices in the mesh's row-major order; each mesh axis that a
PartitionSpec names cuts an axis of the array; the others replicate. tests/ranks/test_shards.py
holds it against real clusters.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster import array_queries
from jaxcluster.model import layout

Spec = Sequence[str | tuple[str, ...] | None]


def devices(
    ranks: int, per_rank: int, ranks_per_host: int = 8, stride: int = 2048
) -> dict[int, layout.Device]:
    """CPU devices: rank r has ids r * 2048, r * 2048 + 1..."""
    return {
        rank * stride + i: layout.Device(
            rank * stride + i, rank, "cpu", "cpu", f"host-{rank // ranks_per_host:02}"
        )
        for rank in range(ranks)
        for i in range(per_rank)
    }


def named(
    known: dict[int, layout.Device],
    shape: Sequence[int],
    mesh: dict[str, int],
    spec: Spec,
    dtype: str = "float32",
    itemsize: int = 4,
    **changes: Any,
) -> dict[int, wire.ArrayInfo]:
    """Each rank's report of an array with a NamedSharding over all of ``known``."""
    padded = [*spec, *[None] * (len(shape) - len(spec))]
    split = [(p,) if isinstance(p, str) else tuple(p or ()) for p in padded]
    copies: Counter[wire.Bounds] = Counter()
    shards: dict[int, list[wire.Shard]] = {d.rank: [] for d in known.values()}
    for device, at in zip(
        known.values(), itertools.product(*map(range, mesh.values())), strict=True
    ):
        where = dict(zip(mesh, at, strict=True))
        index = []
        for size, axes in zip(shape, split, strict=True):
            block, blocks = 0, 1
            for axis in axes:
                block, blocks = block * mesh[axis] + where[axis], blocks * mesh[axis]
            step = -(-size // blocks)
            index.append((min(size, block * step), min(size, (block + 1) * step)))
        nbytes = itemsize * layout.volume(key := tuple(index))
        shards[device.rank].append(wire.Shard(device.rank, device.id, key, nbytes, copies[key]))
        copies[key] += 1
    words = ", ".join(f"'{name}': {size}" for name, size in mesh.items())
    printed = f"P({', '.join(map(repr, spec))}{',' * (len(spec) == 1)})"
    whole = wire.ArrayInfo(
        tuple(shape),
        dtype,
        spans=len(shards) > 1,
        nbytes=itemsize * math.prod(shape),
        mesh=tuple(mesh.items()),
        sharding=f"NamedSharding(mesh=Mesh({words}), spec={printed}, memory_kind=device)",
        spec=printed,
        split=tuple(split),
    )
    return {rank: replace(whole, shards=tuple(held), **changes) for rank, held in shards.items()}


def array(
    shape: Sequence[int],
    mesh: dict[str, int],
    spec: Spec,
    ranks: int = 4,
    name: str = "x",
    **changes: Any,
) -> layout.ArrayLayout:
    """The layout of such an array on so many ranks."""
    known = devices(ranks, math.prod(mesh.values()) // ranks)
    return layout.array_layout(name, named(known, shape, mesh, spec, **changes), known)


def tree(
    leaves: int, ranks: int = 4, per_rank: int = 2
) -> tuple[dict[int, wire.ValueReport], dict[int, layout.Device]]:
    """The ranks' reports of a transformer-like tree of so many leaves."""
    known = devices(ranks, per_rank)
    mesh = {"data": ranks, "model": per_rank}
    looks = [
        named(known, (512, 512), mesh, ("data", "model")),
        named(known, (512,), mesh, ("model",)),
        named(known, (512, 2048), mesh, (None, ("data", "model"))),
        named(known, (), mesh, ()),
    ]
    words = ["['kernel']", "['bias']", "['up']", "['scale']"]
    paths = [("['layers']", f"[{i // 4}]", words[i % 4]) for i in range(leaves)]
    return {
        rank: wire.ValueReport(
            "dict",
            leaves=paths,
            use=[i % 4 for i in range(leaves)],
            infos=[look[rank] for look in looks],
        )
        for rank in range(ranks)
    }, known


def mesh(ranks: int = 4, per_rank: int = 2) -> array_queries.Meshes:
    """What ranks tell of one mesh of all their devices."""
    known = devices(ranks, per_rank)
    sizes, types = [ranks, per_rank], ["Auto", "Auto"]
    info = wire.MeshInfo("mesh", ["data", "model"], sizes, types, list(known))
    return array_queries.Meshes((info,), known)


def memory(ranks: int, silent: dict[int, str] | None = None) -> array_queries.Memory:
    """What ranks with two devices tell of two variables; the second device has a limit."""
    reports = {
        rank: wire.MemoryReport(
            [rank * 2048, rank * 2048 + 1],
            {"params": [3 << 20, 2 << 20], "x": [1 << 20, 0]},
            [1 << 19, 0],
            [None, 4 << 20],
            [None, 16 << 20],
        )
        for rank in range(ranks)
    }
    return array_queries.Memory(reports, devices(ranks, 2), silent or {})
