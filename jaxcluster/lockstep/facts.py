"""What is so around a cell at one moment, and what is answered to what it has to be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.model import deaths, findings, lockstep, pending_launches

Reports = Mapping[int, wire.RankReport]


@dataclass(frozen=True)
class Facts:
    """What is so around a cell.

    Attributes:
      now: by a clock that only goes forward.
      ranks: all that can be asked, whether or not they run the cell.
      dead: those whose processes have ended, and what is known of it.
      last_launches: what those have left of their journals.
      own: the cells of this notebook that have not ended; ``stopped``: those that it has stopped.
      sent: for each rank the last cell that any notebook has sent to it; where it was looked up.
      counts: each rank's launches, as last heard.
      pending: launches that cells have ended without, since they may still come.
      divergence: why no cell may run.
      hosts: of the ranks, where there are several.
      is_closed: the cluster is stopped.
      is_over: these ranks are gone, whatever has come in their place.
      is_cut: hosts can't be reached, and may live.
      gives_new: new processes are wanted where ranks can't be brought back; ``can_give_new``: and
        are to be had.
    """

    now: float
    ranks: tuple[int, ...] = ()
    dead: Mapping[int, wire.Death] = field(default_factory=dict)
    last_launches: Mapping[int, Sequence[wire.Launch]] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    sent: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, lockstep.Counts] = field(default_factory=dict)
    pending: tuple[pending_launches.PendingLaunch, ...] = ()
    divergence: findings.Report | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()
    is_closed: bool = False
    is_over: bool = False
    is_cut: bool = False
    gives_new: bool = False
    can_give_new: bool = False

    @property
    def were_ended(self) -> bool:
        """Whether a person, or a restart, has ended ranks: what they lack says nothing."""
        return bool(deaths.meant(death.why for death in self.dead.values()))


@dataclass(frozen=True)
class Why:
    """Why a rank says nothing, as ``host.procfs.Silence`` has it."""

    message: str
    may_pass: bool = False
    is_hung: bool = False


@dataclass(frozen=True)
class Replayed:
    """What became of a replay.

    Attributes:
      how: ``replayed``, or ``completed`` (see ``replaying``); "" while not in lockstep.
      stuck: why the ranks are not in lockstep, and what was waited for in vain; "" where they are.
      ran: how many programs each rank ran in place of real ones.
      counts: each rank's launches by then.
      is_under_way: threads of the user's may be about to launch what ranks lack.
    """

    how: str = ""
    stuck: str = ""
    ran: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[int, lockstep.Counts] = field(default_factory=dict)
    is_under_way: bool = False


@dataclass(frozen=True)
class Recovered:
    """What was done about ranks that are lost, in words, and of which names it says something.

    ``is_replaced``: all ranks are new processes, which know nothing of the cell.
    ``is_undone``: nothing of the cell is left, whatever its undo has come to; ``kept``: all names
    that there are.
    """

    line: str
    told: frozenset[str] = frozenset()
    is_replaced: bool = False
    is_undone: bool = False
    kept: frozenset[str] = frozenset()
