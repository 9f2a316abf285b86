"""The format of saved variables: a head, raw sections, an index of them, and checksums.

Whoever reads a file checks it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FIRST_LINE = b"jaxcluster state 3\n"
HEAD = struct.Struct("<19sQ16s")  # the line; where the index is, up to the end; its digest
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
BLOCK = 64 << 10  # its sum is a part of a checksum
CHUNK = 16 * BLOCK  # fits into a CPU's cache
Bytes = np.ndarray[Any, Any]


class BadFile(Exception):
    """Variables can't be saved in a file, or what was saved can't be read."""

    hint = ""  # the error is expected, and not logged


class Part(NamedTuple):
    """One raw section: its size, and what gives its bytes when it is written."""

    nbytes: int
    read: Callable[[], Any]


def file_name(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank}.state"


def write(path: Path, parts: Sequence[Part], about: Any) -> int:
    """Write a file, and read back what was written; returns its size.

    Args:
      about: what is known of the sections, which can be pickled.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    sections = []
    opener = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)  # noqa: E731
    with open(path, "xb", opener=opener) as file:
        file.write(bytes(HEAD.size))
        for part in parts:
            data = as_bytes(part.read())
            file.write(bytes(-file.tell() % ALIGNMENT))
            sections.append((file.tell(), len(data), checksum(data)))
            file.write(data.data)
        index, at = pickle.dumps((sections, about)), file.tell()
        file.write(index)
        file.seek(0)
        file.write(HEAD.pack(FIRST_LINE, at, _digest(index)))
    StateFile(path)
    written = np.memmap(path, np.uint8, "c")  # not all file systems share memory
    if any(checksum(written[at : at + size]) != digest for at, size, digest in sections):
        raise BadFile(f"{path} does not hold what was written")
    return len(written)


class StateFile:
    """A file that is read.

    Attributes:
      about: what was written of its sections.

    Raises:
      BadFile: it is none, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        line, at, digest = HEAD.unpack(self._read(0, np.zeros(HEAD.size, np.uint8)).data)
        if line != FIRST_LINE:
            raise BadFile(f"{path} is no file of saved variables, or of another version")
        index = self._read(at, np.zeros(max(0, path.stat().st_size - at), np.uint8))
        if _digest(index) != digest:
            raise BadFile(f"{path} is not whole")
        self._sections, self.about = pickle.loads(index.data)

    def copy(self, number: int) -> Bytes:
        """A section's bytes, checked, in memory of their own."""
        at, size, digest = self._sections[number]
        whole = np.empty(size + ALIGNMENT, np.uint8)
        copied = self._read(at, whole[-whole.ctypes.data % ALIGNMENT :][:size])
        if checksum(copied) != digest:
            raise BadFile(f"{self.path} was changed after it was written")
        return copied

    def _read(self, at: int, into: Bytes) -> Bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(at)
                file.readinto(into.data)
                return into
        except (OSError, OverflowError) as error:
            raise BadFile(f"{self.path} can't be read: {error}") from None


def as_bytes(buffer: Any) -> Bytes:
    """What is in a buffer, without a copy where it lies in one piece."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(data: Bytes) -> str:
    """Of the sums of all blocks: as fast as memory is read, and other at any one changed byte."""
    digest = hashlib.blake2b(digest_size=16)
    for at in range(0, len(data), CHUNK):
        chunk = data[at : at + CHUNK]
        whole = len(chunk) // BLOCK * BLOCK
        blocks: Bytes = chunk[:whole].view(np.uint64).reshape(-1, BLOCK // 8)
        digest.update(bytes(blocks.sum(axis=1, dtype=np.uint64)))
        digest.update(bytes(chunk[whole:]))
    return digest.hexdigest()


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
