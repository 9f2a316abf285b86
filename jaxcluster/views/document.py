"""The layouts as JSON: what ``static/shardview`` draws in widgets, panels and saved notebooks.

A document has ``v``, ``kind`` and what that kind has. The page's types are made of these: see
``panel.protocol``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, TypedDict

from jaxcluster.model.layout import ArrayLayout, Bounds, CheckResult, Device, TreeLayout
from jaxcluster.views import arrays, formatting
from jaxcluster.views.blocks import Block, Rank

VERSION = 1
MIME = "application/vnd.jaxcluster.shards+json"
MAX_SHARDS = 50_000  # of all layouts of a tree together; past it leaves open on demand only

DeviceRow = tuple[int, int, str, str, str, list[int] | None]
"""Id, rank, label, kind, host, coordinates."""
Index = list[list[int]]
"""Of a part on each axis: [start, stop]."""
Part = tuple[Index, list[list[int]]]
"""A part of an array, and who holds it: [device, replica_id, nbytes]."""


class CheckDocument(TypedDict):
    """What a check has found.

    Attributes:
      lines: the same in words.
      odd: shards that differ from most copies: leaf, index, [rank, device] of each.
      bad: shards with NaN or infinite values: leaf, index, rank, device, how many of each.
    """

    ok: bool
    lines: list[str]
    odd: list[tuple[str, Index, list[list[int]]]]
    bad: list[tuple[str, Index, int, int, int, int]]


class Layout(TypedDict):
    """Which device holds what of an array.

    Attributes:
      spec: the PartitionSpec in short.
      mesh: name and size of each axis of its mesh.
      split: for each axis of the array, the mesh axes that cut it.
      gaps: what no device holds.
      parts: None where there are too many: they are asked for.
      per_device: the most bytes that one device holds.
    """

    name: str
    shape: list[int]
    dtype: str
    type: str
    nbytes: int
    sharding: str
    spec: str
    mesh: list[tuple[str, int]]
    split: list[list[str]]
    headline: str
    facts: list[str]
    gaps: list[Index]
    parts: list[Part] | None
    per_device: int


class ArrayDocument(Layout):
    """An array with its devices.

    Attributes:
      values: how the ranks print it, in the output of a cell; else "".
    """

    v: int
    kind: Literal["array"]
    devices: list[DeviceRow]
    check: CheckDocument | None
    values: Annotated[str, "Missing in older notebooks."]


class TreeDocument(TypedDict):
    """A pytree.

    Attributes:
      rows: path, which of ``layouts``, and how many leaves are alike.
    """

    v: int
    kind: Literal["tree"]
    name: str
    type: str
    leaves: int
    nbytes: int
    per_device: int
    notes: list[str]
    rows: list[tuple[list[str], int, int]]
    layouts: list[Layout]
    devices: list[DeviceRow]
    check: CheckDocument | None


class TableDocument(TypedDict):
    """A table. A cell that is a pair says of which rank it is.

    Attributes:
      more: what is left out.
    """

    head: list[str]
    rows: list[list[str | tuple[int, str]]]
    more: str


class TablesDocument(TypedDict):
    """Meshes, or what each device holds: lines and tables."""

    v: int
    kind: Literal["tables"]
    blocks: list[str | TableDocument]


Document = ArrayDocument | TreeDocument | TablesDocument
"""What static/shardview draws."""


def tables(shown: Iterable[Block]) -> TablesDocument:
    """The same lines and tables of which text and HTML are made."""
    return {"v": VERSION, "kind": "tables", "blocks": [_block(block) for block in shown]}


def _block(block: Block) -> str | TableDocument:
    if isinstance(block, str):
        return block
    rows = [
        [(cell.rank, cell.text) if isinstance(cell, Rank) else cell for cell in row]
        for row in block.rows
    ]
    return {"head": list(block.head), "rows": rows, "more": block.more}


def array(layout: ArrayLayout, check: CheckResult | None = None) -> ArrayDocument:
    """An array's document, with its devices."""
    used = {shard.device for shard in layout.shards}
    return {
        "v": VERSION,
        "kind": "array",
        **_array(layout),
        "devices": _devices({id: d for id, d in layout.devices.items() if id in used}),
        "check": checked(check) if check is not None else None,
        "values": "",
    }


def _array(layout: ArrayLayout, parts: bool = True) -> Layout:
    return {
        "name": layout.name,
        "shape": list(layout.shape),
        "dtype": layout.dtype,
        "type": arrays.leaf_type(layout),
        "nbytes": layout.nbytes,
        "sharding": layout.sharding,
        "spec": arrays.leaf_spec(layout),
        "mesh": list(layout.mesh),
        "split": [list(names) for names in layout.split],
        "headline": formatting.headline(layout),
        "facts": formatting.facts(layout),
        "gaps": [_index(gap) for gap in layout.gaps],
        "parts": [
            (_index(part.index), [[s.device, s.replica_id, s.nbytes] for s in part.shards])
            for part in layout.parts
        ]
        if parts
        else None,
        "per_device": max(layout.bytes_per_device.values(), default=0),
    }


def _index(bounds: Bounds) -> Index:
    return [list(span) for span in bounds]


def _devices(devices: Mapping[int, Device]) -> list[DeviceRow]:
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


def tree(layout: TreeLayout, check: CheckResult | None = None) -> TreeDocument:
    """A pytree's document."""
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
        "rows": [(list(row.path), row.use, row.count) for row in layout.rows],
        "layouts": [_array(found, parts=small) for found in layout.layouts],
        "devices": _devices(layout.devices),
        "check": checked(check) if check is not None else None,
    }


def checked(result: CheckResult) -> CheckDocument:
    """What a check has found: in words, and which shards to mark."""
    return {
        "ok": result.ok,
        "lines": formatting.check(result),
        "odd": [
            ("".join(d.leaf), _index(d.index), [list(c) for group in d.groups[1:] for c in group])
            for d in result.differences
        ],
        "bad": [
            ("".join(b.leaf), _index(b.index), b.rank, b.device, b.nan, b.inf) for b in result.bad
        ],
    }
