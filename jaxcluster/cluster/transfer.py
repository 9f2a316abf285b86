"""Values between the notebook and the ranks.

A pull needs no collective. Every rank gives the shards of which it holds the first copy, and the
notebook joins them. Large ones it reads in the memory of ranks here. On another host the agent
reads them. Others are frames.

A push goes through memory as well: a file that ranks here and the notebook share.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import psutil

from jaxcluster.agreement.messages import CellSpec
from jaxcluster.cluster import saving, stopbutton
from jaxcluster.cluster.world import World
from jaxcluster.errors import (
    CellInterrupted,
    NotAddressable,
    NotSerialisable,
    TransferError,
    UsageError,
)
from jaxcluster.host.free_space import take_memory
from jaxcluster.host.memory import read_memory
from jaxcluster.hosts.states import NoRoom, in_memory, recall
from jaxcluster.model import layout, notices, pickling
from jaxcluster.model.layout import ArrayLayout, array_layout, volume
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.processes import pid_space, space
from jaxcluster.text import format_nbytes
from jaxcluster.wire.link import Event, Sink, replies, unwrap
from jaxcluster.wire.ops import values as ops
from jaxcluster.wire.ops.saving import Drop

ALIGN = 64
READERS = 4  # threads that read ranks' memory: with one, half of the time is the kernel's


# --------------------------------------------------------------------------- pull


def pull(world: World, name: str) -> Any:
    """The value of ``name`` on rank 0, with every jax.Array in it as a whole numpy array.

    The notebook joins arrays that span processes from all ranks' shards. The ranks compute nothing,
    so a pull can't hang. Shards take twice their size in memory until they are joined.

    Raises:
      UsageError: ``name`` is not a name.
      TransferError: no such variable, or it does not fit into this machine's memory.
      NotAddressable: no rank holds some part of an array.
      NotSerialisable: the value can't be pickled.
    """
    check_names([name])
    for plain in (False, True):
        try:
            value = load(*_fetch(world, name, plain=plain))
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


def _fetch(
    world: World, name: str, *, plain: bool, is_all: bool = False
) -> tuple[bytes, list[np.ndarray[Any, Any]], list[memoryview]]:
    """A value's pickle, its arrays, and the pickle's buffers."""
    ranks, token = range(world.num_processes), secrets.token_hex(8)
    here = [rank for rank in ranks if _is_here(world, rank)]
    room = psutil.virtual_memory().available // 2
    with contextlib.ExitStack() as stack:

        def request(rank: int) -> Callable[[CellSpec], ops.Pull]:
            options = rank == 0, plain, is_all or rank == 0, token if world.is_readable else ""
            reader = os.getpid() if rank in here else 0
            return lambda turn: ops.Pull(turn, name, *options, reader, room)

        holding = dict.fromkeys(ranks if world.is_readable else (), Drop(token))
        stack.callback(world.link.request_each, holding, sink=Sink())
        requests = {rank: request(rank) for rank in ranks}
        answers = world.ask_in_turn(requests, timeout_s=saving.TIMEOUT_S)
        told = replies(answers)
        for rank, one in told.items():
            if not one.spans:
                holding.pop(rank, None)
        layouts = _layouts(name, told)
        if (total := max(one.total for one in told.values())) > room:
            raise TransferError(
                f"{name} holds {format_nbytes(total)}; this machine has room for "
                f"{format_nbytes(room)}.",
                f"Pull a part: %spmd part = {name}[:100]   then   %pull part",
            )
        kinds = [(layout.shape, numpy_dtype(layout.dtype)) for layout in layouts]
        wholes = [np.empty((*shape, dtype.itemsize), np.uint8) for shape, dtype in kinds]

        def take(rank: int) -> bool:
            """Fill in what a rank has given; whether it has given all that is wanted of it."""
            one, has_all, pid = told[rank], True, world.record.pids[rank]
            spans = iter(one.spans if rank in here else ())
            data = memoryview(b"")
            if one.spans and rank not in here:
                data = memoryview(recall(world.fleet.host_of(rank), pid, *one.spans[0]))
            elif not one.spans:
                data = memoryview(answers[rank].buffers[-1])
            for whole, layout, info in zip(wholes, layouts, one.arrays, strict=False):
                is_wanted, is_given = layout.spans or rank == 0, info.spans or is_all or rank == 0
                has_all &= is_given or not is_wanted
                for shard in info.shards if is_given else ():
                    if shard.replica_id != 0 or not shard.nbytes:
                        continue
                    target = whole[tuple(slice(*span) for span in shard.index)]
                    part, data = data[: shard.nbytes], data[shard.nbytes :]
                    span = next(spans, None)
                    if not is_wanted:
                        continue
                    if span is None:
                        target[...] = np.frombuffer(part, np.uint8).reshape(target.shape)
                    elif target.flags.c_contiguous:
                        read_memory(pid, span[0], target)
                    else:
                        values = np.empty(target.shape, np.uint8)
                        read_memory(pid, span[0], values)
                        target[...] = values
            return has_all

        try:
            complete = [take(rank) for rank in ranks if rank not in here]
            with ThreadPoolExecutor(READERS) as pool:
                complete += pool.map(take, here)
        except ProcessLookupError:
            raise TransferError(f"A rank has ended while {name} was read.") from None
        except OSError:  # not allowed here, as in some containers
            world.is_readable = False
            return _fetch(world, name, plain=plain, is_all=is_all)
    if not all(complete):  # a rank can't know that others hold its local array too
        return _fetch(world, name, plain=plain, is_all=True)
    arrays = [w.view(dtype).reshape(s) for w, (s, dtype) in zip(wholes, kinds, strict=True)]
    first = len(arrays) - told[0].buffers
    return bytes(answers[0].buffers[0]), arrays[:first], [one.data for one in arrays[first:]]


def _layouts(name: str, told: Mapping[int, ops.Pulled]) -> list[ArrayLayout]:
    """The layouts of the arrays, joined from all ranks.

    Raises:
      TransferError: an array was deleted, or is not the same on all ranks, as far as was compared.
      NotAddressable: some elements are nobody's.
    """
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
        fewer = {*told} - {*have} if info.spans else set()
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
    if odd := layout.odd_copies({rank: one.copies for rank, one in told.items()}):
        raise TransferError(
            f"The ranks have different copies of {name}: {layout.tell_groups(odd[min(odd)])}.",
            f"%shards {name} --check compares all of it; np.asarray({name}) in a cell is each "
            f"rank's own. {layout.SEED}",
        )
    return layouts


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of that name, also of those that ml_dtypes adds, which is not jax."""
    import ml_dtypes  # noqa: F401

    return np.dtype(name)


# --------------------------------------------------------------------------- memory


def _is_here(world: World, rank: int) -> bool:
    """Whether a rank can open this process's files: it is on this host and sees its processes."""
    is_host = world.record.facts[rank].host_key == space("net")
    return is_host and world.record.pid_space == pid_space()


@contextlib.contextmanager
def _written(
    world: World, ranks: Iterable[int], buffers: Mapping[int, memoryview], total: int
) -> Iterator[dict[int, str]]:
    """One file on each host of these ranks, in its memory: the path for each rank.

    This host's is gone when nobody has it open.

    Args:
      buffers: what is in it, by where it begins.

    Raises:
      NoRoom: a host has none for it.
    """
    paths: dict[int, str] = {}
    with contextlib.ExitStack() as stack:
        if here := [rank for rank in ranks if _is_here(world, rank)]:
            try:
                memory = os.memfd_create("jaxcluster-value")
            except OSError as error:  # this system has none
                raise NoRoom from error
            stack.callback(os.close, memory)
            if not take_memory(memory, total):
                raise NoRoom
            with mmap.mmap(memory, total) as mapped:
                for at, raw in buffers.items():
                    mapped[at : at + raw.nbytes] = raw
            paths = dict.fromkeys(here, f"/proc/{os.getpid()}/fd/{memory}")
        if others := [rank for rank in ranks if rank not in paths]:
            for rank in others:  # a host that can't be reached would be waited for
                if (death := world.dead.get(rank)) is not None:
                    unwrap(Event(rank, "died", "", death))
            places = {rank: world.fleet.host_of(rank) for rank in others}
            paths |= stack.enter_context(in_memory(places, buffers))
        yield paths


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
        found = pickling.of_jax(module, name)
        if isinstance(found, pickling.OfJax):  # else the notebook has imported jax itself
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
        if isinstance(error, AttributeError | ImportError):
            raise NotSerialisable(
                f"The value can't be rebuilt in this notebook: {error}.",
                "Install what it needs here too, or pull a plain dict, list or array instead.",
            ) from None
        raise
    finally:
        for guard in guards:
            sys.meta_path.remove(guard)
    if isinstance(value, pickling.OfJax):
        raise NeedsJax(str(value))
    return value


# --------------------------------------------------------------------------- push


def push(world: World, values: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
    """Bind names on all ranks (or ``ranks``) to these values.

    numpy arrays travel without being copied into the pickle. The ranks of a host map the same
    memory, and a rank copies only pages that it writes. A push waits for running cells.

    Raises:
      UsageError: a key is not a name.
      NotSerialisable: a value can't be pickled; it names which.
      TransferError: there is no memory for it.
      CellInterrupted: stop was pressed when all had read it.
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
    sizes = (-(-raw.nbytes // ALIGN) * ALIGN for raw in raws)
    *offsets, total = itertools.accumulate(sizes, initial=0)
    at = [[o, o + raw.nbytes] for o, raw in zip(offsets, raws, strict=True)]
    filled = {o: raw for o, raw in zip(offsets, raws, strict=True) if raw.nbytes}
    paths, frames = dict.fromkeys(chosen, ""), [pickled, *raws]
    with contextlib.ExitStack() as stack:
        if total >= ops.FILE_FROM_NBYTES:
            with contextlib.suppress(NoRoom):
                paths = stack.enter_context(_written(world, chosen, filled, total))
                frames = [pickled]
        free = psutil.virtual_memory().available
        if len(frames) > 1 and total * len(chosen) > free:
            raise TransferError(
                f"The values hold {format_nbytes(total)} for each of {len(chosen)} ranks; this "
                f"machine has {format_nbytes(free)} free.",
                "Push a part of them, or load them in an %%spmd cell.",
            )

        @functools.cache  # one body for all ranks is encoded once
        def assign(path: str, turn: CellSpec, token: str) -> ops.Assign:
            return ops.Assign(turn, token, path, at if path else [])

        def check() -> None:
            if presses:
                raise KeyboardInterrupt

        each = {rank: functools.partial(assign, path) for rank, path in paths.items()}
        presses = stack.enter_context(stopbutton.held())  # else some might bind it, others not
        _, bind = saving.read(world, each, check, buffers=frames)
        try:
            bind({rank: {} for rank in each}, is_final=True)
        except KeyboardInterrupt:
            raise CellInterrupted(
                "stopped waiting. All ranks have received it, and will bind it as soon as they can."
            ) from None


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap(pickling.FILES, cloudpickle.Pickler.dispatch_table)


def _dumps(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue()


def check_names(names: Iterable[str]) -> None:
    """Raises UsageError for what can't be a variable."""
    for name in names:
        if not str(name).isidentifier() or keyword.iskeyword(str(name)):
            raise UsageError(
                f"{name!r} is not a variable name.",
                "For example: %pull x   or   %push a b",
            )
