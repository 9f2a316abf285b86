"""A rank's answers about its variables: views of their arrays, pulls and pushes.

Views answer on a side thread while the main thread may run a cell. Addressable shards alone are
read, no computation is launched, so nothing here can wait for another rank. A value that is still
being computed is waited for, for a bounded time.

A pulled or pushed value travels as a pickle and raw buffers. The shards of its jax.Arrays are
buffers too: each rank gives its own, in its memory or in the reply.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import math
import mmap
import pickle
import time
import weakref
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import cloudpickle
import jax
import numpy as np

from jaxcluster import wire
from jaxcluster.host.memory import allow_reader
from jaxcluster.model.pickling import FILES, reference_to
from jaxcluster.rank.arrays import (
    Bounds,
    Patience,
    Unavailable,
    arrays_of,
    bounds,
    devices_hash,
    host_values,
    is_array,
    is_living,
    is_ready,
    leaves_of,
    parts_of,
    read_numbers,
    shards_of,
    spans_processes,
)
from jaxcluster.rank.control import Request
from jaxcluster.rank.given import hashes
from jaxcluster.rank.names import is_users
from jaxcluster.rank.private import kinds
from jaxcluster.rank.private.kinds import numpy_view
from jaxcluster.wire.ops import arrays as views
from jaxcluster.wire.ops.values import FILE_FROM_NBYTES, Assign, Pull, Pulled

PROTOCOL = 5
PULL_S = 30.0  # that a pull waits for what is being computed
VIEW_S = 5.0  # ... and a view
PLACE_CHARS = 80
MAX_ROWS = 20_000  # leaves of a tree that are shown
LONG = 10_000  # a longer list is not looked through for arrays
VARIABLES_S = 1.5  # after it no more containers are entered
SHARDING_CHARS = 400  # some shardings print every device
CHUNK = 1 << 20  # elements at a time: statistics need no copy of a whole shard
WHO = "%spmd %who lists the ranks' variables"

_numbered = weakref.WeakSet[type]()  # classes of cells that were pulled, by numbers of ours


class CannotPickle(Unavailable):
    """A value that can't be pickled."""


class ValueUnpickler(pickle.Unpickler):
    """Reads a value that was pushed. Classes that were pulled stay as they are here.

    cloudpickle finds them by their numbers, and would give them the attributes that they had.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle") or name != "_class_setstate":
            return found
        return lambda cls, state: None if cls in _numbered else found(cls, state)


class ArrayPickler(cloudpickle.Pickler):
    """Pickles everything but jax.Arrays, which it gathers, and open files.

    Leaves of dicts come in the order of the keys, as in JAX: ranks may fill dicts in different
    orders.

    cloudpickle marks a class with a random number of its process. With that alone, an object that
    was pulled and is pushed would have its own class only on rank 0. So a class of a cell gets a
    number. It is the same on each rank, since all ranks pull a value in one turn.

    Args:
      turn: of the pull.

    Attributes:
      arrays: by id, each one's number, and its keys and attributes, which others' must have too.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], turn: int, value: Any
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers.append)
        self.arrays: dict[int, tuple[int, Any, set[str]]] = {}
        self._turn, self._met = turn, 0
        self._text = ""  # the last one since the last array
        with contextlib.suppress(Exception):  # too many, or without an order: as they are met
            for _, leaf in leaves_of(value):
                if is_array(leaf):
                    self._known(leaf)

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is str:
            self._text = obj[:PLACE_CHARS]
        if not is_array(obj):
            return None
        number, _, places = self._known(obj)
        places.add(self._text)
        self._text = ""
        return number

    def _known(self, array: Any) -> tuple[int, Any, set[str]]:
        return self.arrays.setdefault(id(array), (len(self.arrays), array, set()))

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), type):
            if (known := reference_to(obj)) is not None:
                return known
            if obj.__module__ == "__main__" or "<locals>" in obj.__qualname__:
                self._met += 1
                number = f"jaxcluster {self._turn} {self._met} {obj.__qualname__}"
                kinds.number_class(obj, number)
                _numbered.add(obj)
        return super().reducer_override(obj)


class Values:
    """Answers for the namespace of one rank.

    Attributes:
      hold: holds what was pushed until it is bound, or is pulled until it is read, under a token.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.namespace: dict[str, Any] = {}
        self.lost: dict[str, str] = {}  # names that were lost, and why
        self.last_result: Any = lambda: None
        self.hold: Callable[[str, dict[str, Any]], None] = lambda token, names: None

    def lookup(self, name: str, path: Sequence[str] = ()) -> Any:
        """The value of a name, or a part of it; ``""`` is the last cell's last expression."""
        try:
            value = self.namespace[name] if name else self.last_result()
        except KeyError:
            if reason := self.lost.get(name):
                raise Unavailable(f"{name!r} {reason}") from None
            users = [n for n, v in self.namespace.items() if is_users(n, v) and n[0] != "_"]
            close = " or ".join(difflib.get_close_matches(name, users))
            hint = f"did you mean {close}?" if close else WHO
            raise Unavailable(f"no variable {name!r} ({hint})") from None
        for number, step in enumerate(path, 1):
            inside = {str(key): part for key, part in parts_of(value) or ()}
            if step not in inside:
                raise Unavailable(f"{name} has no part {''.join(path[:number])}")
            value = inside[step]
        return value

    def _users(self) -> dict[str, Any]:
        """The namespace without what IPython keeps in it."""
        names = dict(self.namespace)
        return {n: v for n, v in names.items() if not n.startswith("_") and n not in ("In", "Out")}

    # ------------------------------------------------------------------ views

    def report(self, request: Request[views.Arrays]) -> wire.ValueReport:
        """``arrays``: every array in a variable and where its shards are. Never waits."""
        name, path = request.body.name, tuple(request.body.path)
        found = leaves_of(self.lookup(name, path))
        leaves = [leaf for _, leaf in found]
        if not any(map(is_array, leaves)):
            names = sorted({type(leaf).__name__ for leaf in leaves or [self.lookup(name, path)]})
            raise Unavailable(f"holds no jax.Array, only {', '.join(names[:3])}")
        if len(leaves) > MAX_ROWS:
            told = f"{name or 'the last result'} has {len(leaves):,} leaves, and {MAX_ROWS:,} can"
            raise Unavailable(f"{told} be shown: look at a part of it")
        return replace(
            _described(self.lookup(name), leaves),
            leaves=[(*path, *map(str, keys)) for keys, _ in found],
            copies=hashes([(n, leaf) for n, leaf in enumerate(leaves) if is_living(leaf)]),
        )

    def _arrays(self, body: views.CheckShards | views.Read) -> Iterator[tuple[Any, Any, Bounds]]:
        """(path, shard, its place) of the arrays that a request means, each ready to be read."""
        patience = Patience(VIEW_S, body.name or "the result", ends_idle=False)
        for path, array in arrays_of(self.lookup(body.name, body.path)):
            patience.wait(array)
            for shard in shards_of(array):
                if body.device in (None, shard.device.id):
                    yield (*body.path, *path), shard, bounds(shard.index, array.shape)

    def check(self, request: Request[views.CheckShards]) -> list[wire.ShardCheck]:
        """``check_shards``: statistics of this rank's shards, and hashes where asked for."""
        checks = []
        for path, shard, place in self._arrays(request.body):
            values = host_values(shard.data)
            known = statistics(values) | {"digest": digest_of(values) if request.body.hash else ""}
            checks.append(wire.ShardCheck(path, self.rank, shard.device.id, place, **known))
        return checks

    def read(self, request: Request[views.Read]) -> tuple[list[wire.Piece], list[bytes]]:
        """``read``: the values at some positions, as far as this rank's shards have them."""
        body, pieces = request.body, dict[Bounds, tuple[wire.Piece, bytes]]()
        for _, shard, place in self._arrays(body):
            # In a device's shard, positions count from the shard's corner.
            is_own = body.device is not None
            spans = tuple((0, b - a) for a, b in place) if is_own else place
            axes = list(zip(body.at, spans, strict=True))
            where = [[n for n, at in enumerate(ats) if a <= at < b] for ats, (a, b) in axes]
            if not is_own and (spans in pieces or not all(where)):
                continue
            inside = [[at - a for at in ats if a <= at < b] for ats, (a, b) in axes]
            cut = host_values(shard.data)[np.ix_(*inside)]
            pieces[spans] = wire.Piece(where, list(cut.shape), str(cut.dtype)), cut.tobytes()
        if body.device is not None and not pieces:
            raise Unavailable(
                f"device {body.device} holds no part of {body.name}",
                "%shards shows which devices hold parts.",
            )
        return [told for told, _ in pieces.values()], [data for _, data in pieces.values()]

    def variables(self, request: Request[views.Variables]) -> dict[str, wire.ValueReport]:
        """``variables``: those that are arrays or hold arrays, in their order, for a list.

        It ends within about two seconds, whatever there is.
        """
        until = time.monotonic() + VARIABLES_S
        found: dict[str, wire.ValueReport] = {}
        for name, value in self._users().items():
            if type(value) in (list, tuple) and len(value) > LONG:
                continue
            is_in_time = is_array(value) or time.monotonic() < until
            if arrays := [array for _, array in arrays_of(value)] if is_in_time else []:
                told = replace(_described(value, arrays), leaves=[()] * len(arrays))
                found[name] = replace(told, type="array") if is_array(value) else told
        return found

    def meshes(self, request: Request[views.Meshes]) -> list[wire.MeshInfo]:
        """``meshes``: those that variables are or carry, under the names that lead there."""
        users = self._users()
        ways = list(users.items())
        for name, value in users.items():
            for path, leaf in arrays_of(value):
                way = f"{name}{''.join(path)}.sharding.mesh"
                ways.append((way, getattr(leaf.sharding, "mesh", None)))
        found: dict[Any, str] = {}  # equal ones once
        for name, mesh in ways:
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

    def memory(self, request: Request[views.Memory]) -> wire.MemoryReport:
        """``memory``: bytes that live arrays hold on this rank's devices, by variable."""
        devices = jax.local_devices()
        seen = set[Any]()  # a buffer counts for whoever is first to reach it

        def held(arrays: Iterable[Any]) -> list[int]:
            found = Counter[int]()
            for array in arrays:
                try:
                    base, ready = numpy_view(array), is_ready(array)
                    shards = shards_of(base)
                except RuntimeError:  # deleted or donated, in this moment even, by the main thread
                    continue
                for shard in shards:
                    # The address of a buffer that is still being computed would be waited for.
                    data, id_ = shard.data, shard.device.id
                    key = id_, data.unsafe_buffer_pointer() if ready else (id(base),)
                    if data.nbytes and key not in seen:
                        seen.add(key)
                        found[id_] += data.nbytes
            return [found[device.id] for device in devices]

        users = self._users()
        # Out[7], _7 and _ keep what cells ended in
        others = [value for name, value in dict(self.namespace).items() if name not in users]
        users["Out (results of earlier cells)"] = others
        named = {n: held(array for _, array in arrays_of(value)) for n, value in users.items()}
        stats = [device.memory_stats() or {} for device in devices]
        return wire.MemoryReport(
            devices=[device.id for device in devices],
            names={name: nbytes for name, nbytes in named.items() if any(nbytes)},
            other=held(jax.live_arrays()),
            in_use=[s.get("bytes_in_use") for s in stats],
            limit=[s.get("bytes_limit") for s in stats],
        )

    # ------------------------------------------------------------------ pull

    def pull(self, request: Request[Pull]) -> tuple[Pulled, list[bytes]]:
        """``pull``: the pickle, if this rank is asked for it, and this rank's shards."""
        body = request.body
        name, value = body.name, self.lookup(body.name)
        if body.plain:
            leaves_of(value)  # raises of one that has no end
            value = plain_containers(value)
        file = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        pickler = ArrayPickler(file, buffers, body.turn.seq, value)
        try:
            pickler.dump(value)
        except Exception as error:
            told = f"{name} can't be pickled: {type(error).__name__}: {error}"
            raise CannotPickle(told, f"Pull its parts, or look: %spmd print({name})") from None
        arrays = [numpy_view(array) for _, array, _ in pickler.arrays.values()]
        infos = [describe(array) for array in arrays]
        raws = [np.frombuffer(b.raw(), np.uint8) for b in buffers] if body.pickle else []
        for raw in raws:
            shard = wire.Shard(self.rank, -1, ((0, raw.nbytes),), raw.nbytes)
            infos.append(wire.ArrayInfo(raw.shape, "uint8", False, (shard,), raw.nbytes))
        given = [a for a in arrays if is_living(a) and (body.is_all or spans_processes(a))]
        total = sum(array.nbytes for array in [*given, *raws])
        parts: list[np.ndarray[Any, Any]] = []
        if total <= body.room:
            # A cell may change what is no jax.Array meanwhile.
            parts = [*_first_copies(name, given), *(raw.copy() for raw in raws if raw.nbytes)]
        copies = hashes([(number, a) for number, a in enumerate(arrays) if is_living(a)])
        places = [sorted(one) for *_, one in pickler.arrays.values()]
        found = Pulled(infos, len(raws), places, copies, total)
        frames = [file.getvalue()] if body.pickle else []
        if not body.token or sum(map(len, parts)) < FILE_FROM_NBYTES:
            return found, [*frames, b"".join(part.data for part in parts)]
        if body.reader:
            allow_reader(body.reader)
        else:
            parts = [np.concatenate(parts)]
        self.hold(body.token, {"": parts})
        return replace(found, spans=[(one.ctypes.data, one.nbytes) for one in parts]), frames

    # ------------------------------------------------------------------ push

    def assign(self, request: Request[Assign]) -> None:
        """``assign``: read pushed values, which are bound when all ranks have done so."""
        pickled, *frames = request.buffers
        buffers: Sequence[Any] = frames
        if path := request.body.path:
            with open(path, "rb") as file:
                # A private mapping: written pages become this rank's own, the rest is shared.
                shared = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            buffers = [shared[start:stop] for start, stop in request.body.buffers]
        elif frames:
            buffers = [bytearray(f) for f in frames]  # writable, as the sender's arrays were
        values = ValueUnpickler(io.BytesIO(pickled), buffers=buffers).load()
        self.hold(request.body.token, values)


def _first_copies(name: str, arrays: Sequence[Any]) -> Iterator[Any]:
    """The bytes of each shard of which this rank has the first copy."""
    patience = Patience(PULL_S, name, ends_idle=False)
    for array in arrays:
        patience.wait(array)
        for shard in shards_of(array):
            if shard.replica_id == 0 and shard.data.nbytes:
                yield _bytes(read_numbers(shard.data))


def _bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def plain_containers(node: Any) -> Any:
    """A pytree as nested dicts without empty ones, for a notebook that lacks its classes."""
    if (parts := parts_of(node)) is None:
        return node
    tree = {}
    for key, part in parts:
        plain = plain_containers(part)
        if type(plain) is not dict or plain:
            names = (getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name))
            tree[next(names, str(key))] = plain
    return tree


# --------------------------------------------------------------------------- descriptions


def _described(value: Any, leaves: Iterable[Any]) -> wire.ValueReport:
    """The leaves of a value; those that look alike are described once."""
    looks: dict[Any, tuple[int, Any]] = {}
    use = [looks.setdefault(_likeness(leaf), (len(looks), leaf))[0] for leaf in leaves]
    infos = [describe(leaf) for _, leaf in looks.values()]
    return wire.ValueReport(type(value).__name__, use=use, infos=infos)


def _likeness(leaf: Any) -> Any:
    """Equal for leaves whose descriptions are equal."""
    if not is_array(leaf):
        return type(leaf)
    is_deleted = leaf.is_deleted()
    return leaf.shape, leaf.dtype, is_deleted or leaf.sharding, is_deleted or is_ready(leaf)


def describe(array: Any) -> wire.ArrayInfo:
    """One rank's view of an array, or of another leaf of a pytree.

    It has no values, so it neither waits nor copies.
    """
    if not is_array(array):
        return wire.ArrayInfo((), "", note=type(array).__name__)
    if array.is_deleted():
        return wire.ArrayInfo(array.shape, str(array.dtype), note="deleted or donated")
    sharding = array.sharding
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True) if mesh is not None else ()
    return wire.ArrayInfo(
        array.shape,
        str(array.dtype),
        spans=not array.is_fully_addressable,
        shards=tuple(
            wire.Shard(
                shard.device.process_index,
                shard.device.id,
                bounds(shard.index, array.shape),
                shard.data.nbytes,
                shard.replica_id,
            )
            for shard in shards_of(array)
        ),
        nbytes=array.nbytes,
        ready=is_ready(array),
        sharding=wire.shorten(str(sharding), SHARDING_CHARS),
        mesh=tuple((str(name), size) for name, size in sizes),
        spec=wire.shorten(str(spec), SHARDING_CHARS) if spec is not None else "",
        split=split_of(spec, array.ndim) if spec is not None else (),
        on=devices_hash(array),
    )


def split_of(spec: Any, ndim: int) -> tuple[tuple[str, ...], ...]:
    """For each axis of an array the mesh axes that cut it, by its PartitionSpec."""
    parts = [*tuple(spec)[:ndim], *[None] * (ndim - len(spec))]
    names = [part if isinstance(part, tuple) else () if part is None else (part,) for part in parts]
    return tuple(tuple(map(str, part)) for part in names)


def statistics(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Minimum, maximum and mean of the finite values, and how many are not finite."""
    flat = values.reshape(-1)
    found: dict[str, Any] = {"size": flat.size, "nan": 0, "inf": 0}
    low, high, total, count = math.inf, -math.inf, 0.0, 0
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        if part.dtype.kind == "c":
            part = np.abs(part)
        elif part.dtype.kind not in "biuf":  # bfloat16 and its like are not kinds of numpy's
            try:
                part = part.astype(np.float32)
            except (TypeError, ValueError):
                return found
        finite = part[np.isfinite(part)]
        nan = int(np.count_nonzero(np.isnan(part)))
        found["nan"] += nan
        found["inf"] += part.size - nan - finite.size
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total, count = total + float(finite.sum(dtype=np.float64)), count + finite.size
    if count:
        found |= {"minimum": low, "maximum": high, "mean": total / count}
    return found


def digest_of(values: np.ndarray[Any, Any]) -> str:
    """A hash of the bytes: -0.0 and 0.0, or two different NaNs, are different."""
    return hashlib.blake2b(_bytes(values).data, digest_size=8).hexdigest()
