"""What ranks are asked of their arrays. None of it waits for the main thread.

``path`` leads from a variable to a part of it; the name "" is the last cell's result.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxcluster.wire.messages import (
    MemoryReport,
    MeshInfo,
    ShardCheck,
    ValueReport,
    VariableInfo,
)
from jaxcluster.wire.ops import Operation


class Arrays(Operation[ValueReport], op="arrays"):
    """Every array in a variable and where its shards are; with the ``paths`` where these are."""

    name: str
    path: list[str]
    paths: bool


class CheckShards(Operation[list[ShardCheck]], op="check_shards"):
    """Statistics of this rank's shards, or of those on a device, and ``hash``es of their bytes."""

    name: str
    path: list[str]
    device: int | None = None
    hash: bool = False


@dataclass(frozen=True)
class Peeked:
    """What the buffer is."""

    shape: list[int]
    dtype: str


class Peek(Operation[Peeked], op="peek"):
    """Some values of the shard on a device: from where to where, counted from its own corner."""

    name: str
    path: list[str]
    device: int
    start: list[int]
    stop: list[int]


class Meshes(Operation[list[MeshInfo]], op="meshes"):
    """The device meshes among this rank's variables, and those of its arrays."""


class Memory(Operation[MemoryReport], op="memory"):
    """What is held on each device of this rank, by variable."""


class Variables(Operation[list[VariableInfo]], op="variables"):
    """The arrays and pytrees of arrays among its variables."""
