"""What is saved of a rank's variables, and the file that holds it.

The file of a rank is ``rank-<number>.state`` in a folder that all ranks share or have each on its
host: a JSON header, which can be read without unpickling anything, and the sections it points to.
It can be read by its owner alone.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxcluster.engine.state.memory import Section

MAGIC = b"jaxcluster-state-2\n"
ALIGN = 64


class CannotSave(Exception):
    """Why a value can't be saved, as its owner is told."""

    hint = ""


class CannotRestore(Exception):
    """Why a saved value, or a whole file, can't be brought back."""

    hint = ""


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
    holds them.
    """

    names: dict[str, SavedPickle] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    common: list[str] = field(default_factory=list)


@dataclass
class Saved:
    """A rank's variables as sections of bytes and what they mean; ``write`` makes a file of it.

    ``now`` is what the names are bound to. ``before`` has, of those that a cell has bound since it
    began, what they were bound to then; ``absent`` are those that were not there then. ``together``
    is one pickle of both, ({name: value}, {name: value}), which keeps what is aliased between them.
    ``memories`` are the sections of numpy's arrays, and ``views`` that of the arrays on them.
    ``settings`` are those of the process that cells have changed, ``left`` those that can't be
    saved, and ``random`` tells random states apart (see ``randomness``).
    ``unbound`` are names that were lost earlier, and how (see ``engine.lost``).
    """

    rank: int
    process_count: int
    versions: dict[str, str]
    now: Generation = field(default_factory=Generation)
    before: Generation = field(default_factory=Generation)
    absent: list[str] = field(default_factory=list)
    together: SavedPickle | None = None
    arrays: list[SavedArray] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    views: int = -1
    unbound: dict[str, str] = field(default_factory=dict)
    settings: dict[str, SavedPickle] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    sections: list[Any] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)  # whose memory the sections are

    @property
    def nbytes(self) -> int:
        return sum(memoryview(s).nbytes for s in self.sections)

    def report(self) -> dict[str, Any]:
        """What the notebook is told; plain JSON.

        A generation's ``spanning`` has for each name the arrays in it that span processes: their
        shape, dtype and sharding, and which parts this rank has.
        """
        return {
            **self._report(self.now),
            "before": {**self._report(self.before), "absent": self.absent},
            "nbytes": self.nbytes,
            "unbound": self.unbound,
            "left": self.left,
            "random": self.random,
        }

    def _report(self, generation: Generation) -> dict[str, Any]:
        spanning: dict[str, list[dict[str, Any]]] = {}
        for name, saved in generation.names.items():
            for array in (self.arrays[n] for n in saved.arrays):
                if not array.local:
                    spanning.setdefault(name, []).append(
                        {
                            "shape": array.shape,
                            "dtype": array.dtype,
                            "sharding": array.text,
                            "shards": [where for where, _ in array.shards],
                        }
                    )
        return {
            "kept": sorted(generation.names),
            "lost": generation.lost,
            "spanning": spanning,
            "digests": generation.digests,
            "common": generation.common,
        }


# --------------------------------------------------------------------------- files


def state_path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"rank-{rank}.state"


def write(saved: Saved, path: Path) -> None:
    """Write ``saved``; a reader never sees half of it.

    Raises:
      CannotSave: the folder is gone, so nobody waits for it any more.
    """
    places, at = [], 0
    for section in saved.sections:
        nbytes = memoryview(section).nbytes
        places.append([at, nbytes])
        at += -(-nbytes // ALIGN) * ALIGN
    body = {k: v for k, v in vars(saved).items() if k not in ("sections", "alive")}
    plain = json.dumps({**body, "places": places}, default=asdict).encode()
    draft = path.with_suffix(".part")
    try:
        with open(draft, "wb", opener=_private) as file:
            file.write(MAGIC + struct.pack("<Q", len(plain)) + plain)
            start = -(-file.tell() // ALIGN) * ALIGN
            for section, (offset, _) in zip(saved.sections, places, strict=True):
                file.seek(start + offset)
                file.write(section)
                path.parent.stat()
            file.truncate(start + at)
        draft.replace(path)
    except FileNotFoundError:
        raise CannotSave(f"{path.parent} is gone: the saving was given up") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read(path: Path) -> Saved:
    """What ``write`` wrote. Unpickles nothing.

    Raises:
      CannotRestore: there is no such file, or it is none of ours.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise CannotRestore(f"{path} is not a saved state of this version of jaxcluster")
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            start = -(-file.tell() // ALIGN) * ALIGN
            sections = []
            for offset, nbytes in header.pop("places"):
                file.seek(start + offset)
                data = Section(nbytes)
                if file.readinto(data) != nbytes:
                    raise CannotRestore(f"{path} is truncated")
                sections.append(data)
    except OSError as error:
        raise CannotRestore(f"{path} can't be read: {error.strerror}") from None
    for generation in ("now", "before"):
        found = Generation(**header[generation])
        found.names = {k: SavedPickle(**v) for k, v in header[generation]["names"].items()}
        header[generation] = found
    if header["together"] is not None:
        header["together"] = SavedPickle(**header["together"])
    header["settings"] = {k: SavedPickle(**v) for k, v in header["settings"].items()}
    header["arrays"] = [SavedArray(**a) for a in header["arrays"]]
    return Saved(**header, sections=sections)
