"""A rank's jax.Arrays: what they are in, whether they are computed, and what they hold.

Everything here uses addressable shards alone: no collective is run, so nothing here can hang on
another rank. A value that is still being computed is waited for, for a bounded time.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, default_registry

from jaxcluster.rank.private.kinds import numpy_view

Bounds = tuple[tuple[int, int], ...]
Leaf = tuple[tuple[str, ...], Any]

READY_POLL_S = 0.002
IDLE_S = 0.4  # a process that works less than a tenth of it computes nothing
MOST_PARTS = 1 << 18  # containers and leaves of a pytree that is looked at
MOST_STEPS = 1000  # to a leaf
PLAIN = frozenset({bool, int, float, complex, str, bytes})  # most leaves where there are many
LATE = "It may be waiting for another rank: %jaxcluster status shows where each rank is."
PART = "Look at a part of it."


class Unavailable(Exception):
    """A variable can't be given as it was asked for; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def parts_of(node: Any) -> Sequence[tuple[Any, Any]] | None:
    """The children of a container, with JAX's keys; None for a leaf.

    Beyond what JAX knows as a pytree, dataclasses are entered too.
    """
    kind = type(node)
    if kind in PLAIN or is_array(node):
        return None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # jax 0.10.2 names all as the first
        return [(GetAttrKey(name), one) for name, one in zip(kind._fields, node, strict=True)]
    if (level := default_registry.flatten_one_level_with_keys(node)) is not None:
        return list(level[0])
    if hasattr(kind, "__dataclass_fields__"):
        return [(GetAttrKey(n), getattr(node, n, None)) for n in kind.__dataclass_fields__]
    return None


def leaves_of(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves of a pytree, with JAX's keys, in the order in which a program of JAX gets them.

    A list that is held twice counts twice, so ``for _ in range(90): x = [x, x]`` has 2**90 leaves.
    JAX would list them all, and uses up what Python has of recursion where one holds itself.

    Raises:
      Unavailable: it has more than ``MOST_PARTS``, or is nested too deeply.
    """
    leaves: list[tuple[tuple[Any, ...], Any]] = []
    todo: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    met = 0
    while todo:
        keys, node = todo.pop()
        met += 1
        if met > MOST_PARTS:
            raise Unavailable(f"it has more than {MOST_PARTS:,} parts", PART)
        if len(keys) > MOST_STEPS:
            raise Unavailable("it is nested too deeply, or holds itself", PART)
        if (parts := parts_of(node)) is None:
            leaves.append((keys, node))
        else:
            todo += [((*keys, key), part) for key, part in reversed(parts)]
    return leaves


def arrays_of(value: Any) -> list[Leaf]:
    """The living arrays in a pytree, with their paths: ``("['w']", '[0]', '.b')``."""
    try:
        leaves = leaves_of(value)
    except Exception:  # a user's own pytree class may refuse to be taken apart
        return []
    return [(tuple(map(str, keys)), leaf) for keys, leaf in leaves if is_living(leaf)]


def is_array(value: Any) -> bool:
    """Whether ``value`` is a ``jax.Array``: by its type, which no object can lie about.

    A tracer is not one.
    """
    return issubclass(type(value), jax.Array)


def spans_processes(value: Any) -> bool:
    """Whether ``value`` is a ``jax.Array`` of which other processes hold a part."""
    return is_living(value) and not value.is_fully_addressable


def is_living(value: Any) -> bool:
    """Whether it is an array that has its values: it is not deleted."""
    return is_array(value) and not value.is_deleted()


def shards_of(array: Any) -> Any:
    """The shards of an array on this process's devices.

    JAX (0.10.2 and 0.12) can't list the only one of an array that is the same on all processes if
    ``device_put`` has made it of a local array.

    Raises:
      RuntimeError: it is deleted.
    """
    try:
        return array.addressable_shards
    except ValueError:
        own, make = [array.addressable_data(0)], jax.make_array_from_single_device_arrays
        return make(array.shape, array.sharding, own).addressable_shards


def devices_hash(array: Any) -> str:
    """Equal on ranks whose array lies on the same devices."""
    ids = sorted(device.id for device in array.sharding.device_set)
    return hashlib.blake2b(repr(ids).encode(), digest_size=8).hexdigest()


def is_ready(array: Any) -> bool:
    """Whether ``array`` is computed; deleted ones are not.

    jax 0.10.2 crashes if a deleted array is asked. A cell on the main thread may donate it at any
    moment. So both questions are asked in C, with no other thread in between.
    """
    base = numpy_view(array)
    return any(map(operator.call, (base.is_deleted, base.is_ready))) and not base.is_deleted()


def is_any_unfinished() -> bool:
    """Whether an array that spans processes is still to be computed.

    If a launch can't end on this process, the code that waited for its result still holds it.
    """
    return any(
        not any(map(operator.call, (array.is_deleted, array.is_ready)))  # in C, as in ``is_ready``
        and not array.is_fully_addressable
        for array in jax.live_arrays()
    )


def bounds(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """A shard's index as (start, stop) for each axis, all bounds written out.

    A key array's index has one axis more: that of the key's words.
    """
    ends = [part.indices(size) for part, size in zip(index, shape, strict=False)]
    return tuple((start, stop) for start, stop, _ in ends)


class Patience:
    """Waits for arrays: so many seconds for all of them, from the first that is not computed.

    Args:
      name: what they are, for messages.
      ends_idle: on CPU, end once the process is nearly idle: it sits in a collective, and the
        others never come.
    """

    def __init__(self, seconds: float, name: str = "", *, ends_idle: bool = True) -> None:
        self._seconds, self._ends_idle, self._until = seconds, ends_idle, 0.0
        self._begin = f"{name} is " if name else ""
        self._looked = 0.0, 0.0  # when, and what the CPUs had done by then

    def wait(self, array: Any) -> None:
        """Wait until an array is computed.

        Raises:
          Unavailable: it is not in time, or was deleted meanwhile.
        """
        while not is_ready(array):
            if array.is_deleted():
                raise Unavailable(f"{self._begin}deleted or was donated")
            now, used = time.monotonic(), time.process_time()
            if not self._until:
                self._until, self._looked = now + self._seconds, (now, used)
            if self._ends_idle and (past := now - self._looked[0]) > IDLE_S:
                is_idle = used - self._looked[1] < past / 10
                on_cpu = next(iter(array.devices())).platform == "cpu"
                self._until = now if is_idle and on_cpu else self._until
                self._looked = now, used
            if now >= self._until:
                raise Unavailable(f"{self._begin}still being computed", LATE)
            time.sleep(READY_POLL_S)


def read_numbers(array: Any) -> np.ndarray[Any, Any]:
    """The values of a computed array on this process's devices, on CPU without a copy.

    XLA ends the process if a buffer is read for which there was no memory. So the array is first
    asked how its computation has ended: numpy does not ask.

    Raises:
      Exception: its computation has failed.
    """
    array.block_until_ready()
    return np.asarray(array)


def host_values(array: Any) -> np.ndarray[Any, Any]:
    """A shard's values on the host, without a copy that the user's array would keep.

    ``np.asarray`` keeps its copy from a GPU for as long as the array lives. So it gets another
    array of the same buffer.
    """
    base = numpy_view(array)
    again = jax.make_array_from_single_device_arrays(base.shape, base.sharding, [base])
    return read_numbers(again)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Within, what is ours is made with its dtype and values, whatever the cells have set.

    An array that was made in ``jax.enable_x64`` would be cut to 32 bits outside of it. With
    ``jax_no_tracing`` a new process could make no key.
    """
    with (
        jax.enable_x64(True),
        jax.no_tracing(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
    ):
        yield
