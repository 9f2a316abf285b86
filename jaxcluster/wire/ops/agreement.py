"""What ranks are asked of the agreement on launches."""

from __future__ import annotations

from dataclasses import field

from jaxcluster.agreement.refusals import Place
from jaxcluster.wire.ops import Message, Operation


class Waiting(Message):
    """A thread that waits for other ranks to announce the same launch."""

    rank: int
    lane: str  # "" for the main thread
    seq: int  # its cell's, or 0
    name: str
    place: Place
    since: float  # by the referee's clock
    missing: list[int]  # the ranks that it waits for


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
    """What the referee knows."""

    now: float  # its time in seconds
    waits: list[Waiting] = field(default_factory=list)
    agreed: list[AgreedLaunch] = field(default_factory=list)  # the last ones
    running: list[int | None] = field(default_factory=list)  # the seq of each rank's cell, or None


class Look(Operation[Looked | None], op="look"):
    """What the referee knows, with so many last launches; None if it does not answer."""

    launches: int
