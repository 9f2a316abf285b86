"""A rank's side of push and pull.

A value travels as a pickle and raw buffers. The shards of its jax.Arrays are buffers too: each rank
gives its own, in its memory or in the reply.
"""

from __future__ import annotations

import difflib
import io
import mmap
import pickle
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from jaxcluster import wire
from jaxcluster.host.memory import allow_reader
from jaxcluster.model.pickling import FILES, reference_to
from jaxcluster.rank.arrays import (
    Patience,
    Unavailable,
    describe,
    is_array,
    is_living,
    leaves_of,
    read_numbers,
    spans_processes,
)
from jaxcluster.rank.control import Request
from jaxcluster.rank.given import hashes
from jaxcluster.rank.names import is_users
from jaxcluster.rank.private import kinds
from jaxcluster.rank.private.kinds import numpy_view
from jaxcluster.wire.ops.values import (
    FILE_FROM_NBYTES,
    Assign,
    Pull,
    Pulled,
)

PROTOCOL = 5
READY_TIMEOUT_S = 30.0
PLACE_CHARS = 80
WHO = "%spmd %who lists the ranks' variables"

Numbered = weakref.WeakSet[type]  # classes of cells that were pulled, and have a number of ours


class CannotPickle(Unavailable):
    """A value that can't be pickled."""


class ValueUnpickler(pickle.Unpickler):
    """Reads a value that was pushed. Classes that were pulled stay as they are here.

    cloudpickle finds them by their numbers, and would give them the attributes that they had.
    """

    def __init__(self, pickled: bytes, buffers: Sequence[Any], numbered: Numbered) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self._numbered = numbered

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle") or name != "_class_setstate":
            return found
        return lambda cls, state: None if cls in self._numbered else found(cls, state)


class ArrayPickler(cloudpickle.Pickler):
    """Pickles everything but jax.Arrays, which it gathers in ``arrays``, and open files.

    Those in dicts come in the order of the keys, as in JAX: other ranks may have filled theirs in
    another one.

    cloudpickle marks a class with a random number of its process. By that, an object that was
    pulled and is pushed would be of its own class on rank 0 alone. So a class of a cell gets a
    number that each rank gives it, as all pull a value in the same turn.

    Args:
      turn: of the pull.
      numbered: notes the classes that have such a number.

    Attributes:
      places: the keys and attributes of each array, which other ranks' must have too.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        file: io.BytesIO,
        buffers: list[pickle.PickleBuffer],
        turn: int,
        numbered: Numbered,
        value: Any,
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers.append)
        found = {id(one): one for one in _leaves(value) if is_array(one)}
        self.arrays: list[Any] = list(found.values())
        self.places: list[set[str]] = [set() for _ in found]
        self._seen = {at: number for number, at in enumerate(found)}
        self._turn, self._numbered, self._met = turn, numbered, 0
        self._text = ""  # the last one since the last array

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is str:
            self._text = obj[:PLACE_CHARS]
        if not is_array(obj):
            return None
        if id(obj) not in self._seen:
            self._seen[id(obj)] = len(self.arrays)
            self.arrays.append(obj)
            self.places.append(set())
        number = self._seen[id(obj)]
        self.places[number].add(self._text)
        self._text = ""
        return number

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), type):
            if (known := reference_to(obj)) is not None:
                return known
            if obj.__module__ == "__main__" or "<locals>" in obj.__qualname__:
                self._met += 1
                number = f"jaxcluster {self._turn} {self._met} {obj.__qualname__}"
                kinds.number_class(obj, number)
                self._numbered.add(obj)
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
        self._numbered = Numbered()
        self.hold: Callable[[str, dict[str, Any]], None] = lambda token, names: None

    def lookup(self, name: str) -> Any:
        """The value of a name; ``""`` is the last cell's last expression."""
        if not name:
            return self.last_result()
        try:
            return self.namespace[name]
        except KeyError:
            if reason := self.lost.get(name):
                raise Unavailable(f"{name!r} {reason}") from None
            users = [n for n, v in self.namespace.items() if is_users(n, v) and n[0] != "_"]
            close = " or ".join(difflib.get_close_matches(name, users))
            hint = f"did you mean {close}?" if close else WHO
            raise Unavailable(f"no variable {name!r} ({hint})") from None

    # ------------------------------------------------------------------ pull

    def pull(self, request: Request[Pull]) -> tuple[Pulled, list[bytes]]:
        """``pull``: the pickle, if this rank is asked for it, and this rank's shards."""
        body = request.body
        name, value = body.name, self.lookup(body.name)
        if body.plain:
            value = plain_containers(value)
        file = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        pickler = ArrayPickler(file, buffers, body.turn.seq, self._numbered, value)
        try:
            pickler.dump(value)
        except Exception as error:
            told = f"{name} can't be pickled: {type(error).__name__}: {error}"
            raise CannotPickle(told) from None
        arrays = [numpy_view(a) for a in pickler.arrays]
        infos = [describe(array) for array in arrays]
        raws = [np.frombuffer(b.raw(), np.uint8) for b in buffers] if body.pickle else []
        for raw in raws:
            shard = wire.Shard(self.rank, -1, ((0, raw.nbytes),), raw.nbytes)
            infos.append(wire.ArrayInfo(raw.shape, "uint8", False, (shard,), raw.nbytes))
        given = [a for a in arrays if is_living(a) and (body.is_all or spans_processes(a))]
        total = sum(array.nbytes for array in [*given, *raws])
        parts: list[np.ndarray[Any, Any]] = []
        if total <= body.room:
            parts = [_bytes(part) for part in _first_copies(name, given) if part.nbytes]
            parts += [raw.copy() for raw in raws if raw.nbytes]  # a cell may change them meanwhile
        copies = hashes([(number, a) for number, a in enumerate(arrays) if is_living(a)])
        places = [sorted(one) for one in pickler.places]
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
        values = ValueUnpickler(bytes(pickled), buffers, self._numbered).load()
        self.hold(request.body.token, values)


def _first_copies(name: str, arrays: Sequence[Any]) -> Iterator[Any]:
    """The values of each shard of which this rank has the first copy."""
    patience = Patience(READY_TIMEOUT_S, name, ends_idle=False)
    for array in arrays:
        patience.wait(array)
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                yield read_numbers(shard.data)


def _bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _leaves(value: Any) -> list[Any]:
    """What is in a pytree, in the order that a program of JAX gets it."""
    try:
        return [leaf for _, leaf in leaves_of(value)]
    except Exception:  # too many, or keys that have no order: they come as they are met
        return []


def plain_containers(value: Any) -> Any:
    """A pytree as nested dicts and lists, for a notebook that lacks the classes it is made of."""
    leaves = leaves_of(value)
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    tree: dict[Any, Any] = {}
    for path, leaf in leaves:
        node = tree
        keys = [_plain_key(key) for key in path]
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = leaf
    return tree


def _plain_key(key: Any) -> Any:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
