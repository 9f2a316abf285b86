"""A rank's side of push and pull.

A value travels as a pickle and raw buffers. The shards of its jax.Arrays are buffers too: each rank
gives its own, where the notebook says: in a file of shared memory that the notebook maps (same
host, one copy), in a file of its host's, or in the reply.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import time
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from jaxcluster import wire
from jaxcluster.engine.arrays import (
    arrays_of,
    check_leaves,
    describe,
    is_array,
    numpy_view,
    read_numbers,
    spans_processes,
    wait_ready,
)
from jaxcluster.engine.control import Request
from jaxcluster.engine.given import LOOK_NBYTES, Room, hashes
from jaxcluster.engine.names import LostNames, is_users
from jaxcluster.wire.ops.values import (
    FILES,
    Assign,
    AssignBind,
    Describe,
    Described,
    Forget,
    Give,
    Given,
    Spanning,
    Unbind,
    reference_to,
)

PROTOCOL = 5
READY_TIMEOUT_S = 30.0
HELD_S = 900.0  # longer than any notebook waits for a value
PLACE_CHARS = 80
CLASS_NUMBER = -2  # where cloudpickle's arguments for making a class have its number
MOST_CLASSES = 1024  # that are known by their numbers
MAKE_CLASS = ("_make_skeleton_class", "_make_skeleton_enum")
SET_CLASS = "_class_setstate"


class BadName(Exception):
    """A name that this rank does not have."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class CannotPickle(Exception):
    """A value that can't be pickled."""

    hint = ""


@dataclass
class Held:
    """What a rank keeps between ``describe`` and ``give``."""

    name: str
    arrays: list[Any]  # jax's, and then the pickle's buffers as numpy's


class ValueUnpickler(pickle.Unpickler):
    """Reads a value that was pushed.

    Args:
      classes: those of cells that were pulled, by their numbers: they stay as they are.
    """

    def __init__(self, pickled: bytes, buffers: Sequence[Any], classes: Mapping[str, type]) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self._classes = classes
        self._met: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle") or name not in (*MAKE_CLASS, SET_CLASS):
            return found

        def make(*arguments: Any) -> type:
            if (cls := self._classes.get(arguments[CLASS_NUMBER])) is None:
                made: type = found(*arguments)
                return made
            self._met.add(cls)
            return cls

        def set_state(cls: type, state: Any) -> None:
            if cls not in self._met:
                found(cls, state)

        return set_state if name == SET_CLASS else make


class ArrayPickler(cloudpickle.Pickler):
    """Pickles everything but jax.Arrays, which it gathers in ``arrays``, and open files.

    Those in dicts come in the order of the keys, as in JAX: other ranks may have filled theirs in
    another one.

    cloudpickle marks a class with a random number of its process. By that, an object that was
    pulled and is pushed would be of its own class on rank 0 alone. So a class of a cell gets a
    number that each rank gives it, as all describe a pulled value.

    Args:
      classes: notes these classes by their numbers.

    Attributes:
      places: the keys and attributes of each array, which other ranks' must have too.
    """

    dispatch_table: ClassVar[Any] = ChainMap(FILES, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self,
        file: io.BytesIO,
        buffers: list[pickle.PickleBuffer],
        token: str,
        classes: dict[str, type],
        value: Any,
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffers.append)
        found = {id(one): one for one in _leaves(value) if is_array(one)}
        self.arrays: list[Any] = list(found.values())
        self.places: list[set[str]] = [set() for _ in found]
        self._seen = {at: number for number, at in enumerate(found)}
        self._token, self._classes, self._met = token, classes, 0
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
        if issubclass(type(obj), type) and (known := reference_to(obj)) is not None:
            return known
        reduced = super().reducer_override(obj)
        is_class = isinstance(reduced, tuple) and issubclass(type(obj), type)
        if not is_class or getattr(reduced[0], "__name__", "") not in MAKE_CLASS:
            return reduced
        while len(self._classes) >= MOST_CLASSES:
            del self._classes[next(iter(self._classes))]
        self._met += 1
        number = f"{self._token} {self._met} {obj.__qualname__}"
        self._classes[number] = obj
        make, arguments, *others = reduced
        return make, (*arguments[:CLASS_NUMBER], number, *arguments[CLASS_NUMBER + 1 :]), *others


class Values:
    """Answers for the namespace of one rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.namespace: dict[str, Any] = {}
        self.lost = LostNames()
        self.last_result: Any = lambda: None
        self._classes: dict[str, type] = {}  # see ``ArrayPickler``
        self._kept: dict[str, tuple[Any, float]] = {}  # by token: what was described, or pushed
        # Of those that were given up before this rank came to them.
        self._forgotten: deque[str] = deque(maxlen=64)

    def lookup(self, name: str) -> Any:
        """The value of a name; ``""`` is the last cell's last expression."""
        if not name:
            return self.last_result()
        try:
            return self.namespace[name]
        except KeyError:
            import difflib

            known = [k for k, v in self.namespace.items() if is_users(k, v) and k[0] != "_"]
            close = difflib.get_close_matches(name, known, n=3)
            hint = (
                f"Did you mean {' or '.join(close)}?"
                if close
                else "%spmd %who lists the ranks' variables."
            )
            if reason := self.lost.reasons.get(name):
                raise BadName(f"Rank {self.rank}: {name!r} {reason}.", "") from None
            raise BadName(f"Rank {self.rank} has no variable {name!r}.", hint) from None

    # ------------------------------------------------------------------ pull

    def describe_value(self, request: Request[Describe]) -> tuple[Described, list[bytes]]:
        """``describe``: the pickle (rank 0, or whoever is asked for it) and this rank's arrays."""
        body = request.body
        name, value = body.name, self.lookup(body.name)
        if body.plain:
            value = plain_containers(value)
        file = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        pickler = ArrayPickler(file, buffers, body.token, self._classes, value)
        try:
            pickler.dump(value)
        except Exception as error:
            raise CannotPickle(
                f"{name} can't be pickled on rank {self.rank}: {type(error).__name__}: {error}"
            ) from None
        arrays = [numpy_view(a) for a in pickler.arrays]
        raws = [np.frombuffer(b.raw(), np.uint8) for b in buffers] if body.pickle else []
        if arrays or raws:
            self._keep(body.token, Held(name, [*arrays, *raws]))
        infos = [describe(array) for array in arrays]
        for raw in raws:
            shard = wire.Shard(self.rank, -1, ((0, raw.nbytes),), raw.nbytes)
            infos.append(wire.ArrayInfo(raw.shape, "uint8", False, (shard,), raw.nbytes))
        made = Described(infos, len(raws), [sorted(one) for one in pickler.places])
        return made, [file.getvalue()] if body.pickle else []

    def _keep(self, token: str, value: Any) -> None:
        """Keep a value for the request that follows.

        A notebook that was killed between the two takes its token along, so what is old goes.
        """
        now = time.monotonic()
        for old, (_, since) in list(self._kept.items()):
            if now - since > HELD_S:
                self._kept.pop(old, None)
        if token and token not in self._forgotten:
            self._kept[token] = value, now

    def give(self, request: Request[Give]) -> tuple[Given, list[memoryview]]:
        """``give``: this rank's shards and buffers of what was described."""
        body = request.body
        held, _ = self._kept[body.token]
        parts = _own_parts(held, body.arrays)
        if body.places:
            with open(body.path, "r+b") as file:
                target = mmap.mmap(file.fileno(), 0)
            begins = dict(zip(body.arrays, body.places, strict=True))
            for number, index, values in parts:
                array = held.arrays[number]
                np.ndarray(array.shape, array.dtype, target, begins[number])[index] = values
            return Given(_copies(held)), []
        frames = [np.ascontiguousarray(v).reshape(-1).view(np.uint8).data for *_, v in parts]
        if not body.path:
            return Given(_copies(held)), frames
        with open(body.path, "xb", buffering=0) as file:
            try:
                if nbytes := sum(map(len, frames)):
                    os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError:
                return Given([], has_room=False), []
            for frame in frames:
                rest = frame
                while len(rest):
                    rest = rest[file.write(rest) :]
        return Given(_copies(held)), []

    def forget(self, request: Request[Forget]) -> None:
        """``forget``: a pull or a push was given up. It may still wait for the main thread."""
        token = request.body.token
        self._forgotten.append(token)
        self._kept.pop(token, None)

    # ------------------------------------------------------------------ push

    def assign(self, request: Request[Assign]) -> None:
        """``assign``: read pushed values, which are bound when all ranks have done so.

        On the main thread, so it keeps its turn among cells.
        """
        pickled, *frames = request.buffers
        buffers: Sequence[Any] = frames
        if path := request.body.path:
            with open(path, "rb") as file:
                # A private mapping: written pages become this rank's own, the rest is shared.
                shared = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            buffers = [shared[start:stop] for start, stop in request.body.buffers]
        elif frames:
            buffers = [bytearray(f) for f in frames]  # writable, as the sender's arrays were
        values = ValueUnpickler(bytes(pickled), buffers, self._classes).load()
        self._keep(request.body.token, values)

    def assign_bind(self, request: Request[AssignBind]) -> list[str]:
        """``assign_bind``: bind what ``assign`` has read."""
        values, _ = self._kept.pop(request.body.token)
        self.namespace.update(values)
        return sorted(values)

    # ------------------------------------------------------------------ names

    def unbind(self, request: Request[Unbind]) -> None:
        """``unbind``: forget these names, and keep how they were lost. On the main thread."""
        for name in request.body.names:
            self.namespace.pop(name, None)
        self.lost.add(request.body.lost, self.namespace)

    def spanning_names(self, request: Request[Spanning]) -> list[str]:
        """``spanning``: which of these names hold an array that spans processes, at any depth."""
        names = {name: self.namespace.get(name) for name in request.body.names}
        return [n for n, v in names.items() if any(spans_processes(a) for _, a in arrays_of(v))]


def _copies(held: Held) -> list[list[Any]]:
    """Hashes of the parts that other processes have too, as far as a look reaches."""
    arrays = ((number, one) for number, one in enumerate(held.arrays) if is_array(one))
    return hashes(arrays, Room(LOOK_NBYTES))


def _own_parts(held: Held, numbers: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """(array, index, values) of each shard of which this rank has the first copy."""
    for number in numbers:
        array = held.arrays[number]
        if not is_array(array):
            yield number, ..., array
            continue
        wait_ready(array, held.name, READY_TIMEOUT_S)
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                yield number, shard.index, read_numbers(shard.data)


def _leaves(value: Any) -> list[Any]:
    """What is in dicts, lists and tuples, in the order that a program of JAX gets them."""
    import jax

    try:
        check_leaves(value)
        # Code of the user's, which others may be made of, is not called.
        return jax.tree.leaves(value, is_leaf=lambda v: type(v) not in (dict, list, tuple))
    except Exception:  # too many, or keys that have no order: they come as they are met
        return []


def plain_containers(value: Any) -> Any:
    """A pytree as nested dicts and lists, for a notebook that lacks the classes it is made of."""
    import jax

    check_leaves(value)
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
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
