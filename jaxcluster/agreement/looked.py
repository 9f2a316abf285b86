"""A look at the referee: who waits for whom, and the last agreed launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxcluster.agreement.refusals import Place


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
    """What the referee knows: its time in seconds, who waits, and the last agreed launches.

    ``running``: for each rank the seq of the cell that it is in, or None. ``connected``: the ranks
    that it hears.
    """

    now: float
    waits: list[Waiting] = field(default_factory=list)
    agreed: list[AgreedLaunch] = field(default_factory=list)
    running: list[int | None] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As a frame can have it."""
        return {
            **vars(self),
            "waits": [{**vars(one), "place": vars(one.place)} for one in self.waits],
            "agreed": [{**vars(one), "place": vars(one.place)} for one in self.agreed],
        }
