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
from collections import ChainMap
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import psutil

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
from jaxcluster.model.layout import ArrayLayout, array_layout, volume
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.processes import pid_space
from jaxcluster.text import format_nbytes
from jaxcluster.wire.link import Event, Sink, replies
from jaxcluster.wire.ops import values as ops

VALUE_TIMEOUT_S = 600.0  # a large copy takes its time; the stop button ends it sooner
SPARE_NBYTES = 16 << 20  # of memory that a value leaves to others
SHARED_FROM_NBYTES = 1 << 16  # below this a frame is quicker than a file
ALIGN = 64
PIECE_NBYTES = 16 << 20

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
        arrays = _collect(world, value)
        first = len(arrays) - value.num_buffers
        return load(value.pickled, arrays[:first], [one.data for one in arrays[first:]])
    finally:
        if (value is None or value.layouts) and not world.is_over:
            each = dict.fromkeys(range(world.num_processes), ops.Forget(token))
            world.link.request_each(each, sink=Sink())


@dataclass
class _Value:
    """What the ranks say of one value, and where its parts are in one piece of memory.

    Attributes:
      pickled: by rank 0, without its arrays and buffers.
      num_buffers: so many of the arrays, the last ones, are the pickle's buffers.
    """

    name: str
    token: str
    pickled: bytes
    num_buffers: int
    layouts: list[ArrayLayout]

    def __post_init__(self) -> None:
        self.kinds = [(one.shape, numpy_dtype(one.dtype)) for one in self.layouts]
        *self.offsets, self.total = _offsets([math.prod(s) * d.itemsize for s, d in self.kinds])

    def requests(self, paths: Callable[[int], str], is_shared: bool = False) -> dict[int, ops.Give]:
        """What is asked of each rank that has a part."""
        numbers: dict[int, list[int]] = {}
        for number, layout in enumerate(self.layouts):
            for rank in layout.ranks:
                numbers.setdefault(rank, []).append(number)
        return {
            rank: ops.Give(
                self.token, own, paths(rank), [self.offsets[n] for n in own] if is_shared else []
            )
            for rank, own in numbers.items()
        }

    def arrays(self, memory: Memory) -> list[np.ndarray[Any, Any]]:
        """The arrays, on that memory."""
        places = zip(self.kinds, self.offsets, strict=True)
        return [np.ndarray(shape, dtype, memory, at) for (shape, dtype), at in places]

    def targets(self, memory: Memory) -> dict[int, list[np.ndarray[Any, Any]]]:
        """Where the bytes that each rank gives belong: of an element they are the last axis."""
        found: dict[int, list[np.ndarray[Any, Any]]] = {}
        for layout, (shape, dtype), at in zip(self.layouts, self.kinds, self.offsets, strict=True):
            whole = np.ndarray((*shape, dtype.itemsize), np.uint8, memory, at)
            for shard in layout.shards:
                own = found.setdefault(shard.rank, [])
                if shard.replica_id == 0:
                    own += _pieces(whole[tuple(slice(*span) for span in shard.index)])
        return found


def _describe(world: World, name: str, plain: bool, token: str) -> _Value:
    """Have the ranks describe the value.

    Raises:
      TransferError: an array was deleted, or is not the same on all ranks.
      NotAddressable: some elements are nobody's.
    """
    ranks = range(world.num_processes)

    def describe(rank: int) -> Callable[[CellSpec], ops.Describe]:
        return lambda turn: ops.Describe(turn, name, rank == 0, plain, token)

    answers = world.ask_in_turn({r: describe(r) for r in ranks}, timeout_s=VALUE_TIMEOUT_S)
    told = replies(answers)
    layouts: list[ArrayLayout] = []
    for number, info in enumerate(told[0].arrays):
        have = {r: one for r, one in told.items() if number < len(one.arrays)}
        infos = {r: one.arrays[number] for r, one in have.items()} if info.spans else {0: info}
        found = array_layout(name, infos, {})
        for rank, one in infos.items():
            if one.note:
                raise TransferError(
                    f"{name} is {one.note} on rank {rank}: it no longer has values."
                )
        places = {r: one.places[number : number + 1] for r, one in have.items() if r in infos}
        another = {r for r, note in found.notes.items() if note.startswith("another array")}
        another |= {r for r, place in places.items() if place != places[0]}
        first_copies = sum(volume(one.index) for one in found.shards if one.replica_id == 0)
        if not found.missing and first_copies != math.prod(found.shape):  # shardings differ
            another |= found.notes.keys() or {*infos} - {0}
        fewer = {*ranks} - {*have} if info.spans else set()
        if another or fewer:
            raise TransferError(
                f"{name} is not the same on all ranks: "
                f"{'another array' if another else 'fewer arrays'} on "
                f"{name_ranks(another or fewer)}.",
                f"%%spmd --all with the line {name} shows each rank's.",
            )
        if found.missing:
            raise NotAddressable(
                f"No rank of this cluster has {found.missing} of the {math.prod(found.shape)} "
                f"elements of {name}."
            )
        layouts.append(found)
    return _Value(name, token, bytes(answers[0].buffers[0]), told[0].buffers, layouts)


def _collect(world: World, value: _Value) -> list[np.ndarray[Any, Any]]:
    """All arrays, whole, and then all buffers."""
    check_memory(value.name, value.total)
    memory: Memory | None = None if value.total else bytearray()
    for way in (_fill_shared, _fetch_through_hosts) if value.total >= SHARED_FROM_NBYTES else ():
        with contextlib.suppress(NoRoom):
            memory = memory or way(world, value)
    if memory is None:
        memory = bytearray(value.total)
        answers = _ask(world, value, value.requests(lambda rank: ""))
        for rank, targets in value.targets(memory).items():
            join = _join(targets)
            for frame in answers[rank].buffers:
                join(0, memoryview(frame))
    return value.arrays(memory)


def _ask(world: World, value: _Value, each: dict[int, ops.Give]) -> dict[int, Event[ops.Given]]:
    """Have the ranks give their parts.

    Raises:
      NoRoom: a host has none for them.
      TransferError: ranks have different copies, as far as they were compared: it is no one value.
    """
    answers = world.ask(list(each), each, timeout_s=VALUE_TIMEOUT_S)
    given = replies(answers)
    if not all(one.has_room for one in given.values()):
        raise NoRoom
    odd = replicas.parts({rank: one.copies for rank, one in given.items()})
    if odd:
        raise TransferError(
            f"The ranks have different copies of {value.name}: "
            f"{replicas.tell_groups(odd[min(odd)])}.",
            f"%shards {value.name} --check compares all of it; np.asarray({value.name}) in a cell "
            f"is each rank's own. {replicas.SEED}",
        )
    return answers


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
        _ask(world, value, value.requests(lambda rank: path, is_shared=True))
    return memory


def _fetch_through_hosts(world: World, value: _Value) -> Memory:
    """Ranks write their shards to files in their hosts' memory, from where they come in parts.

    Raises:
      NoRoom: a host has none for that, or no agent.
    """
    ranks = list(value.requests(str))
    with world.processes.memory(ranks) as there:
        _ask(world, value, value.requests(lambda rank: there.path(rank, str(rank))))
        memory = bytearray(value.total)
        there.get(
            (rank, str(rank), sum(one.size for one in found), _join(found))
            for rank, found in value.targets(memory).items()
        )
    return memory


def _pieces(target: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The parts of a target in their order; each is small, or in one piece there."""
    if target.flags.c_contiguous or target.nbytes <= PIECE_NBYTES:
        return [target]
    step = PIECE_NBYTES * len(target) // target.nbytes
    if step == 0:
        return [piece for row in target for piece in _pieces(row)]
    return [target[at : at + step] for at in range(0, len(target), step)]


def _join(targets: Sequence[np.ndarray[Any, Any]]) -> Callable[[int, memoryview], None]:
    """Takes a rank's bytes, as they come, and puts them where its parts belong.

    Of ``_pieces`` that are not in one piece there, each is here twice until all of it has come.
    """

    def joining() -> Generator[None, memoryview, None]:
        data = memoryview(b"")
        for target in targets:
            flat = target.reshape(-1)  # another array if ``target`` is not in one piece
            done = 0
            while done < flat.size:
                data = data or (yield)
                size = min(len(data), flat.size - done)
                flat[done : done + size] = data[:size]
                done, data = done + size, data[size:]
            if not target.flags.c_contiguous:
                target[...] = flat.reshape(target.shape)
        while True:
            yield

    joiner = joining()
    next(joiner)
    return lambda at, data: joiner.send(data)


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
        if name == "of_jax":
            return self._of_jax
        if name == "subimport" and module.startswith("cloudpickle"):
            return self._module
        return self._of_jax(module, name) if _is_jaxs(module) else super().find_class(module, name)

    def _module(self, name: str) -> Any:
        return self._of_jax(name, "") if _is_jaxs(name) else importlib.import_module(name)

    def _of_jax(self, module: str, name: str) -> Any:
        found = ops.of_jax(module, name)
        if isinstance(found, ops.OfJax):  # else the notebook has imported jax itself
            self.of_jax.append(found)
        return found


def load(data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The value that a rank has pickled; its arrays are given already joined.

    Raises:
      NeedsJax: it has something of jax's own.
      NotSerialisable: a module or an attribute that it needs is not here.
    """
    guards = [] if "jax" in sys.modules else [_NoJax()]
    sys.meta_path[:0] = guards
    unpickler = _Unpickler(data, arrays, buffers)
    try:
        value = unpickler.load()
    except NeedsJax:
        raise
    except Exception as error:
        if unpickler.of_jax:  # it was called, or is the class of an object
            raise NeedsJax(str(unpickler.of_jax[0])) from None
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
        raise
    finally:
        for guard in guards:
            sys.meta_path.remove(guard)
    if isinstance(value, ops.OfJax):
        raise NeedsJax(str(value))
    return value


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
    *offsets, total = _offsets([raw.nbytes for raw in raws])
    at = [[o, o + raw.nbytes] for o, raw in zip(offsets, raws, strict=True)]
    filled = {o: raw for o, raw in zip(offsets, raws, strict=True) if raw.nbytes}
    for way in (_share, _bring_to_hosts) if total >= SHARED_FROM_NBYTES else ():
        with contextlib.suppress(NoRoom), way(world, chosen, filled, total) as paths:
            _assign(world, paths, at, [pickled])
            return
    if total:
        check_memory(" and ".join(values), total * len(chosen))
    _assign(world, dict.fromkeys(chosen, ""), [], [pickled, *raws])


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap(ops.FILES, cloudpickle.Pickler.dispatch_table)


def _dumps(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue()


def _assign(
    world: World,
    paths: Mapping[int, str],
    places: list[list[int]],
    buffers: Sequence[bytes | memoryview],
) -> None:
    """Have the ranks read the values, and once all have, bind them.

    Raises:
      CellInterrupted: stop was pressed when all had read it.
    """

    token = secrets.token_hex(8)

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
