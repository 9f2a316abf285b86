"""The layouts as JSON: what ``static/shardview`` draws in widgets, panels and saved notebooks.

A document has ``v``, ``kind`` and what that kind has. A device is
``[id, rank, label, kind, host, coords]``, a part ``[index, [[device, replica_id, nbytes], ...]]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcluster.cluster.array_queries import Memory, Meshes
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.views import formatting, plain

VERSION = 1
MIME = "application/vnd.jaxcluster.shards+json"
MAX_SHARDS = 50_000  # of all layouts of a tree together; past it leaves open on demand only

Document = dict[str, Any]


def array(layout: ArrayLayout, check: CheckResult | None = None) -> Document:
    """An array's document, with its devices."""
    used = {shard.device for shard in layout.shards}
    return {
        "v": VERSION,
        "kind": "array",
        **_array(layout),
        "devices": _devices({id: d for id, d in layout.devices.items() if id in used}),
        "check": checked(check) if check is not None else None,
    }


def _array(layout: ArrayLayout, parts: bool = True) -> Document:
    return {
        "name": layout.name,
        "shape": list(layout.shape),
        "dtype": layout.dtype,
        "type": plain.leaf_type(layout),
        "nbytes": layout.nbytes,
        "sharding": layout.sharding,
        "spec": plain.leaf_spec(layout),
        "mesh": [list(axis) for axis in layout.mesh],
        "split": [list(names) for names in layout.split],
        "spans": layout.spans,
        "headline": formatting.headline(layout),
        "facts": formatting.facts(layout),
        "gaps": [[list(span) for span in gap] for gap in layout.gaps],
        "parts": [
            [
                [list(span) for span in part.index],
                [[s.device, s.replica_id, s.nbytes] for s in part.shards],
            ]
            for part in layout.parts
        ]
        if parts
        else None,
        "per_device": max(layout.bytes_per_device.values(), default=0),
    }


def _devices(devices: Mapping[int, Device]) -> list[list[Any]]:
    return [
        [
            d.id,
            d.rank,
            formatting.device(d, d.id),
            d.kind,
            d.host,
            list(d.coords) if d.coords else None,
        ]
        for d in devices.values()
    ]


def tree(layout: TreeLayout, check: CheckResult | None = None) -> Document:
    """A pytree's document: rows of ``[path, layout, count]``, and the layouts that they share."""
    small = sum(len(found.shards) for found in layout.layouts) <= MAX_SHARDS
    return {
        "v": VERSION,
        "kind": "tree",
        "name": layout.name,
        "type": layout.type,
        "leaves": layout.leaves,
        "nbytes": layout.nbytes,
        "per_device": max(layout.bytes_per_device.values(), default=0),
        "notes": formatting.notes(layout),
        "rows": [[list(row.path), row.use, row.count] for row in layout.rows],
        "layouts": [_array(found, parts=small) for found in layout.layouts],
        "devices": _devices(layout.devices),
        "check": checked(check) if check is not None else None,
    }


def checked(result: CheckResult) -> Document:
    """What a check has found: in words, and which shards to mark."""
    return {
        "ok": result.ok,
        "lines": formatting.check(result),
        "odd": [
            ["".join(d.leaf), [list(span) for span in d.index], [list(c) for c in copies]]
            for d in result.differences
            for copies in [[copy for group in d.groups[1:] for copy in group]]
        ],
        "bad": [
            ["".join(b.leaf), [list(span) for span in b.index], b.rank, b.device, b.nan, b.inf]
            for b in result.bad
        ],
    }


def mesh(found: Meshes) -> Document:
    """All meshes, and the devices that they are made of."""
    return {
        "v": VERSION,
        "kind": "mesh",
        "meshes": [
            {
                "name": info.name,
                "headline": plain.mesh_headline(info),
                "axis_names": info.axis_names,
                "axis_sizes": info.axis_sizes,
                "devices": info.devices,
            }
            for info in found.meshes
        ],
        "devices": _devices(found.devices),
        "notes": [f"Rank {rank}: {word}" for rank, word in found.reasons.items()],
    }


def memory(found: Memory) -> Document:
    """A bar for each device (rank, device, named, total, limit), and the variables by size."""
    return {
        "v": VERSION,
        "kind": "memory",
        "bars": [list(bar) for bar in plain.device_bars(found)],
        "names": [list(row) for row in plain.variable_rows(found)],
        "hosts": [
            [rank, report.rss_nbytes, report.available_nbytes]
            for rank, report in found.reports.items()
        ],
        "devices": _devices(found.devices),
        "notes": [f"Rank {rank}: {word}" for rank, word in found.reasons.items()],
    }
