"""Values between the notebook and the ranks.

A pull needs no collective: every rank hands out the shards of which it holds the first copy, and
the notebook joins them. On one host the notebook makes one shared-memory file of the whole size
and the ranks write their shards to their places in it, so each byte is copied once. Elsewhere the
shards come as raw frames.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import io
import itertools
import keyword
import math
import mmap
import os
import pickle
import secrets
import sys
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import psutil

from jaxcluster import wire
from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.allocation.bulk import NoRoom
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.world import World
from jaxcluster.errors import (
    CellInterrupted,
    NotAddressable,
    NotSerialisable,
    TransferError,
    UsageError,
)
from jaxcluster.host.facts import host_key
from jaxcluster.host.free_space import free_memory
from jaxcluster.model import notices, replicas
from jaxcluster.model.layout import joined
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.processes import pid_space
from jaxcluster.text import format_nbytes
from jaxcluster.wire.link import Sink, replies
from jaxcluster.wire.ops import values as ops

VALUE_TIMEOUT_S = 600.0  # a large copy takes its time; the stop button ends it sooner
SPARE_NBYTES = 16 << 20  # of memory that a value leaves to others
SHARED_FROM_NBYTES = 1 << 16  # below this a frame is quicker than a file
ALIGN = 64

Memory = mmap.mmap | bytearray


# --------------------------------------------------------------------------- pull


def pull(world: World, name: str) -> Any:
    """The value of ``name`` on rank 0, with every jax.Array in it as a whole numpy array.

    Arrays that span processes are assembled from all ranks' shards; nothing is computed on the
    ranks, so a pull cannot hang on a rank that has diverged. On one host the bytes of an array
    are copied once, into memory that the result owns.

    Raises:
      UsageError: ``name`` is not a name.
      TransferError: no such variable, or it does not fit into this machine's memory.
      NotAddressable: some part of an array is held by no rank.
      NotSerialisable: the value can't be pickled.
    """
    check_names([name])
    for plain in (False, True):
        try:
            value = _pull_once(world, name, plain)
        except NeedsJax as error:
            needed = error
            continue
        if plain and isinstance(value, dict | list):
            notices.warn(
                f"{name} is here as dicts and lists: its classes need {needed}, which the notebook "
                "does not import."
            )
        return value
    raise NotSerialisable(
        f"{name} is or holds an object of {needed}, which the notebook does not import: it "
        "would take the GPU or TPU from the ranks.",
        f"Pull its arrays or numbers instead, or look at it there: %spmd print({name})",
    )


def _pull_once(world: World, name: str, plain: bool) -> Any:
    """Ask, collect, and whatever happens leave nothing behind on the ranks.

    Between the two the ranks hold on to the value, under a token, and its arrays stay in memory as
    long. Not all that describe it are asked for a part, and a pull may be stopped before all have
    answered, so all are told to let go. Nobody waits for that.
    """
    token = secrets.token_hex(8)
    value: _Value | None = None
    try:
        value = _describe(world, name, plain, token)
        return load(value.pickled, *_collect(world, value))
    finally:
        if (value is None or value.sizes) and not world.is_over:
            each = dict.fromkeys(range(world.num_processes), ops.Forget(token))
            world.link.request_each(each, sink=Sink())


@dataclass
class _Value:
    """What the ranks say of one value, and where its parts are in one piece of memory.

    Attributes:
      pickled: by rank 0, without its arrays and buffers.
      views: each rank's view of each array.
      sizes, offsets: of the arrays, and then of the buffers.
    """

    name: str
    token: str
    pickled: bytes
    views: list[dict[int, wire.ArrayInfo]]
    buffer_sizes: list[int]

    def __post_init__(self) -> None:
        firsts = [next(iter(views.values())) for views in self.views]
        self.shapes = [tuple(one.shape) for one in firsts]
        self.dtypes = [numpy_dtype(one.dtype) for one in firsts]
        kinds = zip(self.shapes, self.dtypes, strict=True)
        self.sizes = [math.prod(s) * d.itemsize for s, d in kinds] + self.buffer_sizes
        *self.offsets, self.total = _offsets(self.sizes)

    @property
    def ranks(self) -> list[int]:
        """Those that are asked for something: for parts, or rank 0 for the buffers."""
        return sorted({0, *(rank for views in self.views for rank in views)})

    def arrays_of(self, rank: int) -> list[int]:
        """The numbers of those of which this rank is asked for parts."""
        return [number for number, views in enumerate(self.views) if rank in views]

    def arrays(self, memory: Memory) -> list[np.ndarray[Any, Any]]:
        """The arrays, on that memory."""
        kinds = zip(self.shapes, self.dtypes, self.offsets, strict=False)
        return [np.ndarray(shape, dtype, memory, offset) for shape, dtype, offset in kinds]

    def buffers(self, memory: Memory) -> list[memoryview]:
        """What the pickle has beside arrays, on that memory."""
        n, view = len(self.views), memoryview(memory)
        places = zip(self.offsets[n:], self.sizes[n:], strict=True)
        return [view[offset : offset + size] for offset, size in places]

    def targets(
        self, memory: Memory, parts: Sequence[ops.Part], rank: int
    ) -> list[np.ndarray[Any, Any]]:
        """Where what a rank gives belongs: shards, and then the buffers of rank 0."""
        arrays = self.arrays(memory)
        found = []
        for part in parts:
            # With the dots it is a view, also of an array without dimensions.
            where: tuple[Any, ...] = (*(slice(a, b) for a, b in part.index), ...)
            found.append(arrays[part.array][where])
        buffers = self.buffers(memory) if rank == 0 else []
        return found + [np.frombuffer(buffer, np.uint8) for buffer in buffers]


def _describe(world: World, name: str, plain: bool, token: str) -> _Value:
    ranks = range(world.num_processes)

    def describe(rank: int) -> Callable[[CellSpec], ops.Describe]:
        return lambda turn: ops.Describe(turn, name, rank == 0, plain, token)

    answers = world.ask_in_turn({r: describe(r) for r in ranks}, timeout_s=VALUE_TIMEOUT_S)
    told = replies(answers)
    arrays: list[dict[int, wire.ArrayInfo]] = []
    for number, info in enumerate(told[0].arrays):
        if not info.spans:
            arrays.append({0: info})
            continue
        found = {r: one.arrays[number] for r, one in told.items() if number < len(one.arrays)}
        views = joined(found)
        kinds = {
            r: (v.shape, v.dtype, v.spans, told[r].places[number : number + 1])
            for r, v in views.items()
        }
        differing = [r for r, kind in kinds.items() if kind != kinds[0]]
        missing = [r for r in ranks if r not in views]
        if differing or missing:
            raise TransferError(
                f"{name} is not the same on all ranks: "
                f"{'another array' if differing else 'fewer arrays'} on "
                f"{name_ranks(differing or missing)}.",
                f"%%spmd --all with the line {name} shows each rank's.",
            )
        arrays.append(views)
    return _Value(name, token, bytes(answers[0].buffers[0]), arrays, told[0].buffers)


def _collect(world: World, value: _Value) -> tuple[list[np.ndarray[Any, Any]], list[memoryview]]:
    """All arrays, whole, and all buffers."""
    for views, shape in zip(value.views, value.shapes, strict=True):
        _check_complete(value.name, views, shape)
    check_memory(value.name, value.total)
    memory: Memory | None = None if value.total else bytearray()
    for way in (_fill_shared, _fetch_through_hosts) if value.total >= SHARED_FROM_NBYTES else ():
        with contextlib.suppress(NoRoom):
            memory = memory or way(world, value)
    if memory is None:
        memory = _fetch(world, value)
    return value.arrays(memory), value.buffers(memory)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of them begins in one piece of memory, and where that ends."""
    return [*itertools.accumulate((-(-size // ALIGN) * ALIGN for size in sizes), initial=0)]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of that name; bfloat16 and its like come from ml_dtypes, which is not jax."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def _check_complete(name: str, views: Mapping[int, wire.ArrayInfo], shape: tuple[int, ...]) -> None:
    """Every element must be somebody's first copy. Shards don't overlap, so counting will do.

    Raises:
      NotAddressable: some are nobody's; what is missing is named by its number.
      TransferError: the array was deleted.
    """
    for rank, view in views.items():
        if view.note:
            raise TransferError(f"{name} is {view.note} on rank {rank}: it no longer has values.")
    held = sum(
        math.prod(stop - start for start, stop in shard.index)
        for view in views.values()
        for shard in view.shards
        if shard.replica_id == 0
    )
    if held != math.prod(shape):
        raise NotAddressable(
            f"No rank of this cluster has {math.prod(shape) - held} of the {math.prod(shape)} "
            f"elements of {name}."
        )


def check_memory(name: str, nbytes: int) -> None:
    """Refuse what can't fit.

    Raises:
      TransferError: ``nbytes`` is more than this machine has free.
    """
    free = psutil.virtual_memory().available
    if nbytes > free:
        raise TransferError(
            f"{name} holds {format_nbytes(nbytes)}; this machine has {format_nbytes(free)} free.",
            f"Pull a part: %spmd part = {name}[:100]   then   %pull part",
        )


def shares_memory(world: World, nbytes: int) -> bool:
    """Whether all ranks are on this host, see its processes, and there is so much memory."""
    if any(facts.host_key != host_key() for facts in world.record.facts):
        return False
    free = free_memory()
    return world.record.pid_space == pid_space() and (free is None or free > nbytes + SPARE_NBYTES)


@contextlib.contextmanager
def _shared_file(nbytes: int) -> Iterator[tuple[str, mmap.mmap]]:
    """Memory as a file that ranks here open by this process; it is gone when nobody has it open.

    Raises:
      NoRoom: its pages can't be had. They are all taken now: where a mapped page can't be had at
        its first use, the kernel ends the process (SIGBUS).
    """
    try:
        descriptor = os.memfd_create("jaxcluster-value")
    except OSError as error:
        raise NoRoom from error
    try:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            mapped = mmap.mmap(descriptor, nbytes)
        except OSError as error:
            raise NoRoom from error
        yield f"/proc/{os.getpid()}/fd/{descriptor}", mapped
    finally:
        os.close(descriptor)


def _fill_shared(world: World, value: _Value) -> Memory:
    if not shares_memory(world, value.total):
        raise NoRoom
    with _shared_file(value.total) as (path, memory):
        each = {}
        for rank in value.ranks:
            arrays = [[number, value.offsets[number]] for number in value.arrays_of(rank)]
            buffers = value.offsets[len(value.views) :] if rank == 0 else []
            each[rank] = ops.Fill(value.token, path, arrays, buffers)
        filled = replies(world.ask(list(each), each, timeout_s=VALUE_TIMEOUT_S))
    _check_copies(value.name, filled)
    return memory


def _check_copies(name: str, answers: Mapping[int, ops.Filled | ops.Fetched | ops.Packed]) -> None:
    """Refuse what ranks have different copies of: it is no one value.

    Raises:
      TransferError: they differ, as far as they were compared.
    """
    odd = replicas.parts({rank: one.copies for rank, one in answers.items()})
    if odd:
        raise TransferError(
            f"The ranks have different copies of {name}: {replicas.tell_groups(odd[min(odd)])}.",
            f"%shards {name} --check compares all of it; np.asarray({name}) in a cell is each "
            f"rank's own. {replicas.SEED}",
        )


def _fetch(world: World, value: _Value) -> Memory:
    memory = bytearray(value.total)
    each = {r: ops.Fetch(value.token, value.arrays_of(r)) for r in value.ranks}
    answers = world.ask(list(each), each, timeout_s=VALUE_TIMEOUT_S)
    fetched = replies(answers)
    _check_copies(value.name, fetched)
    for rank, answer in answers.items():
        targets = value.targets(memory, fetched[rank].places, rank)
        for target, frame in zip(targets, answer.buffers, strict=True):
            _put(target, 0, np.frombuffer(frame, np.uint8).view(target.dtype))
    return memory


def _fetch_through_hosts(world: World, value: _Value) -> Memory:
    """Ranks write their shards to files in their hosts' memory, from where they come in parts.

    Raises:
      NoRoom: a host has none for that, or no agent.
    """
    ranks = value.ranks
    with world.processes.memory(ranks) as there:
        each = {r: ops.Pack(value.token, there.path(r, str(r)), value.arrays_of(r)) for r in ranks}
        packed = replies(world.ask(ranks, each, timeout_s=VALUE_TIMEOUT_S))
        if not all(one.has_room for one in packed.values()):
            raise NoRoom
        _check_copies(value.name, packed)
        memory = bytearray(value.total)
        there.get(
            (rank, str(rank), sum(one.sizes), _Joiner(value.targets(memory, one.places, rank)).take)
            for rank, one in packed.items()
        )
    return memory


class _Joiner:
    """Puts a rank's file, as it comes, where its parts belong: it is never here in one piece."""

    def __init__(self, targets: Sequence[np.ndarray[Any, Any]]) -> None:
        self._targets = [target for target in reversed(targets) if target.nbytes]
        self._done, self._rest = 0, b""  # elements of the last one; a part of the next element

    def take(self, at: int, data: memoryview) -> None:
        data = memoryview(self._rest + data.tobytes())
        while self._targets:
            target = self._targets[-1]
            count = min(len(data) // target.itemsize, target.size - self._done)
            came, data = data[: count * target.itemsize], data[count * target.itemsize :]
            _put(target, self._done, np.frombuffer(came, np.uint8).view(target.dtype))
            self._done += count
            if self._done < target.size:
                break
            self._targets.pop()
            self._done = 0
        self._rest = bytes(data)


def _put(target: np.ndarray[Any, Any], at: int, data: np.ndarray[Any, Any]) -> None:
    """Put elements into an array, from that one on; in rows, where it is a part of another."""
    if target.flags.c_contiguous:
        target.reshape(-1)[at : at + data.size] = data
        return
    row = target[0].size
    while data.size:
        number, begin = divmod(at, row)
        if begin or data.size < row:
            size = min(row - begin, data.size)
            _put(target[number], begin, data[:size])
        else:
            rows = data.size // row
            size = rows * row
            target[number : number + rows] = data[:size].reshape(rows, *target.shape[1:])
        at, data = at + size, data[size:]


# --------------------------------------------------------------------------- unpickling


class NeedsJax(Exception):
    """Unpickling wanted to import a module of jax (its name), which the notebook must not."""


class _NoJax(importlib.abc.MetaPathFinder):
    """Refuses jax while a value is unpickled (law 1)."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if _is_jaxs(fullname):
            raise NeedsJax(fullname)


def _is_jaxs(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jaxlib")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._arrays = arrays
        self.of_jax: list[Any] = []

    def persistent_load(self, pid: Any) -> Any:
        return self._arrays[pid]

    def find_class(self, module: str, name: str) -> Any:
        if _is_jaxs(module) and "jax" not in sys.modules:
            self.of_jax.append(found := ops.OfJax(module, name))
            return found
        if name == "of_jax":
            return self._of_jax
        if name == "subimport" and module.startswith("cloudpickle"):
            return self._module
        return super().find_class(module, name)

    def _module(self, name: str) -> Any:
        return self._of_jax(name, "") if _is_jaxs(name) else importlib.import_module(name)

    def _of_jax(self, module: str, name: str) -> Any:
        self.of_jax.append(found := ops.of_jax(module, name))
        return found


def load(data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The value that a rank has pickled; its arrays are given already joined.

    Raises:
      NeedsJax: it has something of jax's own.
      NotSerialisable: a module or an attribute that it needs is not here.
    """
    guard = None if "jax" in sys.modules else _NoJax()
    if guard is not None:
        sys.meta_path.insert(0, guard)
    unpickler = _Unpickler(data, arrays, buffers)
    try:
        value = unpickler.load()
        if isinstance(value, ops.OfJax):
            raise NeedsJax(str(value))
        return value
    except NeedsJax:
        raise
    except Exception as error:
        if unpickler.of_jax:  # it was called, or is the class of an object
            raise NeedsJax(str(unpickler.of_jax[0])) from None
        _explain(error)
        raise
    finally:
        if guard is not None:
            sys.meta_path.remove(guard)


def _explain(error: Exception) -> None:
    """Say what is not here.

    Raises:
      NotSerialisable: a module or an attribute.
    """
    if isinstance(error, ModuleNotFoundError):
        raise NotSerialisable(
            f"The value needs a module that this notebook does not have: {error.name}.",
            "Install it here too, or pull a plain dict, list or array instead.",
        ) from None
    if isinstance(error, AttributeError | ImportError):
        raise NotSerialisable(
            f"The value can't be rebuilt in this notebook: {error}.",
            "Pull a plain dict, list or array instead.",
        ) from None


# --------------------------------------------------------------------------- push


def push(world: World, values: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
    """Bind names on all ranks (or ``ranks``) to these values.

    numpy arrays travel without being copied into the pickle; on one host all ranks map the same
    shared memory, and a rank gets pages of its own only where it writes. It waits its turn behind
    cells that are running.

    Raises:
      UsageError: a key is not a name.
      NotSerialisable: a value can't be pickled; it names which.
    """
    check_names(values)
    chosen = world.check_ranks(ranks)
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = _dumps(dict(values), buffers)
    except Exception:
        for name, value in values.items():
            try:
                _dumps(value, [])
            except Exception as error:
                raise NotSerialisable(
                    f"{name} can't be pickled: {type(error).__name__}: {error}",
                    "Push its parts, and build it on the ranks in an %%spmd cell.",
                ) from None
        raise
    raws = [b.raw() for b in buffers]
    sizes = [raw.nbytes for raw in raws]
    *offsets, total = _offsets(sizes)
    at = [[o, o + n] for o, n in zip(offsets, sizes, strict=True)]
    filled = {o: raw for (o, end), raw in zip(at, raws, strict=True) if end > o}
    token = uuid.uuid4().hex
    for way in (_share, _bring_to_hosts) if total >= SHARED_FROM_NBYTES else ():
        with contextlib.suppress(NoRoom), way(world, chosen, filled, total) as paths:
            _assign(world, token, paths, at, [pickled])
            return
    if total:
        check_memory(" and ".join(values), total * len(chosen))
    _assign(world, token, dict.fromkeys(chosen, ""), [], [pickled, *raws])


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap(ops.FILES, cloudpickle.Pickler.dispatch_table)


def _dumps(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue()


def _assign(
    world: World,
    token: str,
    paths: Mapping[int, str],
    places: list[list[int]],
    buffers: Sequence[bytes | memoryview],
) -> None:
    """Have the ranks read the values, and once all have, bind them.

    Raises:
      CellInterrupted: stop was pressed when all had read it.
    """

    @functools.cache  # one body for all ranks is encoded once
    def assign(path: str, turn: CellSpec) -> ops.Assign:
        return ops.Assign(turn, token, path, places if path else [])

    each = {rank: functools.partial(assign, path) for rank, path in paths.items()}
    with stopbutton.held() as presses:  # else some might be told to bind it, and others not

        def check() -> None:
            if presses:
                raise KeyboardInterrupt

        try:
            world.ask_in_turn(each, buffers=buffers, timeout_s=VALUE_TIMEOUT_S, check=check)
            check()
        except BaseException:
            world.link.request_each(dict.fromkeys(each, ops.Forget(token)), sink=Sink())
            raise
        bind = functools.partial(ops.AssignBind, token=token)
        try:
            world.ask_in_turn(
                dict.fromkeys(each, bind), timeout_s=VALUE_TIMEOUT_S, check=check, is_final=True
            )
        except KeyboardInterrupt:
            raise CellInterrupted(
                "stopped waiting. All ranks have received it, and will bind it as soon as they can."
            ) from None


@contextlib.contextmanager
def _share(
    world: World, ranks: Sequence[int], buffers: Mapping[int, memoryview], total: int
) -> Iterator[dict[int, str]]:
    """A file in the memory that ranks share with the notebook: its path for each rank.

    Raises:
      NoRoom: they share none, or there is no room.
    """
    if not shares_memory(world, total):
        raise NoRoom
    with _shared_file(total) as (path, memory):
        for at, raw in buffers.items():
            memory[at : at + raw.nbytes] = raw
        yield dict.fromkeys(ranks, path)


@contextlib.contextmanager
def _bring_to_hosts(
    world: World, ranks: Sequence[int], buffers: Mapping[int, memoryview], total: int
) -> Iterator[dict[int, str]]:
    """The same once on each host, where its ranks map the same memory."""
    with world.processes.memory(ranks) as there:
        there.put("value", buffers)
        yield {rank: there.path(rank, "value") for rank in ranks}


def check_names(names: Iterator[str] | Sequence[str] | Mapping[str, Any]) -> None:
    """Raises UsageError for what can't be a variable."""
    for name in names:
        if not str(name).isidentifier() or keyword.iskeyword(str(name)):
            raise UsageError(
                f"{name!r} is not a variable name.",
                "For example: %pull x --as y"
                if name == "as"
                else "For example: %pull x   or   %push a b",
            )


# --------------------------------------------------------------------------- looking


def sample(
    world: World, name: str, ranks: Sequence[int], edge: int = 3
) -> tuple[np.ndarray[Any, Any], bool, str]:
    """Enough of an array that spans processes to print it as numpy would.

    Returns:
      (the values, whether positions were left out, who has other copies of a part): of an axis
      longer than ``2 * edge + 1`` only the first and last ``edge`` are there, and one between.

    Raises:
      NotAddressable: ``ranks`` do not hold all of them.
      TransferError: they have different arrays.
    """
    answers = world.ask(ranks, ops.Sample(name, edge), timeout_s=10.0)
    told = replies(answers)
    first = told[min(told)]
    shape, same = first.shape, (first.shape, first.dtype, first.on)
    others = [r for r, one in told.items() if (one.shape, one.dtype, one.on) != same]
    if others:
        raise TransferError(f"The last line gave another array on {name_ranks(others)}.")
    kept = [min(size, 2 * edge + 1) for size in shape]
    dtype = np.dtype(object)
    values: np.ndarray[Any, Any] | None = None
    held = 0
    for rank, answer in answers.items():
        for place, frame in zip(told[rank].places, answer.buffers, strict=True):
            dtype = numpy_dtype(place.dtype)
            if values is None:
                values = np.zeros(kept, dtype)
            part = np.frombuffer(frame, np.uint8).view(dtype).reshape(place.shape)
            values[np.ix_(*place.where) if place.where else ()] = part
            held += part.size
    if held != math.prod(kept):
        holds = "holds" if len(answers) == 1 else "hold"
        raise NotAddressable(
            f"{name_ranks(answers).capitalize()} {holds} only a part of this array.",
            "Run the cell on all ranks to see it whole.",
        )
    if values is None:
        values = np.zeros(kept, dtype)
    odd = replicas.parts({rank: one.copies for rank, one in told.items()})
    note = f"Ranks have different copies of it: {replicas.tell_groups(odd[0])}." if odd else ""
    return values, list(values.shape) != list(shape), note
