"""The executables of this process: what loaded ones were made of, and when they are unloaded.

CUDA unloads a program only once all that runs on its device has ended, and whoever drops the last
reference waits for that with Python's lock. In a rank that waits for others in a collective this
would be for ever, and the rank could tell nobody where it waits: the garbage collector has done it
on the control thread. So on GPU a reference to each is kept here, until the main thread drops those
that nobody else has, before a cell, where the devices have nothing to do.
"""

from __future__ import annotations

import functools
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcluster.engine.private import arrays

IDLE_S = 0.002  # how long a device gets before a cell to show that it has nothing to do


@dataclass(frozen=True)
class Loaded:
    """One executable of XLA's.

    Attributes:
      packed: the bytes that it was loaded from, compressed; None where it was compiled here.
      text: what was noted of its text where it was compiled (``programs.Text``), or None.
    """

    executable: Any
    packed: bytes | None = None
    text: Any = None


# By id. They take no weak references, so those that nobody else has are looked for now and then.
_loaded: dict[int, Loaded] = {}
_seen = 0  # how many there were when it was looked for some that nobody else has
_original: Any = None  # XLA's own way to load
_unload_when_idle = False


def find(executable: Any) -> Loaded | None:
    """What is known of an executable, if it was loaded."""
    known = _loaded.get(id(executable))
    return known if known is not None and known.packed is not None else None


def pack(serialized: bytes) -> bytes:
    """An executable's bytes as they are kept: a fifth of them, in 1 % of the time to compile it."""
    return zlib.compress(serialized, 1)


def load(backend: Any, packed: bytes, text: Any, *arguments: Any) -> Any:
    """The executable that ``packed`` was made of; the arguments are the backend's own."""
    executable = _original(backend, zlib.decompress(packed), *arguments)
    _note(Loaded(executable, packed, text))
    return executable


def unload_when_idle() -> None:
    """From now on executables are unloaded by ``unload`` alone."""
    global _unload_when_idle
    _unload_when_idle = True


def keep(executable: Any) -> None:
    """Keep one that was compiled here from being unloaded while something runs."""
    if _unload_when_idle and id(executable) not in _loaded:
        _note(Loaded(executable))


def unload() -> None:
    """Unload what nobody uses any more, if the devices have nothing to do. Main thread, no cell.

    Up to ``IDLE_S``; nothing where no executable has come since.
    """
    global _seen
    if not _unload_when_idle or len(_loaded) == _seen:
        return
    if _unused() and not _are_idle():
        return  # next time
    _forget_unused()
    _seen = len(_loaded)


def _note(one: Loaded) -> None:
    if not _unload_when_idle:
        _forget_unused()
    _loaded[id(one.executable)] = one


def _unused() -> list[int]:
    return [known for known, one in list(_loaded.items()) if _references(one) <= _OURS]


def _forget_unused() -> None:
    for known in _unused():
        _loaded.pop(known, None)


def _references(one: Loaded) -> int:
    return sys.getrefcount(one.executable)


_OURS = _references(Loaded(object()))  # how many there are where nobody else has it


def _are_idle() -> bool:
    """Whether this process's devices have done all that they were given, within ``IDLE_S``."""
    with arrays.exactly():
        done = [compute(value) for compute, value in _last_computations()]
    deadline = time.monotonic() + IDLE_S
    while not all(mark.is_ready() for mark in done):
        if time.monotonic() > deadline:
            return False
        time.sleep(IDLE_S / 20)
    return True


@functools.cache
def _last_computations() -> Sequence[tuple[Callable[[Any], Any], Any]]:
    """For each device what it computes once it has computed all before, and from what."""
    import jax

    values = [jax.device_put(np.int32(0), device) for device in jax.local_devices()]
    step = jax.jit(lambda value: value + 1)
    return [(step.lower(value).compile(), value) for value in values]


def serialize_as_loaded() -> bool:
    """Have executables that were loaded serialized as the bytes that they were loaded from.

    On CPU XLA's own bytes of one that was loaded lack its machine code, and nobody notices before
    they are run somewhere ("Function wrapped_sine not found", jaxlib 0.10.2 and 0.12). So it is
    also with what JAX's persistent cache has loaded. JAX serializes by either of two methods.

    Returns:
      False where the methods have moved.
    """
    global _original
    if _original is not None:
        return True
    try:
        from jax._src.lib import _jax

        of_executable: Any = _jax.LoadedExecutable.serialize
        of_client: Any = _jax.Client.serialize_executable
        original: Any = _jax.Client.deserialize_executable

        @functools.wraps(of_executable)
        def serialize(self: Any) -> Any:
            return _packed(self) or of_executable(self)

        @functools.wraps(of_client)
        def serialize_executable(self: Any, executable: Any) -> Any:
            return _packed(executable) or of_client(self, executable)

        @functools.wraps(original)
        def deserialize_executable(self: Any, serialized: bytes, *args: Any, **kwargs: Any) -> Any:
            executable = original(self, serialized, *args, **kwargs)
            _note(Loaded(executable, pack(serialized)))
            return executable

        _jax.LoadedExecutable.serialize = serialize
        _jax.Client.serialize_executable = serialize_executable
        _jax.Client.deserialize_executable = deserialize_executable
    except (ImportError, AttributeError, TypeError):
        return False
    _original = original
    return True


def _packed(executable: Any) -> bytes | None:
    """The bytes that an executable was loaded from, if it was."""
    known = find(executable)
    return None if known is None or known.packed is None else zlib.decompress(known.packed)
