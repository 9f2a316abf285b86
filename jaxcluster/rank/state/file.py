"""The files of saved variables: raw sections, an index of them, and checksums.

A file system lets one thread at a time write to a file, so each thread of a large save has a file.
The first one begins with a head and ends with the index of all. Each chunk is read back as soon as
it is written, while the CPU has it in its cache, and whoever loads a section checks it again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VERSION = "jaxcluster state 4, Python {}.{}".format(*sys.version_info)
HEAD = struct.Struct("<40sQ32s")  # the version; where the index is, up to the end; its digest
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
CHUNK = 256 << 10  # two of them fit into a CPU core's cache
LARGE_NBYTES = 4 << 20  # from there on threads are worth it
THREADS = min(4, len(os.sched_getaffinity(0)))
Bytes = np.ndarray[Any, Any]


class BadFile(Exception):
    """Variables can't be saved in a file, or what was saved can't be read."""

    hint = ""  # the error is expected, and not logged


class Part(NamedTuple):
    """One raw section: its size, and what gives its bytes when it is written."""

    nbytes: int
    read: Callable[[], Any]


def file_name(rank: int) -> str:
    """The name of a rank's first file."""
    return f"rank-{rank}.state"


def remove(path: Path) -> None:
    """Remove a state's files, if there are any."""
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink(missing_ok=True)


def write(path: Path, parts: Sequence[Part], about: Any) -> list[Path]:
    """Write a state, and what is known ``about`` it, in place of an older one; returns its files.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    is_large = sum(part.nbytes for part in parts) >= LARGE_NBYTES
    paths = [path, *(Path(f"{path}.{n}") for n in range(1, THREADS if is_large else 1))]
    sections, left, is_over = {}, iter([*enumerate(parts)]), threading.Event()

    def fill(path: Path) -> None:
        """Write sections to one of the files, while there are any."""
        both = np.empty((2, CHUNK), np.uint8)
        path.touch(0o600, exist_ok=False)
        with open(path, "r+b") as file:

            def put(at: int, chunk: Bytes) -> Any:
                if is_over.is_set():
                    raise BadFile(f"{path} was given up")
                copied, read = both[:, : len(chunk)]
                copied[:] = chunk  # a cell may change it meanwhile
                file.write(copied.data)
                file.flush()
                os.preadv(file.fileno(), [read.data], first + at)
                if not np.array_equal(copied, read):
                    raise BadFile(f"{path} does not hold what was written")
                return copied

            file.write(bytes(HEAD.size))
            for section, part in left:
                data, first = as_bytes(part.read()), file.tell()
                sections[section] = path.name, first, len(data), checksum(data, put)

    remove(path)
    with ThreadPoolExecutor(len(paths)) as pool:
        try:
            list(pool.map(fill, paths))
        finally:  # the stop button: threads would go on to the end
            is_over.set()
    index = pickle.dumps(([sections[n] for n in range(len(parts))], about))
    with open(path, "r+b") as file:
        at = file.seek(0, os.SEEK_END)
        file.write(index)
        file.seek(0)
        file.write(HEAD.pack(VERSION.encode(), at, checksum(as_bytes(index)).encode()))
    StateFile(path)
    return paths


class StateFile:
    """A state that is read; ``about`` is what was written of its sections.

    Raises:
      BadFile: it is none, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            version, at, digest = HEAD.unpack(file.read(HEAD.size).ljust(HEAD.size))
            if version.rstrip(b"\0") != VERSION.encode():
                raise BadFile(f"{path} is not of {VERSION}, or no file of saved variables")
            file.seek(min(at, path.stat().st_size))
            index = file.read()
        if checksum(as_bytes(index)).encode() != digest:
            raise BadFile(f"{path} is not whole")
        self._sections, self.about = pickle.loads(index)

    def copy(self, number: int) -> Bytes:
        """A section's bytes, checked, in memory of their own."""
        name, first, size, digest = self._sections[number]
        whole = np.empty(size + ALIGNMENT, np.uint8)
        copied = whole[-whole.ctypes.data % ALIGNMENT :][:size]
        with _opened(self.path.with_name(name)) as file, ThreadPoolExecutor(THREADS) as pool:

            def read(at: int, chunk: Bytes) -> Bytes:
                os.preadv(file.fileno(), [chunk.data], first + at)
                return chunk

            found = checksum(copied, read, pool.map if size >= LARGE_NBYTES else map)
        if found != digest:
            raise BadFile(f"{self.path} was changed after it was written")
        return copied


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise BadFile(f"{path} can't be read: {error}") from None


def as_bytes(buffer: Any) -> Bytes:
    """What is in a buffer, without a copy where it lies in one piece."""
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(
    data: Bytes, use: Callable[[int, Bytes], Any] = lambda at, chunk: chunk, each: Any = map
) -> str:
    """Of the sums of what ``use`` makes of each chunk: other at any one changed byte."""

    def sums(at: int) -> bytes:
        chunk = use(at, data[at : at + CHUNK])
        words = chunk[: len(chunk) // 8 * 8]
        return bytes(words.view(np.uint64).sum(keepdims=True)) + bytes(chunk[len(words) :])

    found = b"".join(each(sums, range(0, len(data), CHUNK)))
    return hashlib.blake2b(found, digest_size=16).hexdigest()
