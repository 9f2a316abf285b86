"""What ranks are asked of their arrays. None of it waits for the main thread.

``path`` leads from a variable to a part of it; the name "" is the last cell's result.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation


class ShardInfo(Message):
    """One addressable shard: its place in the whole, as [start, stop] per axis."""

    device: int
    index: list[list[int]]
    replica_id: int
    nbytes: int


class ArrayInfo(Message):
    """One rank's view of one array. ``spans`` says that other processes hold parts of it.

    ``sharding`` is as JAX prints it and ``kind`` its class. A mesh's axes are ``axis_names`` and
    ``axis_sizes``; ``spec`` is the PartitionSpec as JAX prints it, and ``split`` names for each
    axis of the array the mesh axes that cut it. ``nbytes`` is the whole array's. ``note`` says why
    there are no shards: deleted, a tracer, not a jax.Array. ``on`` is a hash of the ids of its
    devices: a rank that has all of them does not know that other processes have the array too.
    """

    shape: list[int]
    dtype: str
    sharding: str
    spans: bool
    shards: list[ShardInfo]
    ready: bool = True
    note: str = ""
    kind: str = ""
    axis_names: list[str] = field(default_factory=list)
    axis_sizes: list[int] = field(default_factory=list)
    spec: str = ""
    split: list[list[str]] = field(default_factory=list)
    memory_kind: str = ""
    committed: bool = True
    nbytes: int = 0
    on: str = ""


class ValueReport(Message):
    """What one rank says of a variable, or of a part of it: a pytree of arrays.

    One array is a tree of one leaf whose path is empty. Leaves that look alike share an entry of
    ``infos``: leaf ``i`` is at ``paths[i]``, looks like ``infos[use[i]]`` and stands for
    ``counts[i]`` leaves (more than one where a huge tree was folded). ``digest`` is equal on the
    ranks whose paths are equal; those that were not asked for their paths send none. ``note`` says
    why there is nothing to show. ``copies``: (leaf, part, hash) of parts that other processes have
    too, as far as a look reaches.
    """

    rank: int
    type: str
    note: str = ""
    hint: str = ""
    paths: list[list[str]] = field(default_factory=list)
    use: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    infos: list[ArrayInfo] = field(default_factory=list)
    digest: str = ""
    copies: list[Any] = field(default_factory=list)


class ShardCheck(Message):
    """What one shard holds: statistics of its finite values, and a hash of its bytes.

    ``leaf`` is the path of its array in the variable. The numbers are None where none is finite or
    the dtype is not numeric.
    """

    leaf: list[str]
    device: int
    index: list[list[int]]
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    nan: int = 0
    inf: int = 0
    size: int = 0
    digest: str = ""


class MeshInfo(Message):
    """A device mesh: ``devices`` are ids in row-major order of ``axis_sizes``."""

    name: str
    axis_names: list[str]
    axis_sizes: list[int]
    axis_types: list[str]
    devices: list[int]


class NamedBytes(Message):
    """What one variable holds on each device, in bytes; parallel to ``MemoryReport.devices``."""

    name: str
    nbytes: list[int]


class MemoryReport(Message):
    """What a rank's live arrays hold on its devices; a buffer of several names counts once.

    ``other`` are live arrays that no variable reaches. ``in_use`` and ``limit`` are the
    allocator's, where the platform tells them. ``rss_nbytes`` is the process's, and
    ``available_nbytes`` its host's.
    """

    rank: int
    devices: list[int]
    names: list[NamedBytes]
    other: list[int]
    in_use: list[int | None]
    limit: list[int | None]
    rss_nbytes: int = 0
    available_nbytes: int = 0


class VariableInfo(Message):
    """A variable that is an array or a pytree of arrays, as a list of variables shows it.

    Attributes:
      type: "array", or the type of a pytree: "dict of 12 arrays", whose ``shape`` is None.
      sharding: the PartitionSpec in short, or what else the sharding is called.
      nbytes_per_device: the most that one device holds of it.
    """

    name: str
    type: str
    shape: list[int] | None
    dtype: str
    sharding: str
    nbytes: int
    nbytes_per_device: int


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


class Peeked(Message):
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
