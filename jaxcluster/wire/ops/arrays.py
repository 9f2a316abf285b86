"""Requests to ranks about their arrays. None of it waits for the main thread.

``path`` leads from a variable to a part of it; the name "" is the last cell's result.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation

Bounds = tuple[tuple[int, int], ...]  # (start, stop) for each axis


class Shard(Message):
    """One device's copy of one part of an array."""

    rank: int
    device: int
    index: Bounds  # the part's place in the whole
    nbytes: int
    replica_id: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.index)


class ArrayInfo(Message):
    """An array, and the shards of it that are known: one rank's, or all ranks' in a layout."""

    shape: tuple[int, ...]
    dtype: str
    spans: bool = False  # processes share one array; otherwise each rank has another
    shards: tuple[Shard, ...] = ()
    nbytes: int = 0  # of the whole array
    note: str = ""  # why there are no shards: deleted, not a jax.Array
    ready: bool = True
    sharding: str = ""  # as JAX prints it
    mesh: tuple[tuple[str, int], ...] = ()  # its axes' names and sizes
    spec: str = ""  # the PartitionSpec as JAX prints it
    split: tuple[tuple[str, ...], ...] = ()  # for each axis of the array, the mesh axes that cut it
    on: str = ""  # a hash of its devices' ids: a rank with all of them knows no other's copies


class ValueReport(Message):
    """One rank's report of a variable, or of a part of it: a pytree of arrays.

    One array is a tree of one leaf. Leaves that look alike share an entry of ``infos``: the leaf at
    the ``i``th path of ``leaves`` looks like ``infos[use[i]]``.
    """

    type: str
    leaves: list[tuple[str, ...]] = field(default_factory=list)
    use: list[int] = field(default_factory=list)
    infos: list[ArrayInfo] = field(default_factory=list)
    copies: list[Any] = field(default_factory=list)  # ``values.Hashes``, as far as a look reaches


class ShardCheck(Message):
    """The content of one shard: statistics of its finite values, and a hash of its bytes."""

    leaf: tuple[str, ...]  # the path of its array in the variable
    rank: int
    device: int
    index: Bounds
    minimum: float | None = None  # None: no value is finite, or the dtype is not numeric
    maximum: float | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0
    size: int = 0
    digest: str = ""


class MeshInfo(Message):
    """A device mesh."""

    name: str
    axis_names: list[str]
    axis_sizes: list[int]
    axis_types: list[str]
    devices: list[int]  # ids in row-major order of the sizes


class MemoryReport(Message):
    """The bytes of a rank's live arrays on its devices; a buffer of several names counts once."""

    devices: list[int]
    names: dict[str, list[int]]  # what each variable holds on each of the devices
    other: list[int]  # live arrays that no variable reaches
    in_use: list[int | None]  # by the allocator, where the platform says so
    limit: list[int | None]


class Arrays(Operation[ValueReport], op="arrays"):
    """Every array in a variable and where its shards are."""

    name: str
    path: list[str]


class CheckShards(Operation[list[ShardCheck]], op="check_shards"):
    """Statistics of this rank's shards, or of those on a device, and ``hash``es of their bytes."""

    name: str
    path: list[str]
    device: int | None = None
    hash: bool = False


class Piece(Message):
    """The meaning of a reply's buffer: the values at these of the asked positions, by number."""

    where: list[list[int]]
    shape: list[int]
    dtype: str


class Read(Operation[list[Piece]], op="read"):
    """The values at these positions of each axis, as far as this rank's shards have them.

    Those of a device's shard are counted from its own corner.
    """

    name: str
    path: list[str]
    at: list[list[int]]
    device: int | None = None


class Meshes(Operation[list[MeshInfo]], op="meshes"):
    """The device meshes among this rank's variables, and those of its arrays."""


class Memory(Operation[MemoryReport], op="memory"):
    """The bytes on each device of this rank, by variable."""


class Variables(Operation[dict[str, ValueReport]], op="variables"):
    """The arrays (of type "array") and pytrees of arrays among its variables, without paths."""
