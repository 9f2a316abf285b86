"""What a rank says of its variables' arrays: their shards, values, meshes and memory.

Everything here answers on a side thread while the main thread may run a cell. Addressable shards
alone are read, no computation is launched, so nothing here can wait for another rank; a value that
is still being computed is waited for, for a bounded time.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.engine.arrays import (
    Leaf,
    TooManyLeaves,
    arrays_of,
    describe,
    host_values,
    is_array,
    is_living,
    is_ready,
    is_tracer,
    leaves_of,
    numpy_view,
    parts_of,
    shard_bounds,
    shorten,
    wait_ready,
)
from jaxcluster.engine.control import Request
from jaxcluster.engine.given import hashes
from jaxcluster.engine.inspection import rss_nbytes
from jaxcluster.engine.values import BadName, Values
from jaxcluster.wire.ops.arrays import (
    Arrays,
    CheckShards,
    Memory,
    Meshes,
    Piece,
    Read,
    Variables,
)

READY_TIMEOUT_S = 5.0
MAX_ROWS = 20_000  # leaves of a tree that are told of
MAX_VARIABLES = 1000  # that are told of
LONG = 10_000  # a list that begins with so many plain values is not looked through for an array
PLAIN = (bool, int, float, complex, str, bytes, type(None))
VARIABLES_S = 1.5  # past it containers are not entered any more
CHUNK = 1 << 20  # elements at a time: statistics need no copy of a whole shard


class ArrayViews:
    """The handlers behind ``cluster.layout``, ``%shards`` and their kin."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def report(self, request: Request[Arrays]) -> wire.ValueReport:
        """``arrays``: every array in a variable and where its shards are. Never waits."""
        name, path = request.body.name, tuple(request.body.path)
        try:
            value = self.values.lookup(name)
            found = leaves_of(self._part(value, name, path))
        except BadName as error:
            why = str(error).removeprefix(f"Rank {self.values.rank}").strip(" :.")
            return wire.ValueReport(self.values.rank, "", why, error.hint)
        leaves = [leaf for _, leaf in found]
        report = wire.ValueReport(self.values.rank, type(value).__name__)
        if not any(map(is_array, leaves)):
            kinds = sorted({type(leaf).__name__ for leaf in leaves} or {report.type})
            return replace(report, note=f"holds no jax.Array, only {', '.join(kinds[:3])}")
        if len(leaves) > MAX_ROWS:
            told = f"{name or 'the last result'} has {len(leaves):,} leaves, and {MAX_ROWS:,} can"
            raise TooManyLeaves(f"{told} be shown: look at a part of it")
        looks: dict[Any, tuple[int, Any]] = {}  # those that look alike are described once
        return replace(
            report,
            leaves=[(*path, *map(str, keys)) for keys, _ in found],
            use=[looks.setdefault(likeness(leaf), (len(looks), leaf))[0] for leaf in leaves],
            infos=[describe(leaf) for _, leaf in looks.values()],
            copies=hashes([(n, leaf) for n, leaf in enumerate(leaves) if is_living(leaf)]),
        )

    def _part(self, value: Any, name: str, path: Sequence[str]) -> Any:
        for number, step in enumerate(path, 1):
            inside = {str(key): part for key, part in parts_of(value) or ()}
            if step not in inside:
                rank, part = self.values.rank, "".join(path[:number])
                raise BadName(f"Rank {rank}: {name} has no part {part}.", "")
            value = inside[step]
        return value

    def _arrays(self, name: str, path: Sequence[str]) -> Iterator[Leaf]:
        """The arrays that a request means, each ready to be read."""
        for where, array in arrays_of(self._part(self.values.lookup(name), name, path)):
            wait_ready(array, name or "the result", READY_TIMEOUT_S)
            yield (*path, *where), array

    def check(self, request: Request[CheckShards]) -> list[wire.ShardCheck]:
        """``check_shards``: statistics of this rank's shards, and hashes where asked for."""
        body, checks = request.body, []
        for path, array in self._arrays(body.name, body.path):
            for shard in array.addressable_shards:
                if body.device not in (None, shard.device.id):
                    continue
                values = host_values(shard.data)
                place = (path, self.values.rank, shard.device.id, shard_bounds(shard, array))
                digest = digest_of(values) if body.hash else ""
                checks.append(wire.ShardCheck(*place, **statistics(values), digest=digest))
        return checks

    def read(self, request: Request[Read]) -> tuple[list[Piece], list[bytes]]:
        """``read``: the values at some positions of this rank's shards."""
        body, found = request.body, []
        held = {
            shard.device.id: shard.data
            for _, array in itertools.islice(self._arrays(body.name, body.path), 1)
            for shard in array.addressable_shards
        }
        for cut in body.cuts:
            if cut.device not in held:
                raise BadName(
                    f"device {cut.device} holds no part of {body.name} on rank {self.values.rank}",
                    "%shards shows which devices hold parts.",
                )
            values = host_values(held[cut.device])
            where = [*cut.where, *map(range, values.shape[len(cut.where) :])]  # words of keys
            found.append(values[np.ix_(*where)] if where else values)
        told = [Piece(list(values.shape), str(values.dtype)) for values in found]
        return told, [np.ascontiguousarray(values).tobytes() for values in found]

    def meshes(self, request: Request[Meshes]) -> list[wire.MeshInfo]:
        """``meshes``: the device meshes among this rank's variables, and those of its arrays."""
        return list(meshes_in(dict(self.values.namespace)))

    def variables(self, request: Request[Variables]) -> list[wire.VariableInfo]:
        """``variables``: those that are arrays or hold arrays."""
        return variables(dict(self.values.namespace))

    def memory(self, request: Request[Memory]) -> wire.MemoryReport:
        """``memory``: what is held on each device of this rank, by variable."""
        return memory_report(self.values.rank, dict(self.values.namespace))


# --------------------------------------------------------------------------- trees


def likeness(leaf: Any) -> Any:
    """Equal for leaves whose descriptions are equal."""
    if not is_array(leaf):
        shape = leaf.shape if isinstance(leaf, np.ndarray) else ()
        return (type(leaf), shape, str(getattr(leaf, "dtype", "")))
    if not is_living(leaf):
        return ("gone", is_tracer(leaf), leaf.shape, leaf.dtype)
    committed = getattr(leaf, "committed", True)
    return (leaf.shape, leaf.dtype, leaf.sharding, committed, is_ready(leaf))


# --------------------------------------------------------------------------- values


def statistics(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Minimum, maximum and mean of the finite values, and how many are not finite."""
    flat = values.reshape(-1)
    found: dict[str, Any] = {"size": flat.size, "nan": 0, "inf": 0}
    low, high, total, finite = math.inf, -math.inf, 0.0, 0
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        if part.dtype.kind == "c":
            part = np.abs(part)
        elif part.dtype.kind not in "biuf":  # bfloat16 and its like are not kinds of numpy's
            try:
                part = part.astype(np.float32)
            except (TypeError, ValueError):
                return found
        if part.dtype.kind == "f":
            found["nan"] += int(np.count_nonzero(np.isnan(part)))
            found["inf"] += int(np.count_nonzero(np.isinf(part)))
            if found["nan"] or found["inf"]:
                part = part[np.isfinite(part)]
        if part.size:
            low, high = min(low, float(part.min())), max(high, float(part.max()))
            total += float(part.sum(dtype=np.float64))
            finite += part.size
    if finite:
        found |= {"minimum": low, "maximum": high, "mean": total / finite}
    return found


def digest_of(values: np.ndarray[Any, Any]) -> str:
    """A hash of the bytes: -0.0 and 0.0, or two different NaNs, are different."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return hashlib.blake2b(flat.data, digest_size=8).hexdigest()


# --------------------------------------------------------------------------- meshes


def meshes_in(namespace: dict[str, Any]) -> list[wire.MeshInfo]:
    """The meshes that variables are or carry, equal ones once, under the names that lead there."""
    import jax

    users = users_values(namespace)
    ways = [(value, name) for name, value in users]
    for name, value in users:
        for path, leaf in arrays_of(value):
            way = f"{name}{''.join(path)}.sharding.mesh"
            ways.append((getattr(leaf.sharding, "mesh", None), way))
    found: dict[Any, str] = {}
    for mesh, name in ways:
        if issubclass(type(mesh), jax.sharding.Mesh):  # whatever it says that its class is
            found.setdefault(mesh, name)
    return [
        wire.MeshInfo(
            name=name,
            axis_names=[str(axis) for axis in mesh.axis_names],
            axis_sizes=list(mesh.devices.shape),
            axis_types=[getattr(kind, "name", str(kind)) for kind in mesh.axis_types],
            devices=[device.id for device in mesh.devices.flat],
        )
        for mesh, name in found.items()
        if mesh.devices.size
    ]


# --------------------------------------------------------------------------- variables


def users_values(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A namespace without what IPython keeps in it."""
    return [
        (name, value)
        for name, value in namespace.items()
        if not name.startswith("_") and name not in ("In", "Out")
    ]


def variables(namespace: Mapping[str, Any]) -> list[wire.VariableInfo]:
    """The names that are arrays or hold arrays, in their order, for a list that a user looks at.

    It ends within about two seconds, whatever there is.
    """
    until = time.monotonic() + VARIABLES_S
    found: list[wire.VariableInfo] = []
    for name, value in users_values(namespace):
        if type(value) in (list, tuple) and all(type(part) in PLAIN for part in value[:LONG]):
            continue
        if len(found) < MAX_VARIABLES and (is_array(value) or time.monotonic() < until):
            arrays = [array for _, array in arrays_of(value)]
            found += [_variable(name, value, arrays)] if arrays else []
    return found


def _variable(name: str, value: Any, arrays: list[Any]) -> wire.VariableInfo:
    # Arrays that look alike are described once: a model has thousands of a few kinds.
    alike = Counter((array.shape, array.dtype, array.sharding) for array in arrays)
    held: Counter[int] = Counter()
    for (shape, dtype, sharding), count in alike.items():
        part = count * math.prod(sharding.shard_shape(shape)) * dtype.itemsize
        held.update(dict.fromkeys((device.id for device in sharding.device_set), part))
    count = len(arrays)
    kind = f"{type(value).__name__} of {count} array{'s' if count != 1 else ''}"
    return wire.VariableInfo(
        name=name,
        type="array" if is_array(value) else kind,
        shape=list(value.shape) if is_array(value) else None,
        dtype=_common(str(dtype) for _, dtype, _ in alike),
        sharding=_common(_spell(sharding) for _, _, sharding in alike),
        nbytes=sum(n * math.prod(shape) * dtype.itemsize for (shape, dtype, _), n in alike.items()),
        nbytes_per_device=max(held.values(), default=0),
    )


def _common(words: Iterator[str]) -> str:
    """The one word that all share, or some of them."""
    different = list(dict.fromkeys(words))
    return ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")


def _spell(sharding: Any) -> str:
    """``P('i', None)``, ``one device``, or what else it is called."""
    spec = getattr(sharding, "spec", None)
    if spec is not None:
        return shorten(str(spec)).replace("PartitionSpec(", "P(", 1)
    kind = type(sharding).__name__
    return "one device" if kind == "SingleDeviceSharding" else kind


# --------------------------------------------------------------------------- memory


@dataclass
class Buffers:
    """Live buffers by device; each is counted for whoever is first to reach it."""

    position: dict[int, int]
    seen: set[Any]

    def take(self, arrays: Iterable[Any]) -> list[int]:
        """Bytes per device of these arrays' buffers that nobody has counted yet."""
        held = [0] * len(self.position)
        for array in arrays:
            try:
                base, ready = numpy_view(array), is_ready(array)
                shards = base.addressable_shards
            except RuntimeError:  # deleted or donated, in this moment even, by the main thread
                continue
            for shard in shards:
                # The address of a buffer that is still being computed would be waited for.
                key = shard.data.unsafe_buffer_pointer() if ready else (id(base), shard.replica_id)
                where = self.position.get(shard.device.id)
                if where is not None and (where, key) not in self.seen and shard.data.nbytes:
                    self.seen.add((where, key))
                    held[where] += shard.data.nbytes
        return held


def memory_report(rank: int, namespace: dict[str, Any]) -> wire.MemoryReport:
    """Bytes that live arrays hold on this rank's devices, by variable."""
    import jax

    devices = jax.local_devices()
    buffers = Buffers({device.id: i for i, device in enumerate(devices)}, set())
    users = dict(users_values(namespace))
    # Out[7], _7 and _ keep what cells ended in
    kept = [value for name, value in namespace.items() if name not in users]
    named = [
        wire.NamedBytes(name, buffers.take(array for _, array in arrays_of(value)))
        for name, value in [*users.items(), ("Out (results of earlier cells)", kept)]
    ]
    stats = [device.memory_stats() or {} for device in devices]
    return wire.MemoryReport(
        rank=rank,
        devices=[device.id for device in devices],
        names=[entry for entry in named if any(entry.nbytes)],
        other=buffers.take(jax.live_arrays()),
        in_use=[s.get("bytes_in_use") for s in stats],
        limit=[s.get("bytes_limit") for s in stats],
        rss_nbytes=rss_nbytes(),
    )
