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

from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Fitted, Unpickler
from jaxcluster.rank.state.saving import REGISTERED, SETTINGS, why
from jaxcluster.rank.state.settings import OUT, apply, changes, now

SAFE = {str, bytes, int, float, type, FunctionType, BuiltinFunctionType, ModuleType}
_Pythons: Any = pickle._Unpickler  # typeshed has nothing of its steps


@dataclass
class Values:
    """What was read.

    Attributes:
      names: their values; ``lost``: those that could not be made, and why.
      results: what cells have ended in.
      settings: those that were saved; ``left``: those that could not be set, and why.
      before: the settings before.
    """

    names: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=now)

    def undo(self) -> None:
        """Set the settings that there were before."""
        apply(changes(now(), self.before))


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


def load(
    found: Values,
    files: Mapping[int, StateFile],
    base: int,
    namespace: dict[str, Any],
    check: Callable[[], None],
    fitted: Fitted,
    only: set[str] | None = None,
    *,
    is_part: bool = False,
) -> None:
    """Make the values that a rank's file has, and set its settings; nothing is bound.

    Args:
      found: takes them.
      base: the rank whose file it is. The others' have shards that it lacks.
      check: raises where it is to end.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
      only: the names that are wanted, where it is another rank's file.
      is_part: no settings are wanted, and the classes of cells that are there stay.

    Raises:
      BadFile: a file was changed.
    """
    classes.kept.set(set() if is_part else None)
    sections = _Sections(files[base], namespace, ArraysToLoad(files, base).array, fitted)
    for name, start, _, first in files[base].about["names"]:
        check()
        try:
            value = sections.value(start, first)
        except BadFile:
            raise
        except Exception as error:
            found.lost[name] = why(error)
            continue
        if name == SETTINGS and is_part:
            continue
        if name == SETTINGS:
            found.settings = value
            found.left = apply(value)
        elif name == REGISTERED:
            for cls, how in value:
                with contextlib.suppress(Exception):  # JAX refuses it
                    register(cls, how)
        elif only is None or name in only:
            (found.results if name.startswith(OUT) else found.names)[name] = value
    if only is not None:
        found.settings.pop("random", None)


class _Sections:
    """The sections of one pickle, which are read one after the other."""

    def __init__(self, file: StateFile, namespace: dict[str, Any], array: Any, fitted: Any) -> None:
        self._file, self._buffer = file, 0
        self._stream = io.BytesIO(file.copy(file.about["pickle"]).data)
        self._unpickler: Any = Unpickler(self._stream, namespace, array, fitted, self)

    def value(self, start: int, first: int) -> Any:
        """The value of the next section, which begins there and has buffers from there on.

        Raises:
          Exception: why it can't be made.
        """
        self._stream.seek(start)
        self._buffer = first
        try:
            return self._unpickler.load()
        except Exception as error:
            if isinstance(error, BadFile) or isinstance(self._unpickler, Mender):
                raise
        self._stream.seek(start)
        self._buffer = first
        self._unpickler = Mender(self._unpickler, self._stream, self)
        return self._unpickler.load()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next large buffer."""
        self._buffer += 1
        return self._file.copy(self._file.about["buffers"][self._buffer - 1]).data


class Mender(_Pythons):
    """Goes on where a section can't be read to its end: what fails in it is a ``Gap``.

    Later sections may be made of parts of it. Those that have a gap are lost too: what was made
    after the first failure, or was being made.
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
        self._whole: set[int] = set()

    def load(self) -> Any:
        """The value of the next section.

        Raises:
          Exception: why it can't be made.
        """
        self.whys, first = [], len(self.memo)
        value = super().load()
        if self.whys:
            new = {*range(first, len(self.memo))} - self._whole
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
            self._fail(error)
            if is_on_stack:
                self.stack[-1] = Gap()
            elif is_on_stack is not None:
                self.append(Gap())

    def get(self, number: int) -> None:
        """A part that was made before."""
        if number in self.gaps:
            self._fail(self.gaps[number])
        self.append(self.memo[number])

    def _fail(self, error: Exception) -> None:
        if not self.whys:
            begun = {id(value) for part in (*self.metastack, self.stack) for value in part}
            self._whole = {n for n, value in self.memo.items() if id(value) not in begun}
        self.whys.append(error)

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
for _code in (
    *(pickle.BUILD, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.APPEND, pickle.APPENDS, pickle.ADDITEMS),
):
    _catch(_code, None)
_catch(pickle.NEXT_BUFFER, False)
_catch(pickle.REDUCE, True)


def _operations(pickled: Any) -> Iterator[Any]:
    stream, end = io.BytesIO(pickled), len(pickled)
    while stream.tell() < end:
        for op, _, _ in pickletools.genops(stream):
            yield op
