"""Why launches are refused, and who waits for whom, as data: who did what, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

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
    """What these ranks did when a cell was closed.

    If they were in a launch (``waits``): the program, its place, and what it was ``given`` by the
    host (a hash, 0 for nothing). ``name`` is the error's text if they ``failed``.
    """

    ranks: tuple[int, ...]
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


def grouped(doing: Iterable[Doing]) -> tuple[Doing, ...]:
    """Each rank's action; ranks with equal actions stand together."""
    groups: dict[Doing, tuple[int, ...]] = {}
    for one in doing:
        same = replace(one, ranks=())
        if same not in groups and len(groups) >= MOST_TOLD:
            same = replace(same, name="", signature="", place=NOWHERE)
        groups[same] = (*groups.get(same, ()), *one.ranks)
    return tuple(replace(same, ranks=ranks) for same, ranks in groups.items())


# --------------------------------------------------------------------------- a look at the referee


@dataclass(frozen=True)
class Waiting:
    """A thread that waits for other ranks to announce the same launch.

    ``lane`` is "" for the main thread, ``seq`` its cell's or 0, ``since`` the referee's time, and
    ``missing`` the ranks that it waits for.
    """

    rank: int
    lane: str
    seq: int
    name: str
    place: Place
    since: float
    missing: list[int]


@dataclass(frozen=True)
class AgreedLaunch:
    """A launch that was agreed: rank ``last`` came last, ``late_s`` after the others."""

    number: int
    seq: int
    name: str
    place: Place
    at: float
    last: int
    late_s: float


@dataclass(frozen=True)
class Looked:
    """The referee's state: its time in seconds, who waits, and the last agreed launches.

    ``running``: for each rank the seq of the cell that it is in, or None. ``connected``: the ranks
    that it hears.
    """

    now: float
    waits: list[Waiting] = field(default_factory=list)
    agreed: list[AgreedLaunch] = field(default_factory=list)
    running: list[int | None] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)


RECORDS = Place, Program, Doing, Refusal, Waiting, AgreedLaunch, Looked
