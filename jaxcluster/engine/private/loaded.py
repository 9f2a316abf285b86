"""The executables of this process, which are not to be unloaded on any thread at any time.

CUDA unloads a program only once all that runs on its device has ended, and whoever drops the last
reference waits for that with Python's lock: the garbage collector, on any thread. So a reference
to each is kept here, until another program is compiled or loaded while nothing runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxcluster.engine.arrays import is_ready


class Loaded(NamedTuple):
    """An executable; if it was loaded, what was noted of its text, and what reads its bytes."""

    executable: Any
    text: Any = None
    read: Callable[[], bytes | None] = lambda: None


_loaded: dict[int, Loaded] = {}  # by id, as they take no weak references
_one = Loaded(object())
_OURS = sys.getrefcount(_one.executable)  # references where nobody else has it


def note(executable: Any, *loaded: Any) -> None:
    """Keep an executable until nobody else has it, nothing runs, and another one comes."""
    known = list(_loaded.items())
    unused = [number for number, one in known if sys.getrefcount(one.executable) <= _OURS]
    if unused and all(map(is_ready, sys.modules["jax"].live_arrays())):
        for number in unused:
            _loaded.pop(number, None)
    _loaded.setdefault(id(executable), Loaded(executable, *loaded))


def serialize_as_loaded() -> None:
    """Have executables that were loaded serialized as the bytes that they were loaded from.

    On CPU XLA's own bytes of one that was loaded lack its machine code, and nobody notices before
    they are run ("Function wrapped_sine not found", jaxlib 0.10.2 and 0.12).
    """
    from jax._src.lib import _jax

    executable, client = _jax.LoadedExecutable, _jax.Client
    for owner, name in ((executable, "serialize"), (client, "serialize_executable")):
        original = getattr(owner, name)

        def serialize(*given: Any, original: Any = original) -> Any:
            return _loaded.get(id(given[-1]), Loaded(None)).read() or original(*given)

        setattr(owner, name, serialize)


def text_of(executable: Any) -> Any:
    """What was noted of an executable's text where it was compiled, if it was loaded."""
    return _loaded.get(id(executable), Loaded(None)).text
