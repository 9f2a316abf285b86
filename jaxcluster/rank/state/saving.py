"""Writes what a namespace holds to a file.

There is one pickle, in which each name has a section, so that names share what they shared. A name
that can't be saved costs itself alone.
"""

from __future__ import annotations

import io
import platform
from collections import ChainMap
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxcluster.engine.user_names import is_users
from jaxcluster.rank.state import file
from jaxcluster.rank.state.arrays import ArraysToSave, why
from jaxcluster.rank.state.classes import Circular
from jaxcluster.rank.state.common import judge
from jaxcluster.rank.state.file import Part, as_bytes, checksum
from jaxcluster.rank.state.pickling import Pickler
from jaxcluster.rank.state.settings import REGISTERED, SETTINGS, Settings
from jaxcluster.wire.ops.saving import MeshAxes, Saved, SavePlace

PYTHON = ".".join(platform.python_version_tuple()[:2])


class NoRoom(Exception):
    """No place has room for it, or all places were removed, since nobody waits for it any more."""

    hint = ""  # the error is expected, and not logged


class Pickled:
    """A namespace as one pickle, and the raw sections beside it.

    Attributes:
      lost: names that can't be saved, and why.
      spanning: names with arrays that span processes; ``common``: those that a new rank may have.

    Args:
      broken: by their ids objects that can't be saved, and why.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        namespace: dict[str, Any],
        broken: Mapping[int, str] | None = None,
    ) -> None:
        self.values, self.lost = dict(values), dict[str, str]()
        self._namespace, self._broken = namespace, broken or {}
        self._by_value, self._until = set[type](), list[float]()
        while not self._dump_all():
            pass  # without those that are lost

    def _dump_all(self) -> bool:
        """One pickle of all; False where one of them is lost, or has to be pickled otherwise."""
        self.parts: list[Part] = []
        self.arrays = ArraysToSave(self.parts, self._until)
        self.buffers: list[int] = []  # their sections
        self.spanning, self.common = set[str](), list[str]()
        self.file, is_whole = io.BytesIO(), True

        def take(buffer: memoryview) -> None:
            self.buffers.append(len(self.parts))
            self.parts.append(Part(buffer.nbytes, lambda: buffer))

        names = ChainMap(self.values, self._namespace), self._namespace
        begin = partial(Pickler, self.file, *names, self.arrays.number, take)
        self.pickler = begin(self._by_value, self._broken)
        # Classes come first: what their statements need is not to be half made by then.
        first = {n: (n != SETTINGS, not isinstance(v, type)) for n, v in self.values.items()}
        for name in (order := sorted(first, key=first.__getitem__)):
            self.arrays.name, met = name, len(self.arrays.described)
            try:
                self.pickler.dump(self.values[name])
            except Circular as error:
                self._by_value.add(error.args[0])
            except Exception as error:
                self.lost[name] = why(error)
            else:
                spans, is_common = judge(self.values[name])
                if spans or any(one.spans for one in self.arrays.described[met:]):
                    self.spanning.add(name)
                self.common += [name] if is_common else []
                continue
            # Others may share what was begun. A pickler that knows nothing of it looks again.
            self.pickler, is_whole = begin(self._by_value, self._broken), False
        self.values = {name: self.values[name] for name in order if name not in self.lost}
        return is_whole

    def _digest(self, name: str) -> str:
        """Equal on ranks that have an equal value; "" of one that can't be compared."""
        alone = Pickled({name: self.values[name]}, self._namespace)
        arrays = alone.arrays.described
        others = {section for one in arrays if one.spans for section in one.shards.values()}
        held = [as_bytes(part.read()) for n, part in enumerate(alone.parts) if n not in others]
        what = [(one.shape, one.dtype) for one in arrays], [checksum(data) for data in held]
        return "" if alone.lost else checksum(as_bytes(alone.file.getvalue() + repr(what).encode()))

    def write(self, path: Path, *, compare: bool = False) -> int:
        """Write it to a file; returns its size.

        Args:
          compare: ranks may have to tell which values are equal on all of them.
        """
        pickled = self.file.getbuffer()
        about = {
            "names": [*self.values],
            "buffers": self.buffers,
            "arrays": self.arrays.described,
            "common": self.common,
            "digests": {name: self._digest(name) for name in self.values} if compare else {},
            "pickle": len(self.parts),
            "Python": PYTHON,
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
    pickled, whys = Pickled(names | settings.sections(), namespace), list[str]()
    for place in places:
        path = Path(place.folder) / file.file_name(rank)
        if place.room is not None and pickled.nbytes > place.room:
            whys.append(f"{place.folder} has room for {place.room >> 20} MiB")
            continue
        try:
            if place.is_new:
                path.parent.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            size = pickled.write(path, compare=compare)
            break
        except (OSError, file.BadFile) as error:
            whys.append(str(error))
            path.unlink(missing_ok=True)
    else:
        raise NoRoom(f"{pickled.nbytes >> 20} MiB found no room: {'; '.join(whys)}")
    of_all = {one for one in pickled.pickler.meshes if one.size == len(jax.devices())}
    axes = sorted({(one.axis_names, one.devices.shape) for one in of_all}, key=str)
    return Saved(
        place.folder,
        [path.name],
        size,
        [name for name in pickled.values if name in names],
        {name: why for name, why in pickled.lost.items() if name in names},
        sorted(pickled.spanning & names.keys()),
        left={n.strip(): why for n, why in pickled.lost.items() if n in (SETTINGS, REGISTERED)},
        meshes=[MeshAxes(list(names), list(sizes)) for names, sizes in axes],
    )
