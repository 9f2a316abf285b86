"""Why launches are refused, as data: who did what, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

# See ``words.WORDS`` for what each says.
Kind = Literal[
    "ended", "differs", "circle", "idle", "died", "failed", "left", "stopped", "uneven", "torn"
]
Does = Literal["waits", "works", "ended", "failed", "left", "died", "idle"]
MOST_TOLD = 8  # different things that ranks did; of more only what kind


@dataclass(frozen=True)
class Place:
    """Where a rank launches: a line of a cell, and within it a line of another file.

    ``cell`` and ``line`` are 0 if no cell is on the stack, and ``text`` is that line. ``within`` is
    such as ``train.py line 3: x.sum()``, or empty.
    """

    cell: int = 0
    line: int = 0
    text: str = ""
    within: str = ""


NOWHERE = Place()


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program: its processes in order, and what tells it apart from others.

    Alike only if identical: whoever makes them makes one for each set and fingerprint. Without
    ``collective`` it waits for nobody. ``meets_all``: a rendezvous that main threads and others of
    any name may meet in, such as a barrier.
    """

    processes: tuple[int, ...]
    fingerprint: int
    name: str = ""
    signature: str = ""
    collective: bool = True
    meets_all: bool = False


@dataclass(frozen=True)
class Doing:
    """What one rank did when a cell was closed.

    For a rank that ``waits``: the program, its place, and what it was ``given`` by the host (a
    hash, 0 for nothing). ``name`` is the error's text for one that ``failed``.
    """

    rank: int
    does: Does
    name: str = ""
    signature: str = ""
    place: Place = NOWHERE
    fingerprint: int = 0
    given: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a cell was closed: nothing more is launched in it.

    ``causes`` are the ranks that made it so, as far as that is certain. ``doing`` has all ranks of
    the cell and of the launches that wait. ``mixed`` says that turns of a loop may have met other
    turns: the place of the earliest launch of that kind, and how many such launches were made.
    """

    kind: Kind
    causes: tuple[int, ...] = ()
    doing: tuple[Doing, ...] = ()
    mixed: Place | None = None
    mixed_launches: int = 0

    def plain(self) -> tuple[Any, ...]:
        """As ``marshal`` can have it: of ranks that did the same, once."""
        groups: dict[Doing, list[int]] = {}
        for one in self.doing:
            same = replace(one, rank=-1)
            if same not in groups and len(groups) >= MOST_TOLD:
                same = replace(same, name="", signature="", place=NOWHERE)
            groups.setdefault(same, []).append(one.rank)
        doing = [(ranks, *astuple(same)[1:]) for same, ranks in groups.items()]
        mixed = self.mixed and astuple(self.mixed)
        return self.kind, self.causes, doing, mixed, self.mixed_launches

    @classmethod
    def parse(cls, plain: Sequence[Any]) -> Refusal:
        """What ``plain`` has made."""
        kind, causes, groups, mixed, mixed_launches = plain
        doing = [
            Doing(rank, does, name, signature, Place(*place), *more)
            for ranks, does, name, signature, place, *more in groups
            for rank in ranks
        ]
        doing.sort(key=lambda one: one.rank)
        return cls(kind, causes, tuple(doing), mixed and Place(*mixed), mixed_launches)
