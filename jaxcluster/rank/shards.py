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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxcluster import wire
from jaxcluster.rank.arrays import (
    Leaf,
    Patience,
    Unavailable,
    arrays_of,
    bounds,
    describe,
    host_values,
    is_array,
    is_living,
    is_ready,
    leaves_of,
    parts_of,
    shorten,
)
from jaxcluster.rank.control import Request
from jaxcluster.rank.given import hashes
from jaxcluster.rank.inspection import rss_nbytes
from jaxcluster.rank.private.kinds import numpy_view
from jaxcluster.rank.values import Values
from jaxcluster.wire.ops import arrays as ops

READY_TIMEOUT_S = 5.0
MAX_ROWS = 20_000  # leaves of a tree that are told of
LONG = 10_000  # a longer list is not looked through for arrays
VARIABLES_S = 1.5  # past it containers are not entered any more
CHUNK = 1 << 20  # elements at a time: statistics need no copy of a whole shard


class ArrayViews:
    """The handlers behind ``cluster.layout``, ``%shards`` and their kin."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def report(self, request: Request[ops.Arrays]) -> wire.ValueReport:
        """``arrays``: every array in a variable and where its shards are. Never waits."""
        name, path = request.body.name, tuple(request.body.path)
        value = self.values.lookup(name)
        found = leaves_of(self._part(value, name, path))
        leaves = [leaf for _, leaf in found]
        if not any(map(is_array, leaves)):
            kinds = sorted({type(leaf).__name__ for leaf in leaves or [value]})
            raise Unavailable(f"holds no jax.Array, only {', '.join(kinds[:3])}")
        if len(leaves) > MAX_ROWS:
            told = f"{name or 'the last result'} has {len(leaves):,} leaves, and {MAX_ROWS:,} can"
            raise Unavailable(f"{told} be shown: look at a part of it")
        looks: dict[Any, tuple[int, Any]] = {}  # those that look alike are described once
        return wire.ValueReport(
            type(value).__name__,
            leaves=[(*path, *map(str, keys)) for keys, _ in found],
            use=[looks.setdefault(likeness(leaf), (len(looks), leaf))[0] for leaf in leaves],
            infos=[describe(leaf) for _, leaf in looks.values()],
            copies=hashes([(n, leaf) for n, leaf in enumerate(leaves) if is_living(leaf)]),
        )

    def _part(self, value: Any, name: str, path: Sequence[str]) -> Any:
        for number, step in enumerate(path, 1):
            inside = {str(key): part for key, part in parts_of(value) or ()}
            if step not in inside:
                raise Unavailable(f"{name} has no part {''.join(path[:number])}")
            value = inside[step]
        return value

    def _arrays(self, name: str, path: Sequence[str]) -> Iterator[Leaf]:
        """The arrays that a request means, each ready to be read."""
        patience = Patience(READY_TIMEOUT_S, name or "the result", ends_idle=False)
        for where, array in arrays_of(self._part(self.values.lookup(name), name, path)):
            patience.wait(array)
            yield (*path, *where), array

    def check(self, request: Request[ops.CheckShards]) -> list[wire.ShardCheck]:
        """``check_shards``: statistics of this rank's shards, and hashes where asked for."""
        body, checks = request.body, []
        for path, array in self._arrays(body.name, body.path):
            for shard in array.addressable_shards:
                if body.device not in (None, shard.device.id):
                    continue
                values = host_values(shard.data)
                place = (path, self.values.rank, shard.device.id, bounds(shard.index, array.shape))
                digest = digest_of(values) if body.hash else ""
                checks.append(wire.ShardCheck(*place, **statistics(values), digest=digest))
        return checks

    def read(self, request: Request[ops.Read]) -> tuple[list[wire.Piece], list[bytes]]:
        """``read``: the values at some positions, as far as this rank's shards have them."""
        body, pieces = request.body, dict[Any, tuple[wire.Piece, bytes]]()
        for _, array in itertools.islice(self._arrays(body.name, body.path), 1):
            for shard in array.addressable_shards:
                spans = bounds(shard.index, array.shape)
                if body.device is not None:  # positions are counted from its own corner
                    spans = tuple((0, stop - start) for start, stop in spans)
                axes = list(zip(body.at, spans, strict=True))
                where = [[n for n, at in enumerate(ats) if a <= at < b] for ats, (a, b) in axes]
                has_none = not all(where) or spans in pieces
                if has_none if body.device is None else body.device != shard.device.id:
                    continue
                values = host_values(shard.data)
                inside = [[at - a for at in ats if a <= at < b] for ats, (a, b) in axes]
                inside += [
                    [*range(size)] for size in values.shape[array.ndim :]
                ]  # the words of keys
                cut = values[np.ix_(*inside)]
                told = wire.Piece(where, list(cut.shape), str(cut.dtype))
                pieces[spans] = told, cut.tobytes()
        if body.device is not None and not pieces:
            raise Unavailable(
                f"device {body.device} holds no part of {body.name}",
                "%shards shows which devices hold parts.",
            )
        return [told for told, _ in pieces.values()], [data for _, data in pieces.values()]

    def meshes(self, request: Request[ops.Meshes]) -> list[wire.MeshInfo]:
        """``meshes``: those that variables are or carry, under the names that lead there."""
        users = self._users()
        ways = [(value, name) for name, value in users.items()]
        for name, value in users.items():
            for path, leaf in arrays_of(value):
                way = f"{name}{''.join(path)}.sharding.mesh"
                ways.append((getattr(leaf.sharding, "mesh", None), way))
        found: dict[Any, str] = {}  # equal ones once
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

    def variables(self, request: Request[ops.Variables]) -> list[wire.VariableInfo]:
        """``variables``: those that are arrays or hold arrays, in their order, for a list.

        It ends within about two seconds, whatever there is.
        """
        until = time.monotonic() + VARIABLES_S
        found: list[wire.VariableInfo] = []
        for name, value in self._users().items():
            if type(value) in (list, tuple) and len(value) > LONG:
                continue
            if is_array(value) or time.monotonic() < until:
                arrays = [array for _, array in arrays_of(value)]
                found += [_variable(name, value, arrays)] if arrays else []
        return found

    def memory(self, request: Request[ops.Memory]) -> wire.MemoryReport:
        """``memory``: bytes that live arrays hold on this rank's devices, by variable."""
        devices = jax.local_devices()
        place = {device.id: number for number, device in enumerate(devices)}
        seen = set[Any]()  # a buffer counts for whoever is first to reach it

        def held(arrays: Iterable[Any]) -> list[int]:
            found = [0] * len(devices)
            for array in arrays:
                try:
                    base, ready = numpy_view(array), is_ready(array)
                    shards = base.addressable_shards
                except RuntimeError:  # deleted or donated, in this moment even, by the main thread
                    continue
                for shard in shards:
                    # The address of a buffer that is still being computed would be waited for.
                    data, id_ = shard.data, shard.device.id
                    key = id_, data.unsafe_buffer_pointer() if ready else (id(base),)
                    if id_ in place and key not in seen and data.nbytes:
                        seen.add(key)
                        found[place[id_]] += data.nbytes
            return found

        names, users = dict(self.values.namespace), self._users()
        # Out[7], _7 and _ keep what cells ended in
        users["Out (results of earlier cells)"] = [names[name] for name in names.keys() - users]
        named = {n: held(array for _, array in arrays_of(value)) for n, value in users.items()}
        stats = [device.memory_stats() or {} for device in devices]
        return wire.MemoryReport(
            devices=[device.id for device in devices],
            names={name: nbytes for name, nbytes in named.items() if any(nbytes)},
            other=held(jax.live_arrays()),
            in_use=[s.get("bytes_in_use") for s in stats],
            limit=[s.get("bytes_limit") for s in stats],
            rss_nbytes=rss_nbytes(),
        )

    def _users(self) -> dict[str, Any]:
        """The namespace without what IPython keeps in it."""
        names = dict(self.values.namespace)
        return {n: v for n, v in names.items() if not n.startswith("_") and n not in ("In", "Out")}


def likeness(leaf: Any) -> Any:
    """Equal for leaves whose descriptions are equal."""
    if not is_array(leaf):
        return type(leaf)
    is_deleted = leaf.is_deleted()
    return leaf.shape, leaf.dtype, is_deleted or leaf.sharding, is_deleted or is_ready(leaf)


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
        if part.dtype.kind == "f" and not (is_finite := np.isfinite(part)).all():
            nan = int(np.count_nonzero(np.isnan(part)))
            found["nan"] += nan
            found["inf"] += part.size - nan - int(np.count_nonzero(is_finite))
            part = part[is_finite]
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


# --------------------------------------------------------------------------- variables


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
