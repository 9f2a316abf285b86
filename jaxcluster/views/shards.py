"""The views of arrays, meshes and memory, for every frontend.

The default display is a MIME bundle, not a widget: a saved notebook keeps it. If a frontend can't
draw its JSON, it shows the HTML or the text.

``static/shardview`` draws the JSON in widgets, panels and saved notebooks. A document has ``v``,
its ``kind``, and the fields that the function of that kind below adds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcluster.cluster import array_queries
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.views import arrays, blocks
from jaxcluster.views.blocks import Block
from jaxcluster.views.displays import Bundle
from jaxcluster.views.messages import SHARDS_MIME, Document, Question
from jaxcluster.wire import Bounds

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

VERSION = 1
MAX_SHARDS = 50_000  # in all layouts of a tree; if there are more, leaves open only on demand


def shards(cluster: Cluster, name: str, *, check: bool = False) -> Bundle:
    """The view of an array or a pytree of the ranks.

    Args:
      name: a variable, or a part of one: ``params['w']``. ``""``: what the last cell ended in.
      check: compare all copies and look for NaN, too; that reads every byte.

    Raises:
      UsageError: no rank has it, or it holds no array.
    """
    layout = array_queries.look(cluster.world, name)
    return layout_view(layout, array_queries.check(cluster.world, name) if check else None)


def layout_view(layout: ArrayLayout | TreeLayout, check: CheckResult | None = None) -> Bundle:
    """The view of a layout."""
    if isinstance(layout, TreeLayout):
        return {SHARDS_MIME: tree(layout, check), **blocks.bundle(arrays.tree(layout, check))}
    return {SHARDS_MIME: array(layout, check), **blocks.bundle(arrays.array(layout, check))}


def mesh(cluster: Cluster, name: str | None = None) -> Bundle:
    """The view of the device meshes among the ranks' variables."""
    return tables(arrays.mesh(array_queries.meshes(cluster.world, name)))


def memory(cluster: Cluster) -> Bundle:
    """The view of what every device holds."""
    return tables(arrays.memory(array_queries.memory(cluster.world)))


def tables(shown: Sequence[Block]) -> Bundle:
    """The view of lines and tables."""
    document = {"v": VERSION, "kind": "tables", "blocks": blocks.page(shown)}
    return {SHARDS_MIME: document, **blocks.bundle(shown)}


# --------------------------------------------------------------------------- documents


def array(layout: ArrayLayout, check: CheckResult | None = None) -> Document:
    """An array's document, with its devices."""
    used = {shard.device for shard in layout.shards}
    return {
        "v": VERSION,
        "kind": "array",
        **_array(layout),
        "devices": _devices({id: d for id, d in layout.devices.items() if id in used}),
        "check": _checked(check),
        "values": "",  # how the ranks print it, in the output of a cell
    }


def _array(layout: ArrayLayout, parts: bool = True) -> Document:
    """Which device holds what of it. Without the ``parts`` these are asked for."""
    return {
        "name": layout.name,
        "shape": list(layout.shape),
        "type": arrays.leaf_type(layout),
        "nbytes": layout.nbytes,
        "spec": arrays.leaf_spec(layout),
        "split": [list(names) for names in layout.split],  # the mesh axes that cut each axis
        "headline": arrays.headline(layout),
        "facts": arrays.facts(layout),
        "gaps": [_index(gap) for gap in layout.gaps],  # what no device holds
        "parts": [  # each with who holds it
            (_index(part.index), [[s.device, s.replica_id, s.nbytes] for s in part.shards])
            for part in layout.parts
        ]
        if parts
        else None,
        "per_device": max(layout.bytes_per_device.values(), default=0),
    }


def _index(bounds: Bounds) -> list[list[int]]:
    """On each axis of a part: [start, stop]."""
    return [list(span) for span in bounds]


def _devices(known: Mapping[int, Device]) -> list[tuple[Any, ...]]:
    return [
        (d.id, d.rank, arrays.devices([d.id], known), d.kind, d.host, d.coords and list(d.coords))
        for d in known.values()
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
        "notes": arrays.notes(layout),
        "rows": [(list(path), use) for path, use in layout.rows],  # which of the layouts
        "layouts": [_array(found, parts=small) for found in layout.layouts],
        "devices": _devices(layout.devices),
        "check": _checked(check),
    }


def _checked(result: CheckResult | None) -> Document | None:
    """The findings of a check: in words, and as shards to mark."""
    if result is None:
        return None
    return {
        "ok": result.ok,
        "lines": arrays.checked(result),
        "odd": [  # shards that differ from most copies: leaf, index, [rank, device] of each
            ("".join(d.leaf), _index(d.index), [list(c) for group in d.groups[1:] for c in group])
            for d in result.differences
        ],
        "bad": [  # leaf, index, rank, device, and how many values are NaN or infinite
            ("".join(b.leaf), _index(b.index), b.rank, b.device, b.nan, b.inf) for b in result.bad
        ],
    }


# --------------------------------------------------------------------------- on demand


def answer(cluster: Cluster, name: str, question: Question) -> Any:
    """The answer to a widget's request, as JSON: stats, peek, check or look."""
    world = cluster.world  # its ranks as they are now
    about, rank, device = question.name or name, question.rank, question.device
    match question.op:
        case "stats":
            found = array_queries.statistics(world, about, rank, device)
            return dataclasses.asdict(found) if found else None
        case "peek":
            values = array_queries.peek(world, about, rank, device, question.start, question.stop)
            return {"shape": list(values.shape), "values": spell(values)}
        case "check":
            return _checked(array_queries.check(world, about))
        case "look":
            return shards(cluster, about)[SHARDS_MIME]


def spell(values: np.ndarray[Any, Any]) -> list[str]:
    """Values as short texts: JSON has no NaN, and a reader wants no 17 digits."""
    flat: Sequence[Any] = values.reshape(-1).tolist()
    return [f"{v:.5g}" if isinstance(v, float | complex) else str(v) for v in flat]
