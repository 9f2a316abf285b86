"""What a rank keeps of a loop: files beside its process, which they outlive.

A *version* is what the loop's variables were at one step: a folder of an
``engine.state.version_store``, whose arrays are written while the loop goes on. ``kept.json`` lists
the versions, and is replaced as a whole. A version counts only if all ranks have it, and have
launched the same.

Other ranks than have kept it, fewer or more or on other hosts, go on from it by the folders of all
that lie on their host (see ``engine.state.resizing``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.state import randomness
from jaxcluster.engine.state.background_save import BackgroundSave
from jaxcluster.engine.state.classes import Loading
from jaxcluster.engine.state.loading import Loaded, load
from jaxcluster.engine.state.resizing import Meshes, Refitting
from jaxcluster.engine.state.saved import (
    CannotRestore,
    CannotSave,
    Glance,
    Part,
    Saved,
    private,
    read,
    state_path,
    write,
)
from jaxcluster.engine.state.saved_digests import digests_of
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.version_store import VersionStore
from jaxcluster.host import limits
from jaxcluster.host.free_space import memory_room
from jaxcluster.wire.ops.state import Chosen

KEPT = "kept.json"
RANK = "rank-"  # what a rank's folder is called, with its number
RANDOM, ITERABLE = "the random states", "the iterable"  # kept beside the variables


@dataclass(frozen=True)
class Entry:
    """A version that this rank has whole.

    Attributes:
      loop: whose it is: the cell's seq in the cluster, and which loop of it.
      number: the version's; ``step``: how many iterations it is after.
      key: of the loop's source (``names.Loop``).
      cell: the cell's number in its notebook; ``at``: when it was made.
      end: what the rank had launched in the cell by then.
      fixed: names that are put back only where they are missing.
      run: of the curve.
      over: what it had launched at the cell's end, where that came without an error.
      files: those beside the state, for who brings it to another host.
      is_settled: all ranks have it whole, and had launched the same.
      equal: the names that had equal values on all ranks then.
    """

    loop: str
    number: int
    step: int
    key: str
    cell: int
    at: float
    ranks: list[int]
    end: wire.cell_ends.CellEnd
    fixed: list[str] = field(default_factory=list)
    run: str = ""
    over: wire.cell_ends.CellEnd | None = None
    files: list[str] = field(default_factory=list)
    is_settled: bool = False
    equal: list[str] = field(default_factory=list)

    @property
    def seq(self) -> int:
        """That of the cell whose loop it is."""
        return int(self.loop.partition("-")[0])

    @property
    def name(self) -> tuple[str, int]:
        return self.loop, self.number


def texts_of(values: Mapping[str, Any], namespace: dict[str, Any], rank: int) -> dict[str, bytes]:
    """Hashes of values that hold no arrays: equal where these are. On the main thread."""
    return texts_in(save(namespace, rank, values=values))


def texts_in(saved: Saved) -> dict[str, bytes]:
    """The same of what is saved."""
    return {
        name: hashlib.blake2b(saved.sections[one.section], digest_size=12).digest()
        for name, one in saved.now.names.items()
        if not (one.arrays or one.buffers or one.views)
    }


def _section_of(saved: Saved) -> Callable[[int], Any]:
    """What reads a section, and says of a part of an array's file what tells it from others."""

    def read(number: int) -> Any:
        one = saved.sections[number]
        return f"{one.nbytes} {one.checksum}".encode() if isinstance(one, Part) else one

    return read


def _needed(saved: Saved) -> list[Part]:
    """The files that are to be there for what is saved; others' places are emptied."""
    assert saved.together is not None
    pickles = [saved.together, *saved.now.names.values(), *saved.settings.values()]
    arrays = {number for one in pickles for number in one.arrays}
    places = {place for n in arrays for _, place in saved.arrays[n].shards}
    found = {}
    for place, section in enumerate(saved.sections):
        if isinstance(section, Part):
            if place in places:
                found[section.name] = section
            else:
                saved.sections[place] = b""
    return list(found.values())


class LoopCheckpoints:
    """The versions of one rank.

    Args:
      folder: of this rank alone; its parent's parent is there, and private.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._store: VersionStore | None = None
        # A loop's thread does, and the main thread at a cell's end.
        self._noting = threading.RLock()
        self._random: tuple[Any, Any] | None = None
        self._classes = Loading()
        self._ends: dict[
            str, wire.cell_ends.CellEnd
        ] = {}  # of the loops of the last cell that has ended
        self.entries = _entries(folder)

    # ------------------------------------------------------------------ making versions

    def begin(self, loop: str, share: int) -> None:
        """Make room for versions of a loop.

        Args:
          share: of how many ranks they share the memory.

        Raises:
          OSError: there is no place for them.
        """
        self.folder.parent.mkdir(mode=0o700, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(self.folder / loop, ignore_errors=True)
        self._store = VersionStore(self.folder / loop, memory_room(self.folder) // share)
        used = {entry.loop for entry in self.entries}
        for path in self.folder.iterdir():  # of loops that were broken off before they kept any
            if path.is_dir() and path.name not in {*used, loop}:
                shutil.rmtree(path, ignore_errors=True)

    def take(self, number: int, values: Mapping[str, Any], namespace: dict[str, Any]) -> Saved:
        """Save values as they are now, for ``fill`` to write. On the main thread.

        Raises:
          CannotSave, OSError: there is no such version then.
        """
        store = self._store
        assert store is not None
        loop = store.folder.name
        store.begin([entry.number for entry in self.entries if entry.loop == loop])
        background = BackgroundSave(store)
        values = {**values, RANDOM: (randomness.numpy_state(), random.getstate())}
        done = False
        try:
            saved = save(namespace, self.rank, background=background, values=values)
            if background.left_out:
                name, why = next(iter(background.left_out.items()))
                raise CannotSave(f"{name}: {why}")
            if saved.together is None:
                raise CannotSave("its variables can't be pickled together")
            # What can change in place is copied; jax's arrays can't.
            sections = saved.sections
            saved.sections = [s if isinstance(s, Part | bytes) else bytes(s) for s in sections]
            done = True
        finally:
            if not done:
                store.abandon()
        return saved

    @limits.lifted()
    def fill(self, saved: Saved, entry: Entry) -> None:
        """Write a version, which is whole then. Any thread.

        Raises:
          CannotSave, OSError: there is no room.
        """
        store = self._store
        assert store is not None
        try:
            folder = store.make(entry.number)
            parts = _needed(saved)
            store.fill(entry.number, parts)
            # Once all its parts are written, they have checksums.
            saved.now.digests = digests_of(saved.now.names, saved, _section_of(saved))
            write(saved, state_path(folder, self.rank), read_back=False)
        finally:
            store.abandon()
        entry = replace(entry, files=[part.name for part in parts])
        with self._noting:
            if (end := self._ends.get(entry.loop)) is not None:  # its cell was sooner
                entry = replace(entry, over=end)
            self._note([*self.entries, entry])

    def settle(self, name: tuple[str, int], equal: Collection[str] = ()) -> None:
        """All ranks have this version: no other one is needed.

        Args:
          equal: the names that have equal values on all of them.
        """
        with self._noting:
            gone = {entry.loop for entry in self.entries} - {name[0]}
            left = [entry for entry in self.entries if entry.name == name]
            self._note([replace(one, is_settled=True, equal=sorted(equal)) for one in left])
        for loop in gone:
            shutil.rmtree(self.folder / loop, ignore_errors=True)

    def drop(self, name: tuple[str, int]) -> None:
        """Not all ranks have this version."""
        with self._noting:
            self._note([entry for entry in self.entries if entry.name != name])

    def over(self, loops: Collection[str], end: wire.cell_ends.CellEnd) -> None:
        """The cell of these loops has come to its end here."""
        with self._noting:
            self._ends = dict.fromkeys(loops, end)
            found = [replace(e, over=end) if e.loop in loops else e for e in self.entries]
            if found != self.entries:
                self._note(found)

    def forget(self, num_ranks: int) -> None:
        """Keep nothing of earlier loops, nor have ranks that are gone.

        Args:
          num_ranks: how many there are.
        """
        with self._noting:
            loops = {entry.loop for entry in self.entries}
            if loops:
                self._note([])
        for loop in loops:
            shutil.rmtree(self.folder / loop, ignore_errors=True)
        for rank in self._folders():
            if rank >= num_ranks:  # whom nobody else could ask
                shutil.rmtree(self.folder.with_name(f"{RANK}{rank}"), ignore_errors=True)

    def _folders(self) -> list[int]:
        """The ranks of which there are folders on this host."""
        names = [path.name.removeprefix(RANK) for path in self.folder.parent.glob(f"{RANK}*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def of_all(self) -> dict[int, list[Entry]]:
        """What each rank has, whose folder is on this host."""
        return {rank: _entries(self.folder.with_name(f"{RANK}{rank}")) for rank in self._folders()}

    def _note(self, entries: list[Entry]) -> None:
        draft = self.folder / f"{KEPT}.part"
        with open(draft, "w", opener=private) as file:
            json.dump([asdict(entry) for entry in entries], file)
        os.replace(draft, self.folder / KEPT)
        self.entries = entries

    # ------------------------------------------------------------------ going on from one

    def load(
        self, entry: Entry, namespace: dict[str, Any], is_there: Callable[[str], bool]
    ) -> dict[str, Any]:
        """The values of a version that are to be put back. Nothing is bound.

        Args:
          is_there: whether a variable has a value now.

        Raises:
          CannotRestore: it can't be read, or not all of it can be.
        """
        saved = read(state_path(self.folder / entry.loop / f"v{entry.number}", self.rank))
        there = {name for name in entry.fixed if is_there(name)}
        wanted = [name for name in saved.now.names if name not in there]
        return self._whole(load(saved, namespace, wanted))

    def _whole(self, loaded: Loaded) -> dict[str, Any]:
        """The values of what was read; all else is for ``put_back``."""
        for name, why in loaded.lost.items():
            raise CannotRestore(f"{name}: {why}")
        self._random, self._classes = loaded.values.pop(RANDOM, None), loaded.loader.classes
        return loaded.values

    def load_of_others(
        self,
        entry: Entry,
        namespace: dict[str, Any],
        is_there: Callable[[str], bool],
        meshes: Meshes,
    ) -> tuple[dict[str, Any], list[str]]:
        """The same of a version that other ranks have kept, by the folders of theirs on this host.

        A rank that has none of its own gets what was equal on all.

        Args:
          meshes: of all devices that there are now, by their axes.

        Returns:
          The values, and the names that this rank gets none of.

        Raises:
          CannotRestore: as ``load``; also where an array fits no mesh.
        """
        kept = self.of_all().items()
        have = {rank for rank, mine in kept if any(one.name == entry.name for one in mine)}
        if not have:
            raise CannotRestore("it is not on this host")
        version = f"{entry.loop}/v{entry.number}"
        folders = {rank: self.folder.with_name(f"{RANK}{rank}") / version for rank in have}
        glances = {rank: Glance(state_path(folder, rank)) for rank, folder in folders.items()}
        source = self.rank if self.rank in have else min(have)
        saved = read(state_path(folders[source], source))
        there = {name for name in entry.fixed if is_there(name)}
        wanted = {name for name in saved.now.names if name not in there}
        own = wanted - {*entry.equal} if source != self.rank else set()
        choice = Chosen(told={rank: {} for rank in entry.ranks if rank not in have})
        loader = Refitting(saved, namespace, lambda: None, glances, {}, choice, meshes)
        values = self._whole(load(saved, namespace, wanted - own, loader=loader))
        for name in loader.names_of(loader.unplaced, values):
            raise CannotRestore(f"{name}: it fits no mesh of {len(loader.devices)} devices")
        for name in loader.names_of(loader.unequal, values):
            raise CannotRestore(f"{name}: its copies were not equal on all ranks")
        return values, sorted(own)

    def put_back(self) -> None:
        """The random states of the version that was read, and classes of this process."""
        self._classes.put_back()
        if self._random is None:
            return
        numpy, python = self._random
        randomness.set_numpy_state(numpy)
        random.setstate(python)


def _entries(folder: Path) -> list[Entry]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return [wire.parse(Entry, one) for one in json.loads((folder / KEPT).read_text())]
    return []


def of_others(entries: Mapping[int, list[Entry]]) -> list[Entry]:
    """The versions from which other ranks can go on than have kept them, newest first.

    All ranks must have had one, some of which may be gone now: then one that is left knows it.

    Args:
      entries: what ranks have whose folders are there, also of worlds that are gone.
    """
    last = max((one.seq for mine in entries.values() for one in mine), default=0)
    newest = {rank: [one for one in mine if one.seq == last] for rank, mine in entries.items()}
    whole = []
    for have in _by_version(newest):
        entry = next((one for one in have.values() if one.is_settled), next(iter(have.values())))
        ends = {rank: one.end for rank, one in have.items()}
        is_whole = {*have} == {*entry.ranks} and wire.cell_ends.may_go_on(ends)
        if (is_whole or entry.is_settled) and not are_over(have):
            whole.append(entry)
    return sorted(whole, key=lambda one: (one.at, one.number), reverse=True)


def are_over(entries: Mapping[int, Entry]) -> bool:
    """Whether the cell of a version, on its ranks, has come to its end on all of them."""
    ends = {rank: one.over for rank, one in entries.items() if one.over is not None}
    return len(ends) == len(entries) and wire.cell_ends.may_go_on(ends)


def unfinished(entries: Mapping[int, list[Entry]]) -> list[Entry]:
    """The versions, of any loop, whose cells have not come to their end on all ranks."""
    return [next(iter(have.values())) for have in _by_version(entries) if not are_over(have)]


def common(entries: Mapping[int, list[Entry]], key: str) -> list[Entry]:
    """The versions that all ranks have, and in which they had launched the same; newest first.

    Args:
      entries: what each rank of the loop has.
      key: of the loop.
    """
    found = []
    mine = {rank: [one for one in own if one.key == key] for rank, own in entries.items()}
    for have in _by_version(mine):
        entry = next(iter(have.values()))
        if have.keys() != entries.keys() or {*have} != {*entry.ranks} or are_over(have):
            continue
        if wire.cell_ends.may_go_on({rank: one.end for rank, one in have.items()}):
            found.append(entry)
    return sorted(found, key=lambda one: (one.at, one.number), reverse=True)


def _by_version(entries: Mapping[int, list[Entry]]) -> Iterable[dict[int, Entry]]:
    """Of each version what the ranks have that have it."""
    found: dict[tuple[str, int], dict[int, Entry]] = {}
    for rank, mine in entries.items():
        for one in mine:
            found.setdefault(one.name, {})[rank] = one
    return found.values()
