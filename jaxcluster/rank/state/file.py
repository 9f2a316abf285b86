"""The file of saved variables: raw sections, and behind them an index with checksums.

Each chunk is read back while the CPU has it in its cache, and whoever loads it checks it again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxcluster.rank.arrays import host_values, is_array

VERSION = "jaxcluster state 9, Python {}.{}".format(*sys.version_info).encode()
HEAD = struct.Struct(f"<{len(VERSION)}sQ32s")  # version; where the index begins; its checksum
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
CHUNK = 256 << 10  # two of them fit into a CPU core's cache
Bytes = np.ndarray[Any, Any]


class BadFile(Exception):
    """Variables can't be saved in a file, or what was saved can't be read."""

    hint = ""  # the error is expected, and not logged


def write(path: Path, parts: Sequence[Any], about: Any) -> None:
    """Write a state in place of an older one.

    Args:
      parts: buffers, or arrays of the rank's devices; each becomes a section.
      about: what is known of them.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    path.unlink(missing_ok=True)
    sections, both = list[tuple[int, int, str]](), np.empty((2, CHUNK), np.uint8)
    with open(path, "x+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:

        def put(at: int, chunk: Bytes) -> Any:
            copied, read = both[:, : len(chunk)]
            copied[:] = chunk  # a cell may change it meanwhile
            file.write(copied.data)
            file.flush()
            os.preadv(file.fileno(), [read.data], first + at)
            if not np.array_equal(copied, read):
                raise BadFile(f"{path} does not hold what was written")
            return copied

        file.write(HEAD.pack(VERSION, 0, b""))
        for part in parts:
            data, first = as_bytes(part), file.tell()
            sections.append((first, len(data), checksum(data, put)))
        at, index = file.tell(), pickle.dumps((sections, about))
        file.write(index)
        file.seek(0)
        file.write(HEAD.pack(VERSION, at, checksum(as_bytes(index)).encode()))
    StateFile(path)


class StateFile:
    """A state that is read; ``about`` is what was written of its sections.

    Raises:
      BadFile: it is none, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            version, at, digest = HEAD.unpack(file.read(HEAD.size).ljust(HEAD.size))
            file.seek(min(at, os.fstat(file.fileno()).st_size))
            index = file.read()
        if version != VERSION:
            raise BadFile(f"{path} is not of {VERSION.decode()}, or no file of saved variables")
        if checksum(as_bytes(index)).encode() != digest:
            raise BadFile(f"{path} is not whole")
        self._sections, self.about = pickle.loads(index)

    def _opened(self) -> Any:
        try:
            return open(self.path, "rb", buffering=0)
        except OSError as error:
            raise BadFile(f"{self.path} can't be read: {error}") from None

    def copy(self, number: int) -> Bytes:
        """A section's bytes, checked, in memory of their own."""
        first, size, digest = self._sections[number]
        whole = np.empty(size + ALIGNMENT, np.uint8)
        copied = whole[-whole.ctypes.data % ALIGNMENT :][:size]
        with self._opened() as file:

            def read(at: int, chunk: Bytes) -> Bytes:
                os.preadv(file.fileno(), [chunk.data], first + at)
                return chunk

            if checksum(copied, read) != digest:
                raise BadFile(f"{self.path} was changed after it was written")
        return copied


def as_bytes(buffer: Any) -> Bytes:
    """The bytes of a buffer or an array, without a copy if they lie in one piece here."""
    if is_array(buffer):
        return np.ascontiguousarray(host_values(buffer)).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(data: Bytes, use: Callable[[int, Bytes], Any] = lambda at, chunk: chunk) -> str:
    """A hash of the sums of ``use``'s result for each chunk; any changed byte changes it."""

    def sums(at: int) -> bytes:
        chunk = use(at, data[at : at + CHUNK])
        words = chunk[: len(chunk) // 8 * 8]
        return bytes(words.view(np.uint64).sum(keepdims=True)) + bytes(chunk[len(words) :])

    found = map(sums, range(0, len(data), CHUNK))
    return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest()
