"""Where what a rank keeps of a loop lies: a folder for each version.

An array that is the same in two versions is the same file. Arrays are immutable: the same object
has the same numbers. So its file is linked into the folder of the next version. The files of a
version that is not needed any more are written over: memory that is there already takes a ninth of
the time of new memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcluster.engine.retained import format_nbytes
from jaxcluster.engine.state.saved import Part, private
from jaxcluster.host.checksums import quick_sum
from jaxcluster.host.free_space import memory_room

SLICE = 1 << 22
PREFIX = "v"


@dataclass
class _Known:
    """What is written of an array: its shards, by their bounds."""

    array: weakref.ref[Any]
    parts: dict[str, Part]


class VersionStore:
    """The versions of one loop on one rank.

    Args:
      folder: a private one, of this rank alone.
      nbytes: what may lie in it.
    """

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.folder = folder
        self.nbytes = nbytes
        self._known: dict[int, _Known] = {}
        self._names = 0
        self._spare: dict[int, list[Path]] = {}
        self._there: dict[str, int] = {}  # of the last version: files, and the version they are in
        self._left = 0
        folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def why_full(self) -> str:
        return f"there is no room for it in this rank's {format_nbytes(self.nbytes)}"

    def version(self, number: int) -> Path:
        return self.folder / f"{PREFIX}{number}"

    def begin(self, keep: Collection[int]) -> None:
        """Before a version is made: give up all others but these."""
        for path in self.folder.glob(f"{PREFIX}*"):
            if int(path.name.removeprefix(PREFIX)) not in keep:
                self._give_up(path)
        found = _files(self.folder)
        self._there = {path.name: size for path, _, size in found if path.parent != self.folder}
        used = {inode: size for _, inode, size in found}
        spare = sum(size * len(paths) for size, paths in self._spare.items())
        self._left = min(self.nbytes - sum(used.values()), memory_room(self.folder)) + spare
        self._known = {k: one for k, one in self._known.items() if one.array() is not None}

    def _give_up(self, version: Path) -> None:
        for path, _, size in _files(version):
            if path.name.startswith("s") and os.stat(path).st_nlink == 1:
                spare = self.folder / path.name
                path.rename(spare)
                self._spare.setdefault(size, []).append(spare)
        shutil.rmtree(version, ignore_errors=True)

    def take(self, nbytes: int) -> bool:
        """Whether there is room for so much, which is taken."""
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def find(self, array: Any, where: str) -> Part | None:
        """A shard of an array that is in one of the versions."""
        known = self._known.get(id(array))
        if known is None or known.array() is not array:
            return None
        part = known.parts.get(where)
        return part if part is not None and part.name in self._there else None

    def add(self, array: Any, where: str, data: Any) -> Part | None:
        """A shard that is to be written; None: there is no room."""
        known = self._known.get(id(array))
        if known is None or known.array() is not array:
            known = self._known[id(array)] = _Known(weakref.ref(array), {})
        if not self.take(data.nbytes):
            return None
        self._names += 1
        part = known.parts[where] = Part(f"s{self._names}", data.nbytes, data)
        return part

    def abandon(self) -> None:
        """Let go of numbers that were not written."""
        for known in self._known.values():
            for where, part in list(known.parts.items()):
                if part.data is not None:
                    part.data = None
                    del known.parts[where]

    def make(self, number: int) -> Path:
        """The folder of a version that is to be made."""
        path = self.version(number)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return path

    def fill(self, number: int, parts: Iterable[Part]) -> None:
        """Write the parts of a version, or link them where they are written.

        Raises:
          OSError: there is no room.
        """
        into = self.version(number)
        places = {path.name: path for path, _, _ in _files(self.folder) if path.parent != into}
        for part in parts:
            path = into / part.name
            if part.data is None:
                os.link(places[part.name], path)
            else:
                part.checksum = quick_sum(part.data)
                self._write(part, path)
                part.data = None
        for path in [path for paths in self._spare.values() for path in paths]:
            path.unlink(missing_ok=True)
        self._spare.clear()

    def _write(self, part: Part, path: Path) -> None:
        if spare := self._spare.get(part.nbytes):
            spare.pop().rename(path)
        data = memoryview(part.data)
        file = private(str(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            at = 0
            while at < part.nbytes:
                at += os.pwrite(file, data[at : at + SLICE], at)
        finally:
            os.close(file)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _files(folder: Path) -> list[tuple[Path, int, int]]:
    """All files below a folder, with their inodes and sizes."""
    return list(_each(folder))


def _each(folder: Path) -> Iterator[tuple[Path, int, int]]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                yield from _each(Path(entry.path))
            else:
                found = entry.stat(follow_symlinks=False)
                yield Path(entry.path), found.st_ino, found.st_size
