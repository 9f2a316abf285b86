"""A log of lines in files of a folder, of which the oldest go: written by one process, read by any.

Each file begins at a position of the whole log, which its name says, and at the beginning of a
line. So a reader goes on where it was, and sees what has been dropped meanwhile (standard library
only).
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
    """What a log holds from some position on.

    ``start`` is where ``data`` begins: later than was asked for, where the oldest is gone. ``end``
    is where it ends, and ``size`` where the whole log does.
    """

    start: int
    end: int
    size: int
    data: bytes | memoryview


class RingFile:
    """The writer. It goes on with what an earlier process has left.

    Args:
      path: of the log: its files are called that, with their positions behind it. Its folder is
        made, but not the one above it: where that was removed, nothing is to come back.
      most: bytes that are kept; at least half of them, where there are as many.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._has_begun = False

    @property
    def end(self) -> int:
        """The position of the next line."""
        files = _files(self._path)
        return sum(files[-1]) if files else 0

    def write(self, lines: bytes) -> None:
        """Add whole lines. No file is kept open: a cell may close what it has not opened.

        Raises:
          OSError: they can't be written, or would leave others too little room; nothing of them
            counts.
        """
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        if not free_space.has_spare(self._path.parent, len(lines)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not self._has_begun:
            lines = b"\n" + lines  # a process that was killed may have left half a line
        files = _files(self._path)
        start, size = files[-1] if files else (0, self._most)
        if size >= self._most // 4:
            _drop(self._path, files, self._most - self._most // 4 - len(lines))
            start, size = start + (size if files else 0), 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(_file(self._path, start), flags, 0o600)
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(fd, left) :]
            self._has_begun = True
        except BaseException:  # else what is left of it would be the beginning of the next line
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise
        finally:
            os.close(fd)


def _drop(path: Path, files: list[tuple[int, int]], most: int) -> None:
    """Remove the oldest files until the others have no more than ``most`` bytes."""
    left = sum(size for _, size in files)
    for start, size in files:
        if left <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(_file(path, start))
        left -= size


def read(path: Path, at: int = 0, most: int = CHUNK) -> Part:
    """The lines of a log from a position on: whole ones, and at most ``most`` bytes.

    A log that is not there is an empty one.
    """
    files = _files(path)
    oldest = files[0][0] if files else 0
    start = min(max(at, oldest), sum(files[-1])) if files else at
    parts: list[bytes] = []
    end = start
    for begin, nbytes in files:
        if begin + nbytes <= end or begin > end:
            continue
        try:
            with open(os.open(_file(path, begin), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                file.seek(end - begin)
                data = file.read(min(nbytes - (end - begin), most - (end - start)))
        except OSError:  # it was dropped just now
            if parts:
                break
            start = end = begin + nbytes
            continue
        parts.append(data)
        end += len(data)
        if end - start >= most:
            break
    found = b"".join(parts)
    if b"\n" not in found and len(found) == most:
        start, found = end, b""
    found = found[: found.rfind(b"\n") + 1]
    return Part(start, start + len(found), sum(files[-1]) if files else start, found)


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
