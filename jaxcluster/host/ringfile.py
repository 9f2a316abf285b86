"""A log of lines in files of a folder, without the oldest. One process writes it, any reads it.

A process goes on with what an earlier one has left. A file's name says at which position of the
whole log it begins, which is the beginning of a line.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.host import free_space

CHUNK = 8 << 20  # bytes that are read at once; a line that is longer is passed over


@dataclass(frozen=True)
class Part:
    """Lines from ``start`` to ``end`` of a log that ends at ``size``."""

    start: int
    end: int
    size: int
    data: bytes | memoryview


class Log:
    """A log to write to, from this process alone.

    Args:
      path: what the files' names begin with. Their folder is made, and not the one above.
      most: bytes that are kept; at least half of them, where there are as many.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        with contextlib.suppress(OSError):  # a write says why
            path.parent.mkdir(mode=0o700, exist_ok=True)
        self._start, self._size = (_files(path) or [(0, 0)])[-1]

    @property
    def end(self) -> int:
        """The position of the next line."""
        return self._start + self._size

    def write(self, lines: bytes) -> None:
        """Add whole lines. No file is kept open: a cell may close what it has not opened.

        Raises:
          OSError: they can't be written, or would leave others too little room. Half a line may be
            there then.
        """
        if self._size >= self._most // 4:
            for oldest, _ in _files(self._path)[:-2]:
                Path(_name(self._path, oldest)).unlink(missing_ok=True)
            self._start, self._size = self.end, 0
        with open(_name(self._path, self._start), "ab", opener=_open) as file:
            if not free_space.has_spare(file.fileno(), len(lines)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size = file.tell()
            file.write(b"\n" + lines)  # what was written before may end in half a line
        self._size += 1 + len(lines)


def read(path: Path, at: int = 0, most: int = CHUNK) -> Part:
    """The lines of a log from a position on: whole ones, and at most ``most`` bytes.

    A log that is not there is an empty one.
    """
    files = _files(path)
    size = sum(files[-1]) if files else at
    start = min(max(at, files[0][0]), size) if files else at
    data = b""
    for begin, nbytes in files:
        end = start + len(data)
        if begin <= end < begin + nbytes and len(data) < most:
            with (
                contextlib.suppress(OSError),  # it was dropped just now
                open(_name(path, begin), "rb", opener=_open) as file,
            ):
                file.seek(end - begin)
                data += file.read(min(begin + nbytes - end, most - len(data)))
    if b"\n" not in data and len(data) == most:
        start, data = start + most, b""
    data = data[: data.rfind(b"\n") + 1]
    return Part(start, start + len(data), size, data)


def _name(path: Path, start: int) -> str:
    """That of the file that begins at a position."""
    return f"{path}.{start:015}"


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW, 0o600)


def _files(path: Path) -> list[tuple[int, int]]:
    """(position, size) of each file, oldest first."""
    found = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            name, _, start = entry.name.rpartition(".")
            if name == path.name and start.isdecimal():
                with contextlib.suppress(OSError):
                    found.append((int(start), entry.stat(follow_symlinks=False).st_size))
    return sorted(found)
