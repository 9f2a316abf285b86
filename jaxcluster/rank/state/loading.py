"""Makes a namespace's values again from the files of one or more ranks."""

from __future__ import annotations

import contextlib
import io
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.file import StateFile
from jaxcluster.rank.state.pickling import Unpickler
from jaxcluster.rank.state.saving import REGISTERED, SETTINGS, _why
from jaxcluster.rank.state.settings import Settings, Undo, register_again

Check = Callable[[], None]


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
    for name, start, stop, buffers.at in about["names"]:
        check()
        try:
            if gaps and gaps & _gets(stream.getbuffer()[start:stop]):
                raise ValueError("it shares a part with another name that is lost")
            value = unpickler.load()
        except Exception as error:
            found.lost[name] = _why(error)
            memo = _memo(unpickler, stream.getbuffer()[:stop], gaps)
            stream.seek(stop)
            unpickler = Unpickler(stream, namespace, arrays.array, buffers)
            unpickler.memo = memo
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


def _memo(unpickler: Unpickler, read: Any, gaps: set[int]) -> dict[int, Any]:
    """The memo after a section that was not read to its end: what it lacks is a gap."""
    memo: dict[int, Any] = unpickler.memo.copy()  # type: ignore[attr-defined]
    count = sum(op.name == "MEMOIZE" for op, _ in _operations(read))
    for number in range(count):
        if number not in memo:
            memo[number] = None
            gaps.add(number)
    return memo


def _gets(section: Any) -> set[int]:
    return {number for op, number in _operations(section) if op.name in ("BINGET", "LONG_BINGET")}


def _operations(pickled: Any) -> Iterator[tuple[Any, Any]]:
    stream, end = io.BytesIO(pickled), len(pickled)
    while stream.tell() < end:
        for op, argument, _ in pickletools.genops(stream):
            yield op, argument
