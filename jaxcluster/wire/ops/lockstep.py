"""What ranks are asked of their launches, and to come back into lockstep."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxcluster.wire.cell_ends import CellEnd
from jaxcluster.wire.launches import LaunchTimes
from jaxcluster.wire.messages import PollReply, RankResources, RankState
from jaxcluster.wire.ops import Operation

Divisions = list[list[list[int]]]  # all devices by their places among all, in groups, several times


class State(Operation[RankState], op="state"):
    """What the main thread does now."""


@dataclass(frozen=True)
class Rest:
    """Whether values may come and go between this rank's cells.

    ``is_free``: it runs no cell, and none waits. ``taken``: as in ``RankState``. ``ends``: how the
    last cells have ended here of which nobody has said yet that they are settled, by their seqs.
    ``launches``: as in ``RankState``.
    """

    is_free: bool
    taken: int
    launches: dict[str, list[int]]
    ends: dict[int, CellEnd]


class AtRest(Operation[Rest], op="at_rest"):
    """Whether a cell runs, waits, or may yet turn out to have gone wrong."""


class Resources(Operation[RankResources], op="resources"):
    """What the process has used, and uses."""


class Busy(Operation[float], op="busy"):
    """For how many seconds the process has computed since it began."""


class Poll(Operation[PollReply], op="poll"):
    """Why a cell does not end: with small values of these names, and so many last launches."""

    names: list[str]
    launches: int


class Times(Operation[LaunchTimes], op="times"):
    """When so many last launches have begun; of none, what time it is."""

    launches: int


class Resume(Operation[None], op="resume"):
    """The ranks were found in lockstep: count launches from here, unless they have.

    Attributes:
      number: how often they have then begun to count from zero.
      since: set of processes -> how many launches of it had been made; later ones are counted.
        None: by whoever is told of it late, who counts those that come.
    """

    number: int
    since: dict[str, int] | None = None


class Strict(Operation[None], op="strict"):
    """Announce launches from now on, in this epoch; None: don't."""

    epoch: str | None


class PrepareCheck(Operation[Divisions], op="prepare_check"):
    """Compile the check of these divisions; without any, of those that there are, the reply."""

    divisions: Divisions = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """Whether all sums are what they must be on this rank's devices, and ``why`` not.

    ``launches`` are the journal's counts afterwards.
    """

    right: bool
    why: str
    launches: dict[str, list[int]]


class SelfCheck(Operation[Checked], op="self_check"):
    """Take part in sums over all devices."""

    divisions: Divisions
    number: int
    timeout_s: float


class Courses(Operation[list[str]], op="courses"):
    """Of each of these programs the collectives that it makes, in order.

    "" for one that is not known here, or whose collectives its text does not tell.
    """

    fingerprints: list[int]


class Export(Operation[None], op="export"):
    """The program, as the reply's buffer."""

    fingerprint: int


@dataclass(frozen=True)
class Replayed:
    """How many programs a rank ``ran``, and the journal's counts afterwards."""

    ran: int
    launches: dict[str, list[int]]


class Replay(Operation[Replayed], op="replay"):
    """Run these programs with zeros; those that are ``shipped`` are the buffers, in that order.

    ``counts`` are the journal's, as they were when that was decided; None: whatever they are.
    """

    fingerprints: list[int]
    shipped: list[int] = field(default_factory=list)
    counts: dict[str, list[int]] | None = None
    timeout_s: float = 10.0  # for each; more than a notebook waits without progress
