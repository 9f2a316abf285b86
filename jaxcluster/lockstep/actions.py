"""What is to be done for a cell, as data: who decides it does none of it.

What is asked for comes back as what stands after "->".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxcluster.model import findings, lockstep, pending_launches, progress

REPORT_S = 1.0  # that a control channel gets to answer
SHORT_S = 0.3  # ... where some have said nothing before: what takes them microseconds

# ------------------------------------------------------------------- what is said and remembered


@dataclass(frozen=True)
class Notice:
    """Say this under the cell while it runs."""

    text: str


@dataclass(frozen=True)
class Status:
    """Show this line under the cell, in place of the last one."""

    line: progress.Line


@dataclass(frozen=True)
class Changed:
    """Whoever shows the cluster is to look again."""


@dataclass(frozen=True)
class Found:
    """What is certain is known from now on."""

    report: findings.Report


@dataclass(frozen=True)
class AddPending:
    """Remember for later cells that these launches may still come."""

    found: tuple[pending_launches.PendingLaunch, ...]


@dataclass(frozen=True)
class DropPending:
    """These launches have come, or never will: look for them no more. None: nor for any other."""

    settled: tuple[pending_launches.PendingLaunch, ...] | None = None


@dataclass(frozen=True)
class KeepCounts:
    """These ranks have made these launches. ``only``: what was heard of others counts no more."""

    counts: Mapping[int, lockstep.Counts]
    only: bool = False


@dataclass(frozen=True)
class Diverge:
    """No cell may run before the ranks are brought back, or have new processes."""

    report: findings.Report


# ------------------------------------------------------------------------- what the ranks are told


@dataclass(frozen=True)
class PressStop:
    """Have the cell stopped, after what has come before."""


@dataclass(frozen=True)
class Interrupt:
    """Interrupt the cell on these ranks. ``spare``: not where its own code is over already."""

    ranks: tuple[int, ...]
    spare: bool


@dataclass(frozen=True)
class Prepare:
    """Have the ranks compile the check, while something else is waited for."""


@dataclass(frozen=True)
class StepReplay:
    """Let idle ranks run what they skipped, one step. -> ``events.Stepped``"""


@dataclass(frozen=True)
class BringBack:
    """Bring the ranks back into lockstep, and check it. -> ``Replayed``

    ``is_patient``: wait for ranks that run other cells. ``missing``: the set and place of a launch
    that ranks have skipped, which no thread is to wait for any more.
    """

    is_patient: bool
    missing: tuple[str, int | None] = ("", None)


@dataclass(frozen=True)
class Undo:
    """Take the cell back on these ranks. -> ``Undone``

    ``holds_others``: cells that wait behind it don't begin before the ranks are called settled.
    ``stays_but``: what it has assigned is right, and stays where old values are donated, but for
    these names, which have lost their values anyway; None: it is not known to be right.
    ``unbegun``: ranks that have not begun it; names that others lose are lost there, too.
    """

    ranks: tuple[int, ...]
    holds_others: bool
    stays_but: frozenset[str] | None = None
    unbegun: tuple[int, ...] = ()


@dataclass(frozen=True)
class TakeBackOthers:
    """Take other cells back, whose notebooks have left them so. -> ``events.TookBack``

    ``cells``: their seqs, with the numbers that these notebooks give them where that is known.
    """

    cells: Mapping[int, int | None]


@dataclass(frozen=True)
class OpenGates:
    """Let cells begin that wait for the end of these cells."""

    seqs: frozenset[int]


@dataclass(frozen=True)
class WithdrawBehind:
    """Don't run what waits on the ranks for the end of this cell."""


@dataclass(frozen=True)
class EndRank:
    """End a process that will never answer again."""

    rank: int
    why: str


@dataclass(frozen=True)
class Recover:
    """Give the ranks new processes, or say what to type. -> ``Recovered``

    ``undo``: names that the cell has bound are to be what they were before it. ``when``: as it is
    said of those that are lost.
    """

    said: str
    told: str
    undo: bool
    when: str


# -------------------------------------------------------------------------- what has to be known


@dataclass(frozen=True)
class LookAround:
    """-> ``Facts``, but for what has been sent."""


@dataclass(frozen=True)
class Ask:
    """Ask all ranks where they are. -> ``events.Looked``

    Attributes:
      why: ``poll``; ``last``, before ranks are interrupted; ``places``, where the time of ``ranks``
        is up; ``end``, when the cell has ended.
      timeout_s: that they get to answer.
      is_brief: the values of what the cell binds are not wanted.
    """

    why: str
    ranks: tuple[int, ...] = ()
    timeout_s: float = REPORT_S
    is_brief: bool = False


@dataclass(frozen=True)
class AskStates:
    """What all ranks are doing. -> list of ``wire.RankState``"""


@dataclass(frozen=True)
class AskWhere:
    """Where ranks are that have not answered an interrupt. -> ``events.Located``"""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class WatchSilent:
    """Begin to look at the processes of ranks that say nothing; these are all."""

    ranks: frozenset[int]


@dataclass(frozen=True)
class AskSilent:
    """Which of these ranks say nothing, and why. -> rank -> ``Why``"""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ExplainSilent:
    """Lines that tell why these ranks say nothing, where it is known. -> ``events.Explained``"""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReadLogEnd:
    """The end of a rank's log, for a message. -> str"""

    rank: int


@dataclass(frozen=True)
class CountAnew:
    """Have all ranks count launches from zero, for the ``number``-th time. -> whether all do

    ``since``: set of processes -> how many of its launches are not counted any more; None: all.
    """

    number: int
    since: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Rest:
    """Wait a moment between looks. The stop button ends more than that."""


Action = (
    Notice | Status | Changed | Found | AddPending | DropPending | KeepCounts | Diverge | PressStop
    | Interrupt | Prepare | StepReplay | BringBack | Undo | TakeBackOthers | OpenGates
    | WithdrawBehind | EndRank | Recover | LookAround | Ask | AskStates | AskWhere | WatchSilent
    | AskSilent | ExplainSilent | ReadLogEnd | CountAnew | Rest
)  # fmt: skip
