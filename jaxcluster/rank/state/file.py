"""The format of saved variables: a line, raw sections, an index of them, and checksums.

Whoever reads a file checks it: what was cut off or changed is found, and named.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FIRST_LINE = b"jaxcluster state 1\n"
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
WORDS = 1 << 13  # of eight bytes: one block of a checksum, which a CPU's cache holds
CHUNK = WORDS * 8
FOOTER = struct.Struct("<Q32s")  # the index's size and digest

Bytes = np.ndarray[Any, Any]


class BadFile(Exception):
    """What was saved can't be read."""


@dataclass(frozen=True)
class Part:
    """One raw section: its size, and what gives its bytes when it is written."""

    nbytes: int
    read: Callable[[], Any]


def file_name(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank}.state"


def write(path: Path, parts: Sequence[Part], about: Any) -> int:
    """Write a file and read it back; returns its size.

    Args:
      about: what is known of the sections, which can be pickled.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    sections = []
    with open(path, "xb", buffering=0, opener=_private) as file:
        at = file.write(FIRST_LINE)
        for part in parts:
            data = as_bytes(part.read())
            at += _write(file, bytes(-at % ALIGNMENT))
            sections.append((at, len(data), checksum(data)))
            at += _write(file, data.data)
        index = pickle.dumps((sections, about))
        _write(file, index)
        _write(file, FOOTER.pack(len(index), _digest(index)))
        size = file.tell()
    with contextlib.closing(StateFile(path)) as written:
        for number in range(len(parts)):
            written.check(number)
    return size


class StateFile:
    """A file that is read.

    Attributes:
      about: what was written of its sections.

    Raises:
      BadFile: it is none, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadFile(f"{path} can't be read: {error}") from None
        whole = len(self._map)
        if self._map[: len(FIRST_LINE)] != FIRST_LINE:
            raise BadFile(f"{path} is no file of saved variables, or of another version")
        end = whole - FOOTER.size
        size, digest = FOOTER.unpack(self._map[end:]) if end > 0 else (whole, b"")
        index = self._map[max(0, end - size) : end]
        if size > end or _digest(index) != digest:
            raise BadFile(f"{path} is not whole")
        self._sections, self.about = pickle.loads(index)

    def section(self, number: int) -> Bytes:
        """A section's bytes as they lie in the file."""
        at, size, _ = self._sections[number]
        return np.frombuffer(self._map, np.uint8, size, at) if size else np.empty(0, np.uint8)

    def check(self, number: int) -> None:
        """Compare a section with its checksum.

        Raises:
          BadFile: it is another one.
        """
        if checksum(self.section(number)) != self._sections[number][2]:
            raise BadFile(f"{self.path} was changed after it was written")

    def copy(self, number: int) -> Bytes:
        """A section's bytes, checked, in memory of their own."""
        self.check(number)
        size = int(self._sections[number][1])
        whole = np.empty(size + ALIGNMENT, np.uint8)
        first = -whole.ctypes.data % ALIGNMENT
        copied = whole[first : first + size]
        copied[:] = self.section(number)
        return copied

    def close(self) -> None:
        """Give the file up, unless somebody still has a section of it."""
        with contextlib.suppress(BufferError):
            self._map.close()


def as_bytes(buffer: Any) -> Bytes:
    """What is in a buffer, without a copy where it lies in one piece."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(data: Bytes) -> str:
    """Of the sums of all blocks: as fast as memory is read, and other at any one changed byte."""
    blocks = len(data) // CHUNK
    words = data[: blocks * CHUNK].view(np.uint64).reshape(blocks, WORDS)
    sums = words.sum(axis=1, dtype=np.uint64)
    rest = data[blocks * CHUNK :].tobytes()
    return hashlib.blake2b(sums.tobytes() + rest, digest_size=16).hexdigest()


def _write(file: Any, data: Any) -> int:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    return len(memoryview(data))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
