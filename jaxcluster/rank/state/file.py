"""The format of saved variables: a line, raw sections, an index of them, and checksums.

Whoever reads a file checks it. A chunk is checked while the CPU still has it in its cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FIRST_LINE = b"jaxcluster state 2\n"
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
BLOCK = 64 << 10  # its sum is a part of a checksum
CHUNK = 16 * BLOCK
THREADS = min(4, os.cpu_count() or 1)
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
    """Write a file, and read back what was written; returns its size.

    Args:
      about: what is known of the sections, which can be pickled.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    sections = []
    opener = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)  # noqa: E731
    with open(path, "x+b", buffering=0, opener=opener) as file:

        def put(data: Any, at: int) -> int:
            rest = memoryview(data)
            while rest:
                done = os.pwrite(file.fileno(), rest, at)
                rest, at = rest[done:], at + done
            return at

        at = put(FIRST_LINE, 0)
        for part in parts:
            data, first = as_bytes(part.read()), at + -at % ALIGNMENT

            def move(start: int, data: Bytes = data, first: int = first) -> bytes:
                sums, chunk = _sums(data[start : start + CHUNK]), data[start : start + CHUNK].data
                put(chunk, first + start)
                if sums != _sums(_read(file, len(chunk), first + start)):
                    raise BadFile(f"{path} does not hold what was written")
                return sums

            sections.append((first, len(data), _in_chunks(len(data), move)))
            at = first + len(data)
        index = pickle.dumps((sections, about))
        size = put(index + FOOTER.pack(len(index), _digest(index)), at)
    StateFile(path)
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
        with self._opened() as file:
            if _read(file, len(FIRST_LINE), 0).tobytes() != FIRST_LINE:
                raise BadFile(f"{path} is no file of saved variables, or of another version")
            end = max(0, os.fstat(file.fileno()).st_size - FOOTER.size)
            size, digest = FOOTER.unpack(_read(file, FOOTER.size, end).data) if end else (1, b"")
            index = _read(file, size, end - size).tobytes() if size <= end else b""
        if _digest(index) != digest:
            raise BadFile(f"{path} is not whole")
        self._sections, self.about = pickle.loads(index)

    def copy(self, number: int) -> Bytes:
        """A section's bytes, checked, in memory of their own."""
        first, size, digest = self._sections[number]
        whole = np.empty(size + ALIGNMENT, np.uint8)
        copied = whole[-whole.ctypes.data % ALIGNMENT :][:size]
        with self._opened() as file:
            move = lambda at: _sums(_read(file, 0, first + at, copied[at : at + CHUNK]))  # noqa: E731
            if _in_chunks(size, move) != digest:
                raise BadFile(f"{self.path} was changed after it was written")
        return copied

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with open(self.path, "rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise BadFile(f"{self.path} can't be read: {error}") from None


def as_bytes(buffer: Any) -> Bytes:
    """What is in a buffer, without a copy where it lies in one piece."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(data: Bytes) -> str:
    """Of the sums of all blocks: as fast as memory is read, and other at any one changed byte."""
    return _in_chunks(len(data), lambda at: _sums(data[at : at + CHUNK]))


def _in_chunks(nbytes: int, do: Callable[[int], bytes]) -> str:
    """Do something with each chunk, which gives its sums; their checksum."""
    with ThreadPoolExecutor(THREADS) as pool:  # threads start when they are needed
        each = (pool.map if nbytes > CHUNK else map)(do, range(0, nbytes, CHUNK))
        return hashlib.blake2b(b"".join(each), digest_size=16).hexdigest()


def _sums(chunk: Bytes) -> bytes:
    whole = len(chunk) // BLOCK * BLOCK
    blocks: Bytes = chunk[:whole].view(np.uint64).reshape(-1, BLOCK // 8)
    return bytes(blocks.sum(axis=1, dtype=np.uint64)) + bytes(chunk[whole:])


def _read(file: Any, size: int, at: int, into: Bytes | None = None) -> Bytes:
    found = np.empty(size, np.uint8) if into is None else into
    return found[: os.preadv(file.fileno(), [found.data], at)]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()
