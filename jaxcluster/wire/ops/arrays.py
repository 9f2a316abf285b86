"""What ranks are asked of their arrays. None of it waits for the main thread.

``path`` leads from a variable to a part of it; the name "" is the last cell's result.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.wire.ops import Message, Operation


class ShardInfo(Message):
    """One addressable shard."""

    device: int
    index: list[list[int]]  # its place in the whole: [start, stop] for each axis
    replica_id: int
    nbytes: int


class ArrayInfo(Message):
    """One rank's view of one array."""

    shape: list[int]
    dtype: str
    sharding: str  # as JAX prints it
    spans: bool  # other processes hold parts of it
    shards: list[ShardInfo]
    ready: bool = True
    note: str = ""  # why there are no shards: deleted, a tracer, not a jax.Array
    kind: str = ""  # the sharding's class
    axis_names: list[str] = field(default_factory=list)  # of its mesh
    axis_sizes: list[int] = field(default_factory=list)
    spec: str = ""  # the PartitionSpec as JAX prints it
    split: list[list[str]] = field(default_factory=list)  # the mesh axes that cut each axis
    memory_kind: str = ""
    committed: bool = True
    nbytes: int = 0  # of the whole array
    on: str = ""  # a hash of its devices' ids: a rank with all of them knows no other's copies


class ValueReport(Message):
    """What one rank says of a variable, or of a part of it: a pytree of arrays.

    One array is a tree of one leaf whose path is empty. Leaves that look alike share an entry of
    ``infos``: leaf ``i`` is at ``paths[i]`` and looks like ``infos[use[i]]``.
    """

    rank: int
    type: str
    note: str = ""  # why there is nothing to show
    hint: str = ""
    paths: list[list[str]] = field(default_factory=list)  # none unless they were asked for
    use: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # leaves that each stands for, in a huge tree
    infos: list[ArrayInfo] = field(default_factory=list)
    digest: str = ""  # equal on the ranks whose paths are equal
    copies: list[Any] = field(default_factory=list)  # ``values.Hashes``, as far as a look reaches


class ShardCheck(Message):
    """What one shard holds: statistics of its finite values, and a hash of its bytes."""

    leaf: list[str]  # the path of its array in the variable
    device: int
    index: list[list[int]]
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


class NamedBytes(Message):
    """What one variable holds on each of ``MemoryReport.devices``."""

    name: str
    nbytes: list[int]


class MemoryReport(Message):
    """What a rank's live arrays hold on its devices; a buffer of several names counts once."""

    rank: int
    devices: list[int]
    names: list[NamedBytes]
    other: list[int]  # live arrays that no variable reaches
    in_use: list[int | None]  # by the allocator, where the platform says so
    limit: list[int | None]
    rss_nbytes: int = 0  # of the process


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
