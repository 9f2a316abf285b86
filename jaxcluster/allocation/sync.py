"""The user's own code on hosts that don't share his folder: which files, and what has changed.

A module beside the notebook is found by ranks of this machine, since that is their folder. Here a
copy of it is kept in each agent's folder, first on the ranks' ``sys.path``: it is brought there
before the ranks start, and what has changed since before each cell. A host that has the folder
itself uses it as it is.

What to send is told by each file's times and size, so a cell costs a ``stat`` of each file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from jaxcluster.agent.requests import DRAFT, Mkdir, Move, Remove, Shares, Write
from jaxcluster.allocation.fleet import Place
from jaxcluster.errors import UsageError
from jaxcluster.launchers.sync import SyncedFolder

CODE = "code"  # in an agent's folder
MOST_NBYTES = 32 << 20
MOST_FILES = 5000  # each is looked at before each cell
BATCH_NBYTES = 1 << 20  # in one message: more would hold up the beats of a slow connection
FRESH_NS = 100_000_000  # a file this young may be written again and keep its time
SHARES_S = 10.0
SEND_S = 30.0
SKIPPED = (
    "__pycache__",
    "node_modules",
    "site-packages",
    "dist-packages",
)  # and all that begins with a dot
SITE = ("site-packages", "dist-packages")  # where packages are installed
MARKS = ("pyvenv.cfg", "conda-meta")  # of a virtual environment

Stamp = tuple[int, ...]


# --------------------------------------------------------------------------- which files


def look(synced: SyncedFolder) -> dict[str, Stamp]:
    """The files to be sent, by their path from the folder, each with what tells a change.

    Left out are what begins with a dot, virtual environments, compiled files and notebooks. Links
    are followed, each folder once.

    Raises:
      UsageError: they are too many, or too large.
    """
    found: dict[str, Stamp] = {}
    nbytes: Counter[str] = Counter()  # of each thing in the folder
    number: Counter[str] = Counter()
    if synced.folder is None:
        return found
    for path, stamp, size in _files(str(synced.folder), synced.whole):
        name = os.path.relpath(path, synced.folder)
        found[name] = stamp
        top = name.partition(os.sep)[0]
        nbytes[top] += size
        number[top] += 1
        if nbytes.total() > MOST_NBYTES:
            raise _too_much(synced, f"hold more than {MOST_NBYTES >> 20} MiB", nbytes)
        if len(found) > MOST_FILES:
            raise _too_much(synced, f"are more than {MOST_FILES:,} files", number)
    return found


def _too_much(synced: SyncedFolder, much: str, tops: Counter[str]) -> UsageError:
    what = "files" if synced.whole else "modules and packages"
    ((largest, _),) = tops.most_common(1)
    return UsageError(
        f"The hosts don't share {synced.folder}, and the {what} in it {much} (most of it in "
        f"{largest}).",
        "Name a folder that has only the code: --sync FOLDER   or send none: --no-sync",
    )


def _files(folder: str, whole: bool) -> Iterator[tuple[str, Stamp, int]]:
    """(path, stamp, size) of each file to be sent. What vanishes meanwhile is passed over.

    Of a folder whose modules are wanted alone: its modules, those of folders with modules in it
    (Python takes them for packages, too), and all files of packages with an ``__init__.py``.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [(folder, whole, True)]
    while waiting:
        here, everything, is_first = waiting.pop()
        try:
            status = os.stat(here)
            with os.scandir(here) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError:
            continue
        key = status.st_dev, status.st_ino
        names = {entry.name for entry in entries}
        if key in seen or (not is_first and names & {*MARKS}):
            continue
        everything = everything or (not is_first and "__init__.py" in names)
        if not (everything or is_first or any(name.endswith(".py") for name in names)):
            continue
        seen.add(key)
        for entry in entries:
            if entry.name.startswith(".") or entry.name in SKIPPED:
                continue
            with contextlib.suppress(OSError):
                if entry.is_dir():
                    if everything or entry.name.isidentifier():
                        waiting.append((entry.path, everything, False))
                elif (
                    entry.is_file()
                    and not entry.name.endswith((".pyc", ".ipynb", DRAFT))
                    and (everything or entry.name.endswith(".py"))
                ):
                    status = entry.stat()
                    yield entry.path, _stamp(status), status.st_size


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


# --------------------------------------------------------------------------- what has changed


@dataclass(frozen=True)
class Changes:
    """What makes a copy equal again: files to be written, and files or folders to be removed."""

    send: tuple[str, ...]
    remove: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.send or self.remove)


def plan(there: Mapping[str, Stamp], here: Mapping[str, Stamp]) -> Changes:
    """How a copy of ``there`` becomes one of ``here``. Pure.

    A folder that is no longer one goes as a whole: what Python has compiled in it, too, or it would
    go on as a package without modules.
    """
    folders = _folders(here)
    remove = {_first_gone(path, folders) for path in there if path not in here}
    return Changes(
        tuple(path for path, stamp in here.items() if there.get(path) != stamp),
        tuple(sorted(remove)),
    )


def _folders(paths: Iterable[str]) -> set[str]:
    return {str(above) for path in paths for above in Path(path).parents}


def _first_gone(path: str, folders: set[str]) -> str:
    """The file, or the outermost folder above it that has gone with it."""
    for above in reversed(Path(path).parents):
        if str(above) != "." and str(above) not in folders:
            return str(above)
    return path


def batches(
    sizes: Sequence[tuple[str, int]], most: int = BATCH_NBYTES
) -> Iterator[list[tuple[str, int]]]:
    """Files in their order, by the messages that carry them; a larger one has its own. Pure."""
    batch: list[tuple[str, int]] = []
    nbytes = 0
    for name, size in sizes:
        if batch and nbytes + size > most:
            yield batch
            batch, nbytes = [], 0
        batch.append((name, size))
        nbytes += size
    if batch:
        yield batch


# --------------------------------------------------------------------------- sending


class Sync:
    """Keeps a copy of a folder on each host that does not share it. Used by one thread at a time.

    Args:
      synced: which.
    """

    def __init__(self, synced: SyncedFolder) -> None:
        self.synced = synced
        self._copies: dict[str, _Copy] = {}  # by an agent's folder; none of a host that shares it
        self._sharing: set[str] = set()  # agents' folders

    def path_on(self, place: Place) -> str:
        """What is to be first on ``sys.path`` there; "" for nothing."""
        if self.synced.folder is None:
            return ""
        return str(self.synced.folder if place.folder in self._sharing else _copy_on(place))

    def bring(self, places: Sequence[Place]) -> None:
        """Bring all hosts that are not lost up to date; returns when they are.

        Raises:
          UsageError: the files are too many, too large, or one can't be read.
          LaunchError: a host does not answer; what it has by then counts.
        """
        if self.synced.folder is None or not self.synced.folder.is_dir():
            return  # a folder that is gone, or can't be reached just now, takes nothing along
        places = [place for place in places if not place.lost]
        known = self._sharing | self._copies.keys()
        if new := [place for place in places if place.folder not in known]:
            self._meet(self.synced.folder, new)
        apart = [place for place in places if place.folder not in self._sharing]
        if not apart:
            return
        here = look(self.synced)
        stale = {
            place.folder: changes
            for place in apart
            if (changes := plan(self._copies[place.folder].stamps, here))
        }
        if not stale:
            return
        now_ns = time.time_ns()
        files = {
            path: _File(content, stamp if stamp[0] < now_ns - FRESH_NS else ())
            for path in {path for changes in stale.values() for path in changes.send}
            if (content := _read(self.synced.folder / path)) is not None and (stamp := here[path])
        }
        behind = [place for place in apart if place.folder in stale]
        _all(behind, lambda p: self._copies[p.folder].change(p, stale[p.folder], files))

    def _meet(self, folder: Path, places: Sequence[Place]) -> None:
        """Find out which hosts have the folder itself: they see a file that is made here now."""
        text = secrets.token_hex(16)
        marker = folder / f".jaxcluster-{text[:8]}"
        sharing: set[str] = set()

        def ask(place: Place) -> None:
            if place.agent.ask(Shares(str(marker), text), SHARES_S):
                sharing.add(place.folder)

        with contextlib.suppress(OSError):  # nothing can be written here: a copy does as well
            with open(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
                file.write(text)
            try:
                _all(places, ask)
            finally:
                marker.unlink()
        self._sharing |= sharing
        for place in places:
            if place.folder not in sharing:
                self._copies[place.folder] = _Copy()

    def explain(self, error: str, places: Sequence[Place]) -> list[str]:
        """What to add to a ModuleNotFoundError of these hosts; nothing if it says all there is.

        Args:
          error: its message.
        """
        match = re.search(r"No module named '([\w.]+)'", error)
        found = match and find_module(match[1])
        if not match or not found:
            return []
        module, (top, is_installed) = match[1], found
        if top == self.synced.folder and self._has(module.split(".")[0]):
            return []
        where = ", ".join(dict.fromkeys(place.name for place in places))
        host = f"host {where} does not" if "," not in where else f"hosts {where} don't"
        told = f"The notebook has {module} (in {top}); {host}."
        if is_installed:
            return [f"{told} Install it there, too: python -m pip install {module.split('.')[0]}"]
        return [f"{told} To send it there: %jaxcluster stop, then start with --sync {top}"]

    def _has(self, module: str) -> bool:
        """Whether a module of the folder is on the hosts."""
        copies = self._copies.values()
        paths = [path for copy in copies for path in copy.stamps]
        return not copies or any(p == f"{module}.py" or p.startswith(f"{module}/") for p in paths)


@dataclass(frozen=True)
class _File:
    """A file that is to be sent.

    Attributes:
      stamp: what it had; () where it may be written again within the same tick of its clock, so
        that it must be looked at again.
    """

    content: bytes
    stamp: Stamp

    @functools.cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.content, digest_size=16).digest()


class _Copy:
    """What is known to be in one host's copy."""

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp] = {}
        self._digests: dict[str, bytes] = {}
        self._lock = threading.Lock()  # a stop button may leave a thread behind that still sends

    def change(self, place: Place, changes: Changes, files: Mapping[str, _File]) -> None:
        """Carry changes out. Each is noted when it is done."""
        with self._lock:
            agent, base = place.agent, _copy_on(place)
            agent.ask(Mkdir(base), SEND_S)
            for path in changes.remove:
                agent.ask(Remove(f"{base}/{path}"), SEND_S)
                for gone in [p for p in self.stamps if p == path or p.startswith(f"{path}/")]:
                    del self.stamps[gone], self._digests[gone]
            send = {path: files[path] for path in changes.send if path in files}
            for path, file in send.items():
                if self._digests.get(path) == file.digest:  # it was only touched
                    self.stamps[path] = file.stamp
            other = {p: f for p, f in send.items() if self._digests.get(p) != f.digest}
            for batch in batches([(path, len(file.content)) for path, file in other.items()]):
                self._write(place, base, batch, other)
                for path, _ in batch:
                    self.stamps[path] = other[path].stamp
                    self._digests[path] = other[path].digest

    def _write(
        self, place: Place, base: str, batch: list[tuple[str, int]], files: Mapping[str, _File]
    ) -> None:
        (first, size), *_ = batch
        if size > BATCH_NBYTES:
            draft = f"{base}/{first}{DRAFT}"
            place.agent.put(draft, files[first].content, SEND_S)
            place.agent.ask(Move(draft, f"{base}/{first}"), SEND_S)
        else:
            data = b"".join(files[path].content for path, _ in batch)
            place.agent.ask(Write(base, batch), SEND_S, data)


def _copy_on(place: Place) -> str:
    return f"{place.folder}/{CODE}"


def _all(places: Sequence[Place], do: Callable[[Place], None]) -> None:
    """Do something for all hosts at once. The first error is raised."""
    if len(places) == 1:
        do(places[0])
        return
    pool = ThreadPoolExecutor(min(32, len(places)), "jaxcluster-sync")
    try:
        for future in [pool.submit(do, place) for place in places]:
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _read(path: Path) -> bytes | None:
    """A file's content; None if it has just been removed.

    Raises:
      UsageError: it can't be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"{path} can't be read ({error.strerror}), so it can't be sent to the hosts.",
            f"Make it readable: chmod u+r {path}   or start with --no-sync",
        ) from None


def find_module(name: str) -> tuple[Path, bool] | None:
    """(the folder in which this process would find a module, whether packages are installed there).

    Nothing is imported. None: it would not find it.
    """
    first, *rest = name.split(".")
    try:
        spec = PathFinder.find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    top = Path(os.path.abspath(folders[0] if folders else spec.origin or "")).parent
    for part in rest:
        if not any((f / part).is_dir() or [*f.glob(f"{part}.*")] for f in folders):
            return None
        folders = [folder / part for folder in folders]
    return top, top.name in SITE
