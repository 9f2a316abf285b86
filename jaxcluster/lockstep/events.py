"""What happens to a cell, as data; ``now`` is by a clock that only goes forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.lockstep.actions import Ask
from jaxcluster.lockstep.facts import Facts, Reports


@dataclass(frozen=True)
class Tick:
    """Nothing but time."""

    now: float


@dataclass(frozen=True)
class Replied:
    """A rank has ended the cell."""

    now: float
    reply: wire.CellReply


@dataclass(frozen=True)
class Died:
    """A rank's process has ended: with ``code``, where it is known."""

    now: float
    rank: int
    why: str
    code: int | None = None


@dataclass(frozen=True)
class Stopped:
    """The stop button was pressed."""

    now: float


@dataclass(frozen=True)
class Leaving:
    """An interrupted rank says that the cell's own code is over."""

    now: float
    rank: int


@dataclass(frozen=True)
class Held:
    """A person holds a rank in ``kind``; "": not any more."""

    now: float
    rank: int
    kind: str


@dataclass(frozen=True)
class Looked:
    """All ranks were asked where they are; and what is so right after."""

    now: float
    asked: Ask
    reports: Reports
    facts: Facts


@dataclass(frozen=True)
class Stepped:
    """A replay was taken a step further: how many programs each rank has run by now.

    ``is_open``: ranks were asked to run some, and have not answered.
    """

    now: float
    stuck: str
    ran: int
    is_open: bool = False


@dataclass(frozen=True)
class Located:
    """Where ranks are that have not answered an interrupt, or why they say nothing."""

    now: float
    ranks: Sequence[int]
    states: Mapping[int, wire.RankState]
    whys: Mapping[int, str]


@dataclass(frozen=True)
class Explained:
    """Why ranks say nothing, a line each where it is known."""

    now: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class TookBack:
    """What taking other cells back has come to, a line each."""

    now: float
    lines: tuple[str, ...]


Event = (
    Tick | Replied | Died | Stopped | Leaving | Held | Looked | Stepped | Located
    | Explained | TookBack
)  # fmt: skip
