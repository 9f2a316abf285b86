"""Requests to ranks about the agreement on launches."""

from __future__ import annotations

from jaxcluster.agreement.messages import AgreedLaunch, Looked, Waiting
from jaxcluster.wire.ops import Operation

__all__ = ["AgreedLaunch", "Look", "Looked", "Waiting"]


class Look(Operation[Looked | None], op="look"):
    """The referee's state, with so many last launches; None if it does not answer."""

    launches: int
