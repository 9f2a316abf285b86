"""Classes that cells define, in values that are pulled and pushed again.

cloudpickle marks a class with a random number of its process. By that, an object that was pulled
and is pushed would be of its own class on rank 0 alone, and that class would get its older
attributes back. So it gets a number that each rank gives it, as all describe a pulled value. What
is pushed with this number is of the rank's own class, which stays as it is.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

_NUMBER = -2  # where cloudpickle's arguments for making a class have its number
_MOST = 1024  # classes that are known by their numbers
_MAKE = ("_make_skeleton_class", "_make_skeleton_enum")
_SET = "_class_setstate"


class PulledClasses:
    """Those that one rank has described."""

    def __init__(self) -> None:
        self._known: dict[str, type] = {}

    def renumber(self, cls: type, number: str, reduced: Any) -> Any:
        """How cloudpickle reduces a class, with that number."""
        if not isinstance(reduced, tuple) or getattr(reduced[0], "__name__", "") not in _MAKE:
            return reduced
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[number] = cls
        make, arguments, *others = reduced
        return make, (*arguments[:_NUMBER], number, *arguments[_NUMBER + 1 :]), *others

    def load(self, pickled: bytes, buffers: Sequence[Any]) -> Any:
        """A value that was pushed."""
        return _Unpickler(pickled, buffers, self._known).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, buffers: Sequence[Any], known: dict[str, type]) -> None:
        super().__init__(io.BytesIO(pickled), buffers=buffers)
        self._known = known
        self._met: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle") or name not in (*_MAKE, _SET):
            return found

        def make(*arguments: Any) -> type:
            if (cls := self._known.get(arguments[_NUMBER])) is None:
                made: type = found(*arguments)
                return made
            self._met.add(cls)
            return cls

        def set_state(cls: type, state: Any) -> None:
            if cls not in self._met:
                found(cls, state)

        return set_state if name == _SET else make
