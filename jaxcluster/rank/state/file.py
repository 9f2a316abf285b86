"""The files of saved variables: an index with checksums, and beside it raw sections.

A file system lets one thread at a time write to a file. So each thread of a large save has a file.
Each chunk is read back while the CPU has it in its cache, and whoever loads it checks it again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxcluster.rank.arrays import host_values, is_array

VERSION = "jaxcluster state 8, Python {}.{}".format(*sys.version_info)
ALIGNMENT = 64  # from there on XLA takes memory of numpy's as it is
CHUNK = 256 << 10  # two of them fit into a CPU core's cache
LARGE_NBYTES = 4 << 20  # from there on threads are worth it
THREADS = min(4, len(os.sched_getaffinity(0)))
Bytes = np.ndarray[Any, Any]


class BadFile(Exception):
    """Variables can't be saved in a file, or what was saved can't be read."""

    hint = ""  # the error is expected, and not logged


def file_name(rank: int) -> str:
    """The name of a rank's index."""
    return f"rank-{rank}.state"


def remove(path: Path) -> None:
    """Remove a state's files, if there are any."""
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink(missing_ok=True)


def write(path: Path, parts: Sequence[Any], about: Any) -> list[Path]:
    """Write a state in place of an older one; returns its files.

    Args:
      parts: buffers, or arrays of the rank's devices; each becomes a section.
      about: what is known of them.

    Raises:
      OSError: there is no room for it.
      BadFile: it is not what was written.
    """
    is_large = sum(part.nbytes for part in parts) >= LARGE_NBYTES
    paths = [Path(f"{path}.{n}") for n in range(THREADS if is_large else 1)]
    sections, left, is_over = {}, iter([*enumerate(parts)]), threading.Event()

    def fill(path: Path) -> None:
        """Write sections to one of the files, while there are any."""
        both = np.empty((2, CHUNK), np.uint8)
        with _created(path) as file:

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

            for section, part in left:
                data, first = as_bytes(part), file.tell()
                sections[section] = path.name, first, len(data), checksum(data, put)

    remove(path)
    with ThreadPoolExecutor(len(paths)) as pool:
        try:
            list(pool.map(fill, paths))
        finally:  # the stop button: threads would go on to the end
            is_over.set()
    index = pickle.dumps(([sections[n] for n in range(len(parts))], about))
    with _created(path) as file:
        file.write(b"\n".join([VERSION.encode(), checksum(as_bytes(index)).encode(), index]))
    StateFile(path)
    return [path, *paths]


class StateFile:
    """A state that is read; ``about`` is what was written of its sections.

    Raises:
      BadFile: it is none, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _opened(path) as file:
            version, digest, index = [*file.read().split(b"\n", 2), b"", b""][:3]
        if version != VERSION.encode():
            raise BadFile(f"{path} is not of {VERSION}, or no file of saved variables")
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


_created: Any = partial(open, mode="x+b", opener=partial(os.open, mode=0o600))


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise BadFile(f"{path} can't be read: {error}") from None


def as_bytes(buffer: Any) -> Bytes:
    """The bytes of a buffer or an array, without a copy if they lie in one piece here."""
    if is_array(buffer):
        return np.ascontiguousarray(host_values(buffer)).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def checksum(
    data: Bytes, use: Callable[[int, Bytes], Any] = lambda at, chunk: chunk, each: Any = map
) -> str:
    """A hash of the sums of ``use``'s result for each chunk; any changed byte changes it."""

    def sums(at: int) -> bytes:
        chunk = use(at, data[at : at + CHUNK])
        words = chunk[: len(chunk) // 8 * 8]
        return bytes(words.view(np.uint64).sum(keepdims=True)) + bytes(chunk[len(words) :])

    found = each(sums, range(0, len(data), CHUNK))
    return hashlib.blake2b(b"".join(found), digest_size=16).hexdigest()
