"""Writes what a namespace holds to a file.

There is one pickle, in which each name has a section, so that names share what they shared. A name
that can't be saved costs itself alone.
"""

from __future__ import annotations

import io
import pickle
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxcluster.engine.arrays import host_values
from jaxcluster.engine.user_names import is_users
from jaxcluster.rank.state import file
from jaxcluster.rank.state.arrays import ArraysToSave
from jaxcluster.rank.state.classes import Circular
from jaxcluster.rank.state.common import judge
from jaxcluster.rank.state.file import Part
from jaxcluster.rank.state.pickling import LARGE_NBYTES, Pickler
from jaxcluster.rank.state.settings import Settings
from jaxcluster.wire.ops.saving import MeshAxes, Saved, SavePlace

SETTINGS, REGISTERED = " settings", " registered"  # sections that are no names
PYTHON = ".".join(platform.python_version_tuple()[:2])
WHY_CHARS = 200


class NoRoom(Exception):
    """No place has room for it, or all places were removed, since nobody waits for it any more."""

    hint = ""  # the error is expected, and not logged


class Pickled:
    """A namespace as one pickle, and the raw sections beside it.

    Attributes:
      sections: for each name where its part of the pickle begins and ends, and its first buffer.
      lost: names that can't be saved, and why.
    """

    def __init__(self, values: Mapping[str, Any], namespace: dict[str, Any]) -> None:
        self.values, self.lost = dict(values), dict[str, str]()
        self._namespace = namespace
        self._by_value, self._until = set[type](), list[float]()
        while not self._dump_all():
            self._try_each()

    def _dump_all(self) -> bool:
        """One pickle of all; False, and why in ``lost``, where one of them can't be saved."""
        self.parts: list[Part] = []
        self.arrays = ArraysToSave(self.parts, self._until)
        self.buffers: list[int] = []  # their sections
        self.sections: list[tuple[str, int, int, int]] = []
        self.spanning, self.common = set[str](), list[str]()
        self.file = io.BytesIO()

        def take(buffer: memoryview) -> None:
            self.buffers.append(len(self.parts))
            self.parts.append(Part(buffer.nbytes, lambda: buffer))

        pickler = self._pickler(self.file, self.arrays.number, take)
        # Classes come first: what their statements need is not to be half made by then.
        order = sorted(
            self.values, key=lambda n: (n != SETTINGS, not isinstance(self.values[n], type))
        )
        for name, value in ((name, self.values[name]) for name in order):
            start, first, met = self.file.tell(), len(self.buffers), len(self.arrays.described)
            self.arrays.name = name
            if not self._dump(pickler, name):
                return False
            self.sections.append((name, start, self.file.tell(), first))
            spans, is_common = judge(value)
            if spans or any(one.spans for one in self.arrays.described[met:]):
                self.spanning.add(name)
            if is_common:
                self.common.append(name)
        self.meshes = pickler.meshes
        return True

    def _try_each(self) -> None:
        """Find all that can't be saved, by a pickle of its own for each."""
        arrays = ArraysToSave([], self._until)
        for name in list(self.values):
            self._dump(self._pickler(io.BytesIO(), arrays.number, lambda buffer: None), name)

    def _dump(self, pickler: Pickler, name: str) -> bool:
        """Pickle a value. One that can't be is lost, or has to be pickled in another way."""
        try:
            pickler.dump(self.values[name])
        except Circular as error:
            self._by_value.add(error.args[0])
        except Exception as error:
            del self.values[name]
            self.lost[name] = why(error)
        else:
            return True
        return False

    def _pickler(
        self, into: io.BytesIO, array_id: Callable[[Any], Any], take: Callable[[memoryview], None]
    ) -> Pickler:
        def large(buffer: pickle.PickleBuffer) -> bool:
            if (raw := buffer.raw()).nbytes < LARGE_NBYTES:
                return True
            take(raw)
            return False

        return Pickler(into, self._namespace, array_id, large, self._by_value)

    def _digest(self, value: Any) -> str:
        """Equal on ranks that have an equal value; "" of one that can't be compared."""
        sums: list[str] = []

        def array_id(array: Any) -> Any:
            if not array.is_fully_addressable:
                return str(array.sharding)
            held = [file.as_bytes(host_values(shard.data)) for shard in array.addressable_shards]
            return array.shape, str(array.dtype), [file.checksum(data) for data in held]

        def take(buffer: memoryview) -> None:
            sums.append(file.checksum(file.as_bytes(buffer)))

        try:
            self._pickler(into := io.BytesIO(), array_id, take).dump(value)
        except Exception:  # such a value is not compared
            return ""
        return file.checksum(file.as_bytes(into.getvalue() + "".join(sums).encode()))

    def write(self, path: Path, *, compare: bool = False) -> int:
        """Write it to a file; returns its size.

        Args:
          compare: ranks may have to tell which values are equal on all of them.
        """
        pickled = self.file.getbuffer()
        about = {
            "names": self.sections,
            "buffers": self.buffers,
            "arrays": self.arrays.described,
            "common": self.common,
            "digests": {n: self._digest(v) for n, v in self.values.items()} if compare else {},
            "pickle": len(self.parts),
            "versions": {"Python": PYTHON, "jax": sys.modules["jax"].__version__},
        }
        return file.write(path, [*self.parts, Part(len(pickled), lambda: pickled)], about)

    @property
    def nbytes(self) -> int:
        """How large the file is going to be, but for its index."""
        return sum(part.nbytes for part in self.parts) + self.file.tell()


def save(
    places: Iterable[SavePlace],
    rank: int,
    namespace: dict[str, Any],
    settings: Settings,
    *,
    compare: bool = False,
) -> Saved:
    """Write a rank's file to the first place that has room.

    Raises:
      NoRoom: none has.
    """
    import jax

    names = {n: v for n, v in dict(namespace).items() if is_users(n, v)}
    values = {SETTINGS: settings.changed(), **names, **settings.results()}
    values[REGISTERED] = settings.registered()
    pickled, whys = Pickled(values, namespace), []
    for place in places:
        path = Path(place.folder) / file.file_name(rank)
        if place.room is not None and pickled.nbytes > place.room:
            whys.append(f"{place.folder} has room for {place.room >> 20} MiB")
            continue
        try:
            path.unlink(missing_ok=True)
            size = pickled.write(path, compare=compare)
            break
        except (OSError, file.BadFile) as error:
            whys.append(str(error))
            path.unlink(missing_ok=True)
    else:
        raise NoRoom(f"{pickled.nbytes >> 20} MiB found no room: {'; '.join(whys)}")
    lost, of_all = pickled.lost, {m for m in pickled.meshes if m.size == len(jax.devices())}
    axes = sorted({(m.axis_names, m.devices.shape) for m in of_all}, key=str)
    return Saved(
        place.folder,
        [path.name],
        size,
        [name for name in pickled.values if name in names],
        {name: why for name, why in lost.items() if name in names},
        sorted(pickled.spanning & names.keys()),
        left={name.strip(): why for name, why in lost.items() if name in (SETTINGS, REGISTERED)},
        meshes=[MeshAxes(list(names), list(sizes)) for names, sizes in axes],
    )


def why(error: Exception) -> str:
    """What is told of an error, in a line."""
    told = str(error) or type(error).__name__
    return told if len(told) <= WHY_CHARS else f"{told[:WHY_CHARS]} ..."
