"""Why launches are refused, as data: who did what, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

# ended     ranks ended the cell without a launch that others wait for
# differs   ranks of one program announced different ones
# circle    ranks wait for each other over several sets of processes
# idle      ranks that the program needs run no cell
# died      ranks died
# failed    ranks raised an error, or ended the cell with one
# left      something raised in a wait, such as a signal handler
# stopped   somebody stopped the cell
# uneven    the cell is over, and its ranks launched different programs that have no collectives
# torn      XLA launched an agreed program on some ranks and refused it on others
Kind = Literal[
    "ended", "differs", "circle", "idle", "died", "failed", "left", "stopped", "uneven", "torn"
]
Does = Literal["waits", "works", "ended", "failed", "left", "died", "idle"]


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
    hash, 0 for nothing).
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

    def plain(self) -> dict[str, Any]:
        """As JSON can have it: of ranks that did the same, once."""
        groups: dict[Doing, list[int]] = {}
        for one in self.doing:
            groups.setdefault(replace(one, rank=-1), []).append(one.rank)
        doing = [[ranks, asdict(one)] for one, ranks in groups.items()]
        return {**vars(self), "doing": doing, "mixed": self.mixed and asdict(self.mixed)}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Refusal:
        """What ``plain`` has made, after JSON."""
        doing = [
            Doing(**{**one, "rank": rank, "place": Place(**one["place"])})
            for ranks, one in plain["doing"]
            for rank in ranks
        ]
        mixed = plain["mixed"]
        return cls(
            plain["kind"],
            tuple(plain["causes"]),
            tuple(sorted(doing, key=lambda one: one.rank)),
            None if mixed is None else Place(**mixed),
            plain["mixed_launches"],
        )
