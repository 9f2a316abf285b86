"""What is saved of a rank's variables, and the file that holds it.

The file of a rank is ``rank-<number>.state`` in a folder that all ranks share or have each on its
host: sections of bytes, and behind them a JSON header that points to them, which can be read
without unpickling anything. Where the header is stands at the file's beginning, which is written
last. Header and sections have checksums. It can be read by its owner alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from zlib import crc32

from jaxcluster import wire
from jaxcluster.engine.state.memory import Section
from jaxcluster.engine.state.remote_files import FarPath
from jaxcluster.host.free_space import free_nbytes, memory_room
from jaxcluster.wire.ops.state import SavedBefore, SavePlace, SaveReport

MAGIC = b"jaxcluster-state-5\n"
HEADER = struct.Struct("<QQI")  # where the header is, its size and its checksum
_LIMITS = (errno.EMFILE, errno.EFBIG)  # of the process alone
ALIGN = 64
CHUNK = 4 << 20
Source = str | Path | FarPath  # a file, here or on another host


class CannotSave(Exception):
    """Why a value can't be saved, as its owner is told."""

    hint = ""


class AtLimit(CannotSave):
    """The process may open no more files, or write none that is so large."""


class CannotRestore(Exception):
    """Why a saved value, or a whole file, can't be brought back."""

    hint = ""


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Within, values are pickled or made, by code of the user's too: if it exits, it has failed."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise RuntimeError(f"its code raises {type(error).__name__}") from error


class Unreadable(CannotRestore):
    """Why a file can't be read: it is gone, or not what was written."""


@dataclass
class SavedArray:
    """An array as this rank had it. ``shards`` are (bounds per axis, section), equal ones once.

    ``shape`` and ``dtype`` are those of the stored numbers: of a key array, its integers.
    ``local`` says that no other process had a part of it.
    """

    shape: list[int]
    dtype: str
    sharding: int
    local: bool
    committed: bool
    shards: list[tuple[list[list[int]], int]]
    weak_type: bool = False
    key_impl: str | None = None
    text: str = ""


@dataclass
class SavedPickle:
    """One pickle: its section, and what its references to arrays and buffers stand for.

    ``arrays`` are jax's, ``views`` numpy's.
    """

    section: int
    arrays: list[int]
    buffers: list[int]
    views: list[int] = field(default_factory=list)


@dataclass
class Generation:
    """Values of names at one moment: those that are saved, and why the others are not.

    ``digests`` are equal on ranks where a name has equal values (of an array that spans processes
    only its metadata counts). ``common`` are the names whose values say nothing of the rank that
    holds them. ``texts`` are what the ranks tell of their values with each reply as well
    (``engine.digests``).
    """

    names: dict[str, SavedPickle] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    common: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)


@dataclass
class Saved:
    """A rank's variables as sections of bytes and what they mean; ``write`` makes a file of it.

    ``now`` is what the names are bound to. ``before`` has, of those that a cell has bound since it
    began, what they were bound to then; ``absent`` are those that were not there then. ``together``
    is one pickle of both and of the settings, which keeps what is aliased between them.
    ``memories`` are the sections of numpy's arrays, and ``views`` that of the arrays on them.
    ``settings`` are those of the process that cells have changed, ``left`` those that can't be
    saved, and ``random`` tells random states apart, and the user's own
    modules (see ``randomness`` and ``ownmodules``); ``set_to`` tells other settings apart.
    ``unbound`` are names that were lost earlier, and how (see ``engine.lost_names``). ``meshes``
    are the shapes and axis names of the meshes of all ``device_count`` devices.
    """

    rank: int
    process_count: int
    device_count: int
    versions: dict[str, str]
    now: Generation = field(default_factory=Generation)
    before: Generation = field(default_factory=Generation)
    absent: list[str] = field(default_factory=list)
    together: SavedPickle | None = None
    arrays: list[SavedArray] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    views: int = -1
    meshes: list[tuple[list[int], list[str]]] = field(default_factory=list)
    unbound: dict[str, str] = field(default_factory=dict)
    settings: dict[str, SavedPickle] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    set_to: dict[str, str] = field(default_factory=dict)
    sections: list[Any] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)  # whose memory the sections are

    @property
    def nbytes(self) -> int:
        return sum(memoryview(section).nbytes for section in self.sections)

    def report(self, path: Path, knows_before: bool = True) -> SaveReport:
        """What the notebook is told of it, and of the file in which it is."""
        before = _names(self, self.before)
        return SaveReport(
            **_names(self, self.now),
            before=SavedBefore(**before, absent=self.absent, known=knows_before),
            nbytes=self.nbytes,
            unbound=self.unbound,
            left=self.left,
            random=self.random,
            set_to=self.set_to,
            folder=str(path.parent),
            file_nbytes=path.stat().st_size,
        )


def _names(saved: Saved, then: Generation) -> dict[str, Any]:
    """The fields of a ``SavedNames``."""
    arrays, names = saved.arrays, then.names
    return {
        "kept": sorted(names),
        "lost": then.lost,
        "spanning": [n for n, one in names.items() if any(not arrays[k].local for k in one.arrays)],
        "common": then.common,
        "digests": then.digests,
        "texts": then.texts,
    }


# --------------------------------------------------------------------------- files


def state_path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank}.state"


def write_where_room(saved: Saved, rank: int, places: Sequence[SavePlace]) -> Path:
    """Write ``saved`` to the first of ``places`` that has room; returns the file.

    What others may use as well can be full at any moment: then the next one is taken, and last what
    was too small for all, if it has room for this one now.

    Raises:
      CannotSave: it could be written to none of them; why is said of each.
    """
    nbytes = saved.nbytes
    at_limit = False
    small = [p for p in places if p.room is not None and nbytes > p.room]
    whys = []
    for place in [*(p for p in places if p not in small), *small]:
        path = state_path(place.folder, rank)
        try:
            if place in small and nbytes > memory_room(place.folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(saved, path, reserve=place.room is not None)
            return path
        except (OSError, CannotSave) as error:
            at_limit = at_limit or getattr(error, "errno", 0) in _LIMITS
            whys.append(_why_not(place, error))
    kind = AtLimit if at_limit else CannotSave
    raise kind(f"its {_mib(nbytes)} can't be written: {'; '.join(whys)}")


def told(error: BaseException) -> str:
    """An exception's class, and the first line of its message, if it can say it."""
    if isinstance(error, CannotSave | CannotRestore):
        return str(error)
    try:
        text = str(error).partition("\n")[0][:200]
    except Exception:  # of its own, or of what it holds
        text = "(its message is not available)"
    return f"{type(error).__name__}: {text}"


def _why_not(place: SavePlace, error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in _LIMITS:
        return f"{place.folder} ({error.strerror})"
    room = ""
    with contextlib.suppress(OSError):
        free = free_nbytes(place.folder) if place.room is None else memory_room(place.folder)
        room = f", {_mib(free)} free"
    return f"{place.folder} ({error.strerror or error}{room})"


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB" if nbytes < 10 << 30 else f"{nbytes >> 30:,} GiB"


def write(saved: Saved, path: Path, *, reserve: bool = False) -> None:
    """Write ``saved``, and read it back; a reader never sees half of it.

    Args:
      reserve: take all the room at once, before anything is written: others may want it too.

    Raises:
      CannotSave: the folder is gone, so nobody waits for it any more; or what was written is not
        what can be read.
      OSError: it can't be written. Nothing is left of it.
    """
    draft = path.with_suffix(".part")
    try:
        with open(draft, "wb", opener=private) as file:
            if reserve and saved.nbytes:
                os.posix_fallocate(file.fileno(), 0, saved.nbytes)
            _write_to(file, saved, path.parent)
        check(draft)
        draft.replace(path)
    except FileNotFoundError:
        raise CannotSave(f"{path.parent} is gone: the save was cancelled") from None
    except CannotRestore as error:
        draft.unlink(missing_ok=True)
        raise CannotSave(f"reading it back failed: {error}") from None
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def private(path: str, flags: int) -> int:
    """A file for its owner alone, and for its owner in any case, whatever umask a cell has set."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _write_to(file: BinaryIO, saved: Saved, folder: Path) -> None:
    places: list[list[Any]] = []
    at = ALIGN
    for section in saved.sections:
        file.seek(at)
        nbytes, checksum = _copy(section, file)
        places.append([at, nbytes, checksum])
        at += -(-nbytes // ALIGN) * ALIGN
        folder.stat()
    body = {k: v for k, v in vars(saved).items() if k not in ("sections", "alive")}
    plain = json.dumps({**body, "places": places}, default=vars).encode()
    file.seek(at)
    file.write(plain)
    file.truncate()
    file.seek(0)
    file.write(MAGIC + HEADER.pack(at, len(plain), crc32(plain)))


def _copy(section: Any, file: BinaryIO) -> tuple[int, int]:
    """Write a section; returns its size, and the checksum of what was written: a cell that runs on
    may change it meanwhile."""
    view, checksum = memoryview(section), 0
    if view.nbytes:
        view = view.cast("B")
    for at in range(0, view.nbytes, CHUNK):
        part = bytes(view[at : at + CHUNK])
        checksum = crc32(part, checksum)
        file.write(part)
    return view.nbytes, checksum


def check(path: Path) -> None:
    """Read a file as ``read`` does, and keep nothing of it.

    Raises:
      CannotRestore: it can't be restored.
    """
    with _opened(path) as (file, header):
        buffer = memoryview(bytearray(CHUNK))
        for at, nbytes, checksum in header["places"]:
            file.seek(at)
            found = 0
            for start in range(0, nbytes, CHUNK):
                part = buffer[: min(CHUNK, nbytes - start)]
                _fill(part, file, path)
                found = crc32(part, found)
            _compare(found, checksum, path)


def read(
    path: Source, go_on: Callable[[], None] = lambda: None, left_out: Collection[int] = ()
) -> Saved:
    """What ``write`` wrote. Unpickles nothing.

    Args:
      go_on: raises where it is given up.
      left_out: the numbers of sections that are not needed.

    Raises:
      CannotRestore: there is no such file, it is not ours, or it is damaged.
    """
    sections = []
    with _opened(path) as (file, header):
        for number, place in enumerate(header["places"]):
            go_on()
            is_out = number in left_out
            sections.append(Section() if is_out else _read_section(place, file, path))
    return wire.parse(Saved, {**header, "sections": sections})


class Glance:
    """A file of which only what is asked for is read: its header, and single sections.

    Its memory is the file's, as long as any section is used, also when the file has been removed.
    Of a file on another host it is what was asked for, until ``let_go``.

    Attributes:
      saved: what the header says; it has no sections.

    Raises:
      CannotRestore: as ``read``.
    """

    def __init__(self, path: Source) -> None:
        self._path = path
        self._read: dict[int, memoryview] = {}
        self._map: mmap.mmap | None = None
        self._held: set[int] = set()
        with _opened(path) as (file, header):
            self._places = header["places"]
            if not isinstance(path, FarPath):
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.saved = wire.parse(Saved, header)

    def section(self, number: int) -> memoryview:
        """The bytes of a section, whose checksum is looked at when it is first asked for.

        Raises:
          CannotRestore: it is not what was written.
        """
        if number not in self._read:
            at, nbytes, checksum = self._places[number]
            if self._map is None:
                with _open(self._path) as file:
                    data = memoryview(_read_section(self._places[number], file, self._path))
            else:
                data = memoryview(self._map)[at : at + nbytes]
                _compare(crc32(data), checksum, self._path)
            self._read[number] = data
        return self._read[number]

    def is_unlike(self, number: int, other: Glance, its_number: int) -> bool:
        """Whether a section differs for certain from another file's, by their checksums."""
        return bool(self._places[number][2] != other._places[its_number][2])

    def hold(self, number: int) -> None:
        """Have a section also when its host is out of reach."""
        if isinstance(self._path, FarPath):
            self.section(number)
            self._held.add(number)

    def let_go(self) -> None:
        """What was read of another host's file is not needed any more, but for what is held."""
        if isinstance(self._path, FarPath):
            self._read = {n: data for n, data in self._read.items() if n in self._held}

    def all_but_arrays(self, go_on: Callable[[], None] = lambda: None) -> Saved:
        """The file, without the numbers of the arrays that another rank may have parts of.

        Raises:
          CannotRestore: as ``read``.
        """
        saved = self.saved
        arrays = [a for a in saved.arrays if not a.local or saved.process_count == 1]
        left_out = {number for array in arrays for _, number in array.shards}
        return read(self._path, go_on, left_out)


@contextlib.contextmanager
def _opened(path: Source) -> Iterator[tuple[BinaryIO, dict[str, Any]]]:
    """A saved file, and its header."""
    try:
        with _open(path) as file:
            start = bytearray(len(MAGIC) + HEADER.size)
            filled = file.readinto(start)
            if not start.startswith(MAGIC):
                _refuse(path, "is not a saved state of this version of jaxcluster")
            if filled < len(start):
                _refuse(path, "is truncated")
            at, nbytes, checksum = HEADER.unpack_from(start, len(MAGIC))
            if at + nbytes > file.seek(0, os.SEEK_END):
                _refuse(path, "is truncated")
            file.seek(at)
            plain = bytearray(nbytes)
            _fill(plain, file, path)
            _compare(crc32(plain), checksum, path)
            yield file, json.loads(plain)
    except OSError as error:
        raise Unreadable(f"{path} can't be read: {error.strerror}") from None


def _open(path: Source) -> Any:
    """Open a file. To unpickle what is in it runs code, so nobody else's is."""
    return path.open() if isinstance(path, FarPath) else open(path, "rb", opener=_own)


def _refuse(path: Source, why: str) -> NoReturn:
    """Say what is wrong with a file. Another host's may be whole there."""
    if isinstance(path, FarPath):
        path.refuse(f"{path} {why}")
    raise Unreadable(f"{path} {why}")


def _own(path: str, flags: int) -> int:
    """Open a file that is this user's alone, in a folder that is.

    Raises:
      CannotRestore: another user has one of them, or can write to it.
    """
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_own(os.path.dirname(path), os.fstat(folder))
        # It must not wait for who writes into a pipe.
        descriptor = os.open(os.path.basename(path), flags | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(f"{path} is not a file")
        _check_own(path, found)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_own(path: str, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise Unreadable(f"{path} belongs to another user, and restoring it would run code")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unreadable(
            f"other users can write to {path}, and restoring it would run code (if you trust its "
            f"contents: chmod go-w {path})"
        )


def _read_section(place: Sequence[Any], file: BinaryIO, path: Source) -> Section:
    """A section of an open file."""
    at, nbytes, checksum = place
    data = Section(nbytes)
    file.seek(at)
    _fill(data, file, path)
    _compare(crc32(data), checksum, path)
    return data


def _fill(buffer: bytearray | memoryview, file: BinaryIO, path: Source) -> None:
    if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
        _refuse(path, "is truncated")


def _compare(found: int, wanted: int, path: Source) -> None:
    if found != wanted:
        _refuse(path, "is damaged: its contents are not what was written")
