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
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Fitted, Unpickler
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


def known(files: Mapping[int, StateFile], base: int, num_processes: int) -> set[str]:
    """The names in a rank's file that a new rank may have.

    They can't differ between ranks, or all ranks that there were had equal values.
    """
    import jax

    about = [file.about for file in files.values()]
    found = {*files[base].about["common"]}
    if num_processes != jax.process_count() and len(files) == num_processes:
        digests = files[base].about["digests"].items()
        found |= {n for n, own in digests if own and all(a["digests"].get(n) == own for a in about)}
    return found


_Pythons: Any = pickle._Unpickler  # typeshed has nothing of its steps


class Buffers:
    """The large buffers of a pickle, in their order from any one on."""

    def __init__(self, source: StateFile) -> None:
        self._source, self.at = source, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.at += 1
        return self._source.copy(self._source.about["buffers"][self.at - 1]).data


def load(
    found: Values,
    files: Mapping[int, StateFile],
    base: int,
    namespace: dict[str, Any],
    settings: Settings,
    check: Check,
    fitted: Fitted,
    only: set[str] | None = None,
) -> None:
    """Make the values that a rank's file has; nothing of them is bound.

    Args:
      found: takes them.
      base: the rank whose file it is. The others' have shards that it lacks.
      check: raises where it is to end.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
      only: the names that are wanted, where it is another rank's file.

    Raises:
      BadFile: a file was changed.
    """
    source = files[base]
    arrays = ArraysToLoad(files, base)
    about = source.about
    stream, buffers = io.BytesIO(source.copy(about["pickle"]).data), Buffers(source)
    unpickler: Any = Unpickler(stream, namespace, arrays.array, fitted, buffers)
    for name, start, _, first in about["names"]:
        check()
        stream.seek(start)
        buffers.at = first
        try:
            value = unpickler.load()
        except BadFile:
            raise
        except Exception as error:
            if isinstance(unpickler, Unpickler):
                stream.seek(start)
                buffers.at = first
                unpickler = Mender(unpickler, stream, buffers)
                with contextlib.suppress(Exception):  # it is read to its end, and is lost
                    unpickler.load()
            found.lost[name] = _why(error)
            continue
        if name == SETTINGS:
            found.settings = value
            found.undo, found.left = settings.apply(value, own=only is None)
        elif name == REGISTERED:
            with contextlib.suppress(Exception):  # JAX has them, or refuses them
                register_again(value)
        elif only is not None and name not in only:
            continue
        elif name.startswith("Out "):
            found.results[name] = value
        else:
            found.names[name] = value


class Mender(_Pythons):
    """Goes on where a section can't be read to its end: what fails in it is a ``Gap``.

    Later sections may be made of parts of it. Those that have a gap are lost too.
    """

    def __init__(self, unpickler: Unpickler, stream: io.BytesIO, buffers: Any) -> None:
        super().__init__(stream, buffers=buffers)
        self.persistent_load = unpickler.persistent_load
        read = stream.getbuffer()[: stream.tell()]
        before = sum(op.name == "MEMOIZE" for op in _operations(read))
        memo: dict[int, Any] = unpickler.memo.copy()
        self.memo: dict[int, Any] = {n: value for n, value in memo.items() if n < before}
        self.gaps: dict[int, Exception] = {}
        self.whys: list[Exception] = []

    def load(self) -> Any:
        """The value of the next section.

        Raises:
          Exception: why it can't be made.
        """
        self.whys, first = [], len(self.memo)
        value = super().load()
        if self.whys:
            new = range(first, len(self.memo))
            unsafe = (number for number in new if type(self.memo[number]) not in SAFE)
            self.gaps |= dict.fromkeys(unsafe, self.whys[0])
            raise self.whys[0]
        return value

    def catching(self, step: Callable[[Any], None], is_on_stack: bool | None) -> None:
        """A step of it; what it fails to make is a gap."""
        try:
            step(self)
        except BadFile:
            raise
        except Exception as error:
            self.whys.append(error)
            if is_on_stack:
                self.stack[-1] = Gap()
            elif is_on_stack is not None:
                self.append(Gap())

    def get(self, number: int) -> None:
        """A part that was made before."""
        if number in self.gaps:
            self.whys.append(self.gaps[number])
        self.append(self.memo[number])

    dispatch = dict(_Pythons.dispatch) | {
        pickle.BINGET[0]: lambda self: self.get(self.read(1)[0]),
        pickle.LONG_BINGET[0]: lambda self: self.get(int.from_bytes(self.read(4), "little")),
    }


class Gap:
    """What could not be made."""


def _catch(code: bytes, is_on_stack: bool | None) -> None:
    step = _Pythons.dispatch[code[0]]
    Mender.dispatch[code[0]] = lambda mender: mender.catching(step, is_on_stack)


for _code in (pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.BINPERSID, pickle.STACK_GLOBAL):
    _catch(_code, False)  # what it was made of is off the stack by then
for _code in (pickle.BUILD, pickle.SETITEMS, pickle.APPENDS, pickle.ADDITEMS):
    _catch(_code, None)
_catch(pickle.NEXT_BUFFER, False)
_catch(pickle.REDUCE, True)


def _operations(pickled: Any) -> Iterator[Any]:
    stream, end = io.BytesIO(pickled), len(pickled)
    while stream.tell() < end:
        for op, _, _ in pickletools.genops(stream):
            yield op
