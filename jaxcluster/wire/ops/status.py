"""What ranks are asked of what they do and use."""

from __future__ import annotations

from jaxcluster.wire.messages import RankReport, RankResources, RankState
from jaxcluster.wire.ops import Operation


class State(Operation[RankState], op="state"):
    """What the main thread does now."""


class Stacks(Operation[RankReport], op="stacks"):
    """Where the threads are."""


class Resources(Operation[RankResources], op="resources"):
    """What the process has used, and uses."""


class Busy(Operation[float], op="busy"):
    """For how many seconds the process has computed since it began."""
