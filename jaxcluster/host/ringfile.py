"""A log of lines in files of a folder, of which the oldest go: written by one process, read by any.

A file's name says at which position of the whole log it begins, which is the beginning of a line.
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


class RingFile:
    """The writer. It goes on with what an earlier process has left.

    Args:
      path: what its files' names begin with. Its folder is made, and not the one above, which may
        have been removed.
      most: bytes that are kept; at least half of them, where there are as many.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most

    @property
    def end(self) -> int:
        """The position of the next line."""
        files = _files(self._path)
        return sum(files[-1]) if files else 0

    def write(self, lines: bytes) -> None:
        """Add whole lines. No file is kept open: a cell may close what it has not opened.

        Raises:
          OSError: they can't be written, or would leave others too little room. Half a line may be
            there then.
        """
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        if not free_space.has_spare(self._path.parent, len(lines)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files = _files(self._path)
        start, size = files[-1] if files else (0, 0)
        if size >= self._most // 4:
            for oldest, _ in files[:-2]:
                with contextlib.suppress(OSError):
                    os.unlink(_file(self._path, oldest))
            start += size
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(_file(self._path, start), flags, 0o600), "wb") as file:
            file.write(b"\n" + lines)  # what was written before may end in half a line


def read(path: Path, at: int = 0, most: int = CHUNK) -> Part:
    """The lines of a log from a position on: whole ones, and at most ``most`` bytes.

    A log that is not there is an empty one.
    """
    files = _files(path)
    size = sum(files[-1]) if files else at
    start = end = min(max(at, files[0][0]), size) if files else at
    data = b""
    for begin, nbytes in files:
        if not begin <= end < begin + nbytes or len(data) == most:
            continue
        try:
            with open(os.open(_file(path, begin), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                file.seek(end - begin)
                data += file.read(min(begin + nbytes - end, most - len(data)))
                end = start + len(data)
        except OSError:  # it was dropped just now
            if data:
                break
            start = end = begin + nbytes
    if b"\n" not in data and len(data) == most:
        start, data = end, b""
    data = data[: data.rfind(b"\n") + 1]
    return Part(start, start + len(data), size, data)


def _file(path: Path, start: int) -> Path:
    return path.with_name(f"{path.name}.{start:015}")


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
