"""The layouts as JSON: what ``static/shardview`` draws in widgets, panels and saved notebooks.

A document has ``v``, its ``kind``, and what the function of that kind below puts into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.views import arrays, formatting
from jaxcluster.views.blocks import Block, Rank
from jaxcluster.wire import Bounds

VERSION = 1
MIME = "application/vnd.jaxcluster.shards+json"
MAX_SHARDS = 50_000  # of all layouts of a tree together; past it leaves open on demand only

Document = dict[str, Any]
Index = list[list[int]]  # of a part on each axis: [start, stop]


def tables(shown: Iterable[Block]) -> Document:
    """The same lines and tables of which text and HTML are made."""
    return {"v": VERSION, "kind": "tables", "blocks": [_block(block) for block in shown]}


def _block(block: Block) -> str | dict[str, Any]:
    """A cell of a table that is a pair says of which rank it is."""
    if isinstance(block, str):
        return block
    rows = [
        [(cell.rank, cell.text) if isinstance(cell, Rank) else cell for cell in row]
        for row in block.rows
    ]
    return {"head": list(block.head), "rows": rows, "more": block.more}


def array(layout: ArrayLayout, check: CheckResult | None = None) -> Document:
    """An array's document, with its devices."""
    used = {shard.device for shard in layout.shards}
    return {
        "v": VERSION,
        "kind": "array",
        **_array(layout),
        "devices": _devices({id: d for id, d in layout.devices.items() if id in used}),
        "check": checked(check) if check is not None else None,
        "values": "",  # how the ranks print it, in the output of a cell
    }


def _array(layout: ArrayLayout, parts: bool = True) -> dict[str, Any]:
    """Which device holds what of it. Without the ``parts`` these are asked for."""
    return {
        "name": layout.name,
        "shape": list(layout.shape),
        "dtype": layout.dtype,
        "type": arrays.leaf_type(layout),
        "nbytes": layout.nbytes,
        "sharding": layout.sharding,
        "spec": arrays.leaf_spec(layout),
        "mesh": list(layout.mesh),  # name and size of each of its axes
        "split": [list(names) for names in layout.split],  # the mesh axes that cut each axis
        "headline": formatting.headline(layout),
        "facts": formatting.facts(layout),
        "gaps": [_index(gap) for gap in layout.gaps],  # what no device holds
        "parts": [  # each with who holds it
            (_index(part.index), [[s.device, s.replica_id, s.nbytes] for s in part.shards])
            for part in layout.parts
        ]
        if parts
        else None,
        "per_device": max(layout.bytes_per_device.values(), default=0),
    }


def _index(bounds: Bounds) -> Index:
    return [list(span) for span in bounds]


def _devices(devices: Mapping[int, Device]) -> list[tuple[Any, ...]]:
    return [
        (
            d.id,
            d.rank,
            formatting.device(d, d.id),
            d.kind,
            d.host,
            list(d.coords) if d.coords else None,
        )
        for d in devices.values()
    ]


def tree(layout: TreeLayout, check: CheckResult | None = None) -> Document:
    """A pytree's document."""
    small = sum(len(found.shards) for found in layout.layouts) <= MAX_SHARDS
    return {
        "v": VERSION,
        "kind": "tree",
        "name": layout.name,
        "type": layout.type,
        "leaves": len(layout.rows),
        "nbytes": layout.nbytes,
        "per_device": max(layout.bytes_per_device.values(), default=0),
        "notes": formatting.notes(layout),
        "rows": [(list(path), use) for path, use in layout.rows],  # which of the layouts
        "layouts": [_array(found, parts=small) for found in layout.layouts],
        "devices": _devices(layout.devices),
        "check": checked(check) if check is not None else None,
    }


def checked(result: CheckResult) -> dict[str, Any]:
    """What a check has found: in words, and which shards to mark."""
    return {
        "ok": result.ok,
        "lines": formatting.check(result),
        "odd": [  # shards that differ from most copies: leaf, index, [rank, device] of each
            ("".join(d.leaf), _index(d.index), [list(c) for group in d.groups[1:] for c in group])
            for d in result.differences
        ],
        "bad": [  # leaf, index, rank, device, and how many values are NaN or infinite
            ("".join(b.leaf), _index(b.index), b.rank, b.device, b.nan, b.inf) for b in result.bad
        ],
    }
