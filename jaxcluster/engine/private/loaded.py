"""Executables that were loaded from bytes: what they were loaded from, and what their text was."""

from __future__ import annotations

import functools
import sys
import zlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Loaded:
    """One executable of XLA's that was not compiled here.

    Attributes:
      packed: the bytes that it was loaded from, compressed.
      text: what was noted of its text where it was compiled (``programs.Text``), or None.
    """

    executable: Any
    packed: bytes
    text: Any


# By id. They take no weak references, so those that nobody else has are looked for now and then.
_loaded: dict[int, Loaded] = {}
_original: Any = None  # XLA's own way to load


def find(executable: Any) -> Loaded | None:
    """What is known of an executable, if it was loaded."""
    return _loaded.get(id(executable))


def pack(serialized: bytes) -> bytes:
    """An executable's bytes as they are kept: a fifth of them, in 1 % of the time to compile it."""
    return zlib.compress(serialized, 1)


def load(backend: Any, packed: bytes, text: Any, *arguments: Any) -> Any:
    """The executable that ``packed`` was made of; the arguments are the backend's own."""
    executable = _original(backend, zlib.decompress(packed), *arguments)
    _note(executable, packed, text)
    return executable


def _note(executable: Any, packed: bytes, text: Any) -> None:
    for known, one in list(_loaded.items()):
        if _references(one) <= _OURS:
            _loaded.pop(known, None)
    _loaded[id(executable)] = Loaded(executable, packed, text)


def _references(one: Loaded) -> int:
    return sys.getrefcount(one.executable)


_OURS = _references(Loaded(object(), b"", None))  # how many there are where nobody else has it


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
            known = find(self)
            return of_executable(self) if known is None else zlib.decompress(known.packed)

        @functools.wraps(of_client)
        def serialize_executable(self: Any, executable: Any) -> Any:
            known = find(executable)
            if known is None:
                return of_client(self, executable)
            return zlib.decompress(known.packed)

        @functools.wraps(original)
        def deserialize_executable(self: Any, serialized: bytes, *args: Any, **kwargs: Any) -> Any:
            executable = original(self, serialized, *args, **kwargs)
            _note(executable, pack(serialized), None)
            return executable

        _jax.LoadedExecutable.serialize = serialize
        _jax.Client.serialize_executable = serialize_executable
        _jax.Client.deserialize_executable = deserialize_executable
    except (ImportError, AttributeError, TypeError):
        return False
    _original = original
    return True
