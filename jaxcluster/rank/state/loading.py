"""Makes a namespace's values again from the files of one or more ranks.

What can't be made is a ``Gap``. Names that reach one are lost, and all others are whole.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Fitted, Gap, Unpickler
from jaxcluster.rank.state.saving import REGISTERED, SETTINGS, Pickled, why
from jaxcluster.rank.state.settings import OUT, apply, changes, now, show_sources

WHOLE = str, bytes, int, float, type, FunctionType, BuiltinFunctionType, ModuleType
AS_KNOWN = pickle.BINPERSID + pickle.MEMOIZE + pickle.POP


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
    for number, (name, *_) in enumerate(files[base].about["names"]):
        check()
        value = sections.value(number)
        if name == SETTINGS and isinstance(value, dict) and not is_part:
            found.settings, found.left = value, apply(value)
            show_sources(value)
        elif name == REGISTERED and isinstance(value, list):
            for cls, how in value:
                with contextlib.suppress(Exception):  # JAX refuses it
                    register(cls, how)
        elif name not in (SETTINGS, REGISTERED) and (only is None or name in only):
            (found.results if name.startswith(OUT) else found.names)[name] = value
    if sections.gaps:
        _take_out(found, namespace)
    if only is not None:
        found.settings.pop("random", None)


def _take_out(found: Values, namespace: dict[str, Any]) -> None:
    """Take the names out that reach a gap: no pickler takes those."""
    lost = Pickled(found.names | found.results, namespace).lost
    for names in (found.names, found.results):
        for name in [name for name in names if name in lost]:
            del names[name]
            found.lost[name] = lost[name]


class _Sections:
    """The sections of one pickle, which are read one after the other.

    Attributes:
      gaps: what could not be made.
    """

    def __init__(self, file: StateFile, namespace: dict[str, Any], array: Any, fitted: Any) -> None:
        self._file, self._buffer, self.gaps = file, 0, list[Gap]()
        self._names = file.about["names"]
        self._stream = io.BytesIO(file.copy(file.about["pickle"]).data)
        arguments = self._stream, namespace, array, fitted, self.gaps, self
        self._new_unpickler = partial(Unpickler, *arguments)
        self._unpickler = self._new_unpickler()

    def value(self, number: int) -> Any:
        """The value of the next section, or a gap.

        Raises:
          BadFile: the file was changed.
        """
        _, start, end, self._buffer = self._names[number]
        self._stream.seek(start)
        before = len(self.gaps)
        try:
            return self._unpickler.load()
        except BadFile:
            raise
        except Exception as error:  # because of a gap, or of its own
            self.gaps += [] if len(self.gaps) > before else [Gap(why(error))]
        self._fill(start, end, gap := self.gaps[before])
        return gap

    def _fill(self, start: int, end: int, gap: Gap) -> None:
        """Put gaps where later sections look for parts of a section that was not read to its end.

        What was made of it may lack something, so all of it is a gap.
        """
        import jax

        whole = *WHOLE, jax.sharding.Sharding, jax.sharding.PartitionSpec
        known: dict[int, Any] = self._unpickler.memo.copy()
        first, last = (_memoized(self._stream.getbuffer()[:at]) for at in (start, end))
        for number in range(first, last):
            if not isinstance(known.get(number), whole):
                known[number] = gap
        self._unpickler = self._new_unpickler()
        # Its memo can't be set to a dict: CPython reads freed memory then.
        self._unpickler.known = known
        self._stream.seek(0, io.SEEK_END)
        at = self._stream.tell()
        put = (pickle.BININT + n.to_bytes(4, "little") + AS_KNOWN for n in range(last))
        self._stream.write(b"".join(put) + pickle.NONE + pickle.STOP)
        self._stream.seek(at)
        self._unpickler.load()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next large buffer."""
        self._buffer += 1
        return self._file.copy(self._file.about["buffers"][self._buffer - 1]).data


def _memoized(pickled: Any) -> int:
    """How many values a pickle has for later use."""
    stream, found = io.BytesIO(pickled), 0
    while stream.tell() < len(pickled):
        found += sum(op.name == "MEMOIZE" for op, _, _ in pickletools.genops(stream))
    return found
