"""What ranks are asked of the agreement on launches."""

from __future__ import annotations

from dataclasses import field

from jaxcluster.agreement.refusals import Place
from jaxcluster.wire.ops import Message, Operation


class Waiting(Message):
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


class AgreedLaunch(Message):
    """A launch that was agreed: rank ``last`` came last, ``late_s`` after the others."""

    number: int
    seq: int
    name: str
    place: Place
    at: float
    last: int
    late_s: float


class Looked(Message):
    """What the referee knows: its time in seconds, who waits, and the last agreed launches.

    ``running``: for each rank the seq of the cell that it is in, or None.
    """

    now: float
    waits: list[Waiting] = field(default_factory=list)
    agreed: list[AgreedLaunch] = field(default_factory=list)
    running: list[int | None] = field(default_factory=list)


class Look(Operation[Looked | None], op="look"):
    """What the referee knows, with so many last launches; None if it does not answer."""

    launches: int
