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

UNSEEN = 1 << 16  # bytes that are written between looks at how much is free
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
    """The writer. It goes on with what an earlier process has left in a file of its own.

    Args:
      path: of the log: its files are called that, with their positions behind it. Its folder is
        made, but not the one above it: where that was removed, nothing is to come back.
      most: bytes that are kept; at least half of them, where there are as many.
    """

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._fd = -1
        self._inode = (0, 0)
        self._start = self._nbytes = self._unseen = 0
        self._found: int | None = None  # where the last process has ended

    @property
    def end(self) -> int:
        """The position of the next line."""
        if self._fd < 0:
            if self._found is None:
                files = _files(self._path)
                self._found = sum(files[-1]) if files else 0
            return self._found
        return self._start + self._nbytes

    def write(self, lines: bytes) -> None:
        """Add whole lines.

        Raises:
          OSError: they can't be written, or would leave others too little room; nothing of them
            counts.
        """
        self._unseen += len(lines)
        if self._unseen >= UNSEEN or self._fd < 0:
            if not self._has_room(len(lines)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._unseen = 0
        if not self._is_ours():  # a cell has closed it, and the number may be another file's
            self._fd, self._found = -1, None
        if self._fd < 0:
            self._open_next(len(lines))
            lines = b"\n" + lines  # a process that was killed may have left half a line
        elif self._nbytes >= self._most // 4:
            self._open_next(len(lines))
        before = self._nbytes
        try:
            self._nbytes += _write_all(self._fd, lines)
        except BaseException:  # else what is left of it would be the beginning of the next line
            self._nbytes = before
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
            raise

    def _has_room(self, nbytes: int) -> bool:
        try:
            return free_space.has_spare(self._path.parent, nbytes)
        except FileNotFoundError:  # it is made, or that is refused, further on
            return True

    def _is_ours(self) -> bool:
        try:
            return self._fd >= 0 and _inode(self._fd) == self._inode
        except OSError:
            return False

    def _open_next(self, nbytes: int) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        files = _files(self._path)
        at = self.end
        if files and files[-1] == (at, 0):  # an earlier process could write nothing to it
            os.unlink(_file(self._path, at))
        _drop(self._path, files, self._most - self._most // 4 - nbytes)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(_file(self._path, at), flags, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._inode = fd, _inode(fd)
        self._start, self._nbytes = at, 0


def _inode(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def _write_all(fd: int, data: bytes) -> int:
    """Write all of it; returns how much that is."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])
    return written


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
