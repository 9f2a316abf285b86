"""The executables of this process, which are not to be unloaded on any thread at any time.

CUDA unloads a program only once all that runs on its device has ended, and whoever drops the last
reference waits for that with Python's lock: the garbage collector, on any thread. So a reference
to each is kept here, until another program is compiled or loaded while nothing runs.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from jaxcluster.engine.arrays import is_ready


class Loaded(NamedTuple):
    """An executable, and what was noted of its text (``programs.Text``) if it was loaded."""

    executable: Any
    text: Any = None


_loaded: dict[int, Loaded] = {}  # by id, as they take no weak references


def note(executable: Any, text: Any = None) -> None:
    """Keep an executable until nobody else has it, nothing runs, and another one comes."""
    unused = [number for number, one in list(_loaded.items()) if _references(one) <= _OURS]
    if unused and all(map(is_ready, sys.modules["jax"].live_arrays())):
        for number in unused:
            _loaded.pop(number, None)
    _loaded.setdefault(id(executable), Loaded(executable, text))


def text_of(executable: Any) -> Any:
    """What was noted of an executable's text where it was compiled, if it was loaded."""
    return _loaded.get(id(executable), Loaded(None)).text


def _references(one: Loaded) -> int:
    return sys.getrefcount(one.executable)


_OURS = _references(Loaded(object()))  # how many there are where nobody else has it
