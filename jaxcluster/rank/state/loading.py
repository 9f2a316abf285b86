"""Makes a namespace's values again from the files of one or more ranks."""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.classes import making_in
from jaxcluster.rank.state.file import StateFile
from jaxcluster.rank.state.pickling import Unpickler
from jaxcluster.rank.state.saving import REGISTERED, SETTINGS, _why
from jaxcluster.rank.state.settings import Settings, Undo, register_again

Check = Callable[[], None]
SAFE = {str, bytes, int, float, type, FunctionType, BuiltinFunctionType, ModuleType}


@dataclass
class Values:
    """What was read: names' values, what cells have ended in, settings, and what is lost."""

    names: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    undo: Undo = lambda: None


class Buffers:
    """The large buffers of a pickle, in their order from any one on."""

    def __init__(self, source: StateFile) -> None:
        self._source, self.at = source, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.at += 1
        return memoryview(self._source.copy(self._source.about["buffers"][self.at - 1]))


def load(
    files: Mapping[int, StateFile],
    base: int,
    namespace: dict[str, Any],
    settings: Settings,
    check: Check,
    *,
    own: bool,
) -> Values:
    """Make the values that a rank's file has; nothing of them is bound.

    Args:
      base: the rank whose file it is. The others' have shards that it lacks.
      check: raises where it is to end.
      own: it is this rank's own file. Else what may differ between ranks is left out.

    Raises:
      BadFile: a file was changed.
    """
    source, found = files[base], Values()
    arrays = ArraysToLoad(files, base)
    about = source.about
    common = {*about["common"]} if not own else None
    stream, buffers = io.BytesIO(source.copy(about["pickle"]).data), Buffers(source)
    unpickler, gaps = Unpickler(stream, namespace, arrays.array, buffers), set[int]()
    for name, start, stop, first in about["names"]:
        check()
        buffers.at = first
        try:
            if gaps and gaps & _gets(stream.getbuffer()[start:stop]):
                raise ValueError("it shares a part with another name that is lost")
            value = unpickler.load()
        except Exception as error:
            found.lost[name] = _why(error)
            stream.seek(start)
            buffers.at = first
            with making_in(namespace):
                mender = Mender(unpickler, stream, buffers, start)
                mender.load()
            gaps |= mender.gaps()
            stream.seek(stop)
            unpickler = Unpickler(stream, namespace, arrays.array, buffers)
            unpickler.memo = mender.memo  # type: ignore[attr-defined]
            continue
        if name == SETTINGS:
            found.settings = value
            found.undo, found.left = settings.apply(value, own=own)
        elif name == REGISTERED:
            with contextlib.suppress(Exception):
                register_again(value)
        elif common is not None and name not in common:
            continue
        elif name.startswith("Out "):
            found.results[name] = value
        else:
            found.names[name] = value
    return found


class Mender(pickle._Unpickler):  # Python's own, whose steps can be caught
    """Reads a section that can't be read to its end: what fails in it is a ``Gap``."""

    def __init__(self, unpickler: Unpickler, stream: io.BytesIO, buffers: Any, start: int) -> None:
        super().__init__(stream, buffers=buffers)
        self.persistent_load = unpickler.persistent_load  # type: ignore[method-assign]
        before = sum(op.name == "MEMOIZE" for op, _ in _operations(stream.getbuffer()[:start]))
        memo: dict[int, Any] = unpickler.memo.copy()  # type: ignore[attr-defined]
        self.memo: dict[int, Any] = {n: value for n, value in memo.items() if n < before}
        self._first = before

    def gaps(self) -> set[int]:
        """Places in the memo that may hold what failed."""
        return {
            number
            for number, value in self.memo.items()
            if number >= self._first and type(value) not in SAFE
        }

    dispatch = dict(pickle._Unpickler.dispatch)


class Gap:
    """What could not be made."""


def _catching(code: bytes, is_on_stack: bool | None) -> Callable[[Any], None]:
    step: Callable[[Any], None] = pickle._Unpickler.dispatch[code[0]]

    def catching(unpickler: Any) -> None:
        try:
            step(unpickler)
        except Exception:
            if is_on_stack:
                unpickler.stack[-1] = Gap()
            elif is_on_stack is not None:
                unpickler.append(Gap())

    return catching


# For each step that runs code whether its result takes the place of what it was made of.
for _code, _is_on_stack in {
    pickle.REDUCE: True,
    pickle.NEWOBJ: False,
    pickle.NEWOBJ_EX: False,
    pickle.BINPERSID: False,
    pickle.STACK_GLOBAL: False,
    pickle.NEXT_BUFFER: False,
    pickle.BUILD: None,
    pickle.SETITEMS: None,
    pickle.APPENDS: None,
    pickle.ADDITEMS: None,
}.items():
    Mender.dispatch[_code[0]] = _catching(_code, _is_on_stack)


def _gets(section: Any) -> set[int]:
    return {number for op, number in _operations(section) if op.name in ("BINGET", "LONG_BINGET")}


def _operations(pickled: Any) -> Iterator[tuple[Any, Any]]:
    stream, end = io.BytesIO(pickled), len(pickled)
    while stream.tell() < end:
        for op, argument, _ in pickletools.genops(stream):
            yield op, argument
