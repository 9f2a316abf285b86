"""Values between the notebook and the ranks.

A pull needs no collective: every rank hands out the shards of which it holds the first copy, and
the notebook joins them. On one host the notebook makes one shared-memory file of the whole size
and the ranks write their shards to their places in it, so each byte is copied once. Elsewhere the
shards come as raw frames.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import keyword
import math
import mmap
import os
import pickle
import queue
import secrets
import tempfile
import uuid
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import psutil

from jaxcluster import wire
from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.allocation.bulk import NoRoom
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.unpickling import NeedsJax, load
from jaxcluster.cluster.world import World
from jaxcluster.errors import (
    CellInterrupted,
    NotAddressable,
    NotSerialisable,
    RankHung,
    TransferError,
    UsageError,
)
from jaxcluster.host import shared_memory
from jaxcluster.host.facts import host_key
from jaxcluster.model import notices, replicas
from jaxcluster.model.layout import joined
from jaxcluster.ranks import name_ranks
from jaxcluster.text import format_nbytes
from jaxcluster.wire.link import Event, Sink, replies, unwrap
from jaxcluster.wire.ops.values import (
    FILES,
    Assign,
    AssignBind,
    Describe,
    Fetch,
    Fetched,
    Fill,
    Filled,
    Forget,
    Pack,
    Packed,
    Part,
    Sample,
)

VALUE_TIMEOUT_S = 600.0  # a large copy takes its time; the stop button ends it sooner
SHARED_MEMORY = shared_memory.FOLDER
SHARED_FROM_NBYTES = 1 << 16  # below this a frame is quicker than a file
ALIGN = 64


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
    try:
        return _pull_once(world, name, plain=False)
    except NeedsJax as error:
        needed = error
    try:
        value = _pull_once(world, name, plain=True)
        if isinstance(value, dict | list):
            notices.warn(
                f"{name} is here as dicts and lists: its classes need {needed}, which the notebook "
                "does not import."
            )
        return value
    except NeedsJax as error:
        raise NotSerialisable(
            f"{name} is or holds an object of {error}, which the notebook does not import: it "
            "would take the GPU or TPU from the ranks.",
            f"Pull its arrays or numbers instead, or look at it there: %spmd print({name})",
        ) from None


def _pull_once(world: World, name: str, plain: bool) -> Any:
    """Ask, collect, and whatever happens leave nothing behind on the ranks.

    Between the two the ranks hold on to the value, under a token, and its arrays stay in memory as
    long. Not all that describe it are asked for a part, and a pull may be stopped before all have
    answered, so all are told to let go. Nobody waits for that.
    """
    token = secrets.token_hex(8)
    holding = True
    try:
        described = _describe(world, name, plain, token)
        holding = bool(described.arrays or described.buffer_sizes)
        return _collect(world, described)
    finally:
        if holding and not world.is_over:
            each = dict.fromkeys(range(world.num_processes), Forget(token))
            world.link.request_each(each, sink=Sink())


def _describing(name: str, is_first: bool, plain: bool, token: str, turn: CellSpec) -> Describe:
    return Describe(turn, name, is_first, plain, token)


@dataclass
class _Described:
    """What the ranks say of one value: rank 0's pickle, and every rank's view of the arrays."""

    name: str
    token: str
    pickled: bytes
    buffer_sizes: list[int]
    arrays: list[dict[int, wire.ArrayInfo]]

    @property
    def ranks(self) -> list[int]:
        """Those that are asked for something: for parts, or rank 0 for the buffers."""
        return sorted({0, *(rank for views in self.arrays for rank in views)})

    def arrays_of(self, rank: int) -> list[int]:
        """The numbers of those of which this rank is asked for parts."""
        return [number for number, views in enumerate(self.arrays) if rank in views]


def _describe(world: World, name: str, plain: bool, token: str) -> _Described:
    ranks = range(world.num_processes)
    each = {r: functools.partial(_describing, name, r == 0, plain, token) for r in ranks}
    answers = world.ask_in_turn(each, timeout_s=VALUE_TIMEOUT_S)
    told = replies(answers)
    per_rank = {r: one.arrays for r, one in told.items()}
    first = per_rank[0]
    arrays: list[dict[int, wire.ArrayInfo]] = []
    for number, info in enumerate(first):
        if not info.spans:
            arrays.append({0: info})
            continue
        views = joined({r: infos[number] for r, infos in per_rank.items() if number < len(infos)})
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
    return _Described(
        name=name,
        token=token,
        pickled=bytes(answers[0].buffers[0]),
        buffer_sizes=told[0].buffers,
        arrays=arrays,
    )


def _collect(world: World, described: _Described) -> Any:
    dtypes = [numpy_dtype(next(iter(views.values())).dtype) for views in described.arrays]
    shapes = [tuple(next(iter(views.values())).shape) for views in described.arrays]
    for views, shape in zip(described.arrays, shapes, strict=True):
        _check_complete(described.name, views, shape)
    sizes = [math.prod(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)]
    sizes += described.buffer_sizes
    *offsets, total = _offsets(sizes)
    check_memory(described.name, total)
    whole = _Whole(shapes, dtypes, sizes, offsets, total)
    memory: mmap.mmap | bytearray | None = None if total else bytearray()
    for way in (_fill_shared, _fetch_through_hosts) if total >= SHARED_FROM_NBYTES else ():
        with contextlib.suppress(NoRoom):
            memory = memory or way(world, described, whole)
    if memory is None:
        memory = _fetch(world, described, whole)
    arrays = [whole.array(number, memory) for number in range(len(shapes))]
    view = memoryview(memory)
    ends = zip(offsets[len(arrays) :], sizes[len(arrays) :], strict=True)
    return load(described.pickled, arrays, [view[o : o + n] for o, n in ends])


@dataclass
class _Whole:
    """What a pulled value's arrays and buffers are, and where they are in one piece of memory."""

    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[np.dtype[Any]]
    sizes: Sequence[int]
    offsets: Sequence[int]
    total: int

    def array(self, number: int, memory: bytearray | mmap.mmap) -> np.ndarray[Any, Any]:
        """One of the arrays, on that memory."""
        return np.ndarray(self.shapes[number], self.dtypes[number], memory, self.offsets[number])

    def targets(self, memory: bytearray, places: Iterable[Part], rank: int) -> list[_Target]:
        """Where the parts belong that a rank hands out: shards, and the buffers of rank 0."""
        found = [_Target(self.array(place.array, memory), place.index) for place in places]
        if rank == 0:
            start = len(self.shapes)
            for size, offset in zip(self.sizes[start:], self.offsets[start:], strict=True):
                found.append(_Target(np.ndarray((size,), np.uint8, memory, offset), [[0, size]]))
        return found


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
    """Whether all ranks are on this host and its shared memory has room (64 MB in containers)."""
    if any(facts.host_key != host_key() for facts in world.record.facts):
        return False
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize > nbytes + (16 << 20)


@contextlib.contextmanager
def _shared_file(nbytes: int) -> Iterator[tuple[str, mmap.mmap]]:
    """A mapped file in shared memory. Its name is gone afterwards; the mapping lives on.

    Raises:
      NoRoom: its pages can't be had. They are all taken now: where a mapped page can't be had at
        its first use, the kernel ends the process (SIGBUS).
    """
    try:
        descriptor, path = tempfile.mkstemp(
            prefix=shared_memory.prefix(os.getpid()), dir=SHARED_MEMORY
        )
    except OSError as error:
        raise NoRoom from error
    try:
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            mapped = mmap.mmap(descriptor, nbytes)
        except OSError as error:
            raise NoRoom from error
        yield path, mapped
    finally:
        os.close(descriptor)
        Path(path).unlink(missing_ok=True)


def _fill_shared(world: World, described: _Described, whole: _Whole) -> mmap.mmap:
    if not shares_memory(world, whole.total):
        raise NoRoom
    offsets = whole.offsets
    with _shared_file(whole.total) as (path, memory):
        each = {}
        for rank in described.ranks:
            arrays = [[number, offsets[number]] for number in described.arrays_of(rank)]
            buffers = [*offsets[len(described.arrays) :]] if rank == 0 else []
            each[rank] = Fill(described.token, path, arrays, buffers)
        filled = replies(world.ask(list(each), each, timeout_s=VALUE_TIMEOUT_S))
    _check_copies(described.name, filled)
    return memory


def _check_copies(name: str, answers: Mapping[int, Filled | Fetched | Packed]) -> None:
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


def _fetch(world: World, described: _Described, whole: _Whole) -> bytearray:
    memory = bytearray(whole.total)
    each = {r: Fetch(described.token, described.arrays_of(r)) for r in described.ranks}
    answers = world.ask(list(each), each, timeout_s=VALUE_TIMEOUT_S)
    fetched = replies(answers)
    _check_copies(described.name, fetched)
    for rank, answer in answers.items():
        targets = whole.targets(memory, fetched[rank].places, rank)
        for target, frame in zip(targets, answer.buffers, strict=True):
            target.bytes[:] = np.frombuffer(frame, np.uint8)
            target.finish()
    return memory


def _fetch_through_hosts(world: World, described: _Described, whole: _Whole) -> bytearray:
    """Ranks write their shards to files in their hosts' memory, from where they come in parts.

    Raises:
      NoRoom: a host has none for that, or no agent.
    """
    ranks = described.ranks
    with world.processes.memory(ranks) as there:
        memory = bytearray(whole.total)
        each = {
            r: Pack(described.token, there.path(r, str(r)), described.arrays_of(r)) for r in ranks
        }
        packed = replies(world.ask(ranks, each, timeout_s=VALUE_TIMEOUT_S))
        if not all(one.has_room for one in packed.values()):
            raise NoRoom
        _check_copies(described.name, packed)
        files = []
        for rank, one in packed.items():
            joiner = _Joiner(whole.targets(memory, one.places, rank), one.sizes)
            files.append((rank, str(rank), sum(one.sizes), joiner.take))
        there.get(files)
    return memory


class _Target:
    """Where one shard's bytes belong in the whole."""

    def __init__(self, whole: np.ndarray[Any, Any], index: Sequence[Sequence[int]]) -> None:
        # With the dots it is a view, also of an array without dimensions.
        where: tuple[Any, ...] = (*(slice(start, stop) for start, stop in index), ...)
        self._part = whole[where]
        self._own = None if self._part.flags.c_contiguous else np.empty_like(self._part)
        straight = self._part if self._own is None else self._own
        self.bytes = straight.reshape(-1).view(np.uint8)

    def finish(self) -> None:
        if self._own is not None:
            self._part[...] = self._own


class _Joiner:
    """Gives the bytes of a file, as they come, to the shards that it is made of."""

    def __init__(self, targets: Sequence[_Target], sizes: Sequence[int]) -> None:
        self._targets = list(zip(targets, sizes, strict=True))
        self._begin = self._number = 0

    def take(self, at: int, data: memoryview) -> None:
        part = np.frombuffer(data, np.uint8)
        end = at + len(part)
        while self._number < len(self._targets):
            target, size = self._targets[self._number]
            start, stop = max(at, self._begin), min(end, self._begin + size)
            if stop > start:
                into = slice(start - self._begin, stop - self._begin)
                target.bytes[into] = part[start - at : stop - at]
            if self._begin + size > end:
                return
            target.finish()
            self._begin += size
            self._number += 1


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
    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)


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
    def assign(path: str, turn: CellSpec) -> Assign:
        return Assign(turn, token, path, places if path else [])

    each = {rank: functools.partial(assign, path) for rank, path in paths.items()}
    sink = Sink()
    try:
        world.ask_in_turn(each, buffers=buffers, timeout_s=VALUE_TIMEOUT_S)
        with stopbutton.held():  # else some might be told, and others not
            turn = world.turns.make(list(each), is_skippable=False)
            bind = AssignBind(turn, token)
            ids = world.link.request_each(dict.fromkeys(each, bind), sink=sink)
    except BaseException:
        world.link.request_each(dict.fromkeys(each, Forget(token)), sink=Sink())
        raise
    answers: list[Event[list[str]]] = []
    try:
        while len(answers) < len(each):
            answers.append(sink.get(timeout=VALUE_TIMEOUT_S))
    except queue.Empty:
        missing = sorted(set(each) - {event.rank for event in answers})
        raise RankHung(
            f"{name_ranks(missing).capitalize()} did not bind the pushed values within "
            f"{VALUE_TIMEOUT_S:g} s. All ranks have received them, and will bind them as soon as "
            "they can.",
            "%jaxcluster status shows where each rank is.",
            missing,
        ) from None
    except KeyboardInterrupt:
        raise CellInterrupted(
            "stopped waiting. All ranks have received it, and will bind it as soon as they can."
        ) from None
    finally:
        world.link.forget(ids)
        world.turns.ended(turn.seq)
    for event in answers:
        unwrap(event)


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
    answers = world.ask(ranks, Sample(name, edge), timeout_s=10.0)
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
