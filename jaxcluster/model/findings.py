"""What the ranks' journals and states show of a cell that does not end. Facts alone.

``diagnose`` finds them and ``explain`` words them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxcluster import wire

FindingKind = Literal["missing", "mismatch", "circle"]
"""A launch that some ranks skipped, different programs, or ranks that wait for each other."""


@dataclass(frozen=True)
class Report:
    """A certain finding.

    Attributes:
      processes: the set of processes concerned, as in the journals.
      seq: the first launch of that set that is not to be trusted; None where the journals no longer
        reach back to it.
      culprits: the ranks that differ from the most.
      others: the other ranks of the set.
      lines: what is said of it.
      cell_seq: the cell in which it went wrong; 0 where that is not known.
      cells: the cells that have launched what is not to be trusted; 0 among them stands for
        launches of no cell: of another thread, or between cells. None: it concerns all.
      hopeless: why no replay can help, and new processes can; else "".
      has_refused: a rank was to launch another program than the others, and has not.
      title: the cause in a few words: ``KeyError on rank 2``.
    """

    kind: FindingKind
    processes: str
    seq: int | None
    culprits: tuple[int, ...]
    others: tuple[int, ...]
    lines: tuple[str, ...] = field(default=())
    cell_seq: int = 0
    cells: frozenset[int] = frozenset()
    hopeless: str = ""
    has_refused: bool = False
    title: str = "Not in lockstep"

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing but new processes can help."""
        return bool(self.hopeless)

    @property
    def is_releasable(self) -> bool:
        """Whether ranks that wait in a collective are freed by a replay."""
        return not self.hopeless and (self.kind == "missing" or self.has_refused)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def concerns(self, seq: int) -> bool:
        """Whether it says something of the cell ``seq``: else it is another cell's finding."""
        return not self.cells or seq == self.cell_seq or bool({0, seq} & self.cells)


def unexplained(why: str) -> Report:
    """The finding where ranks are not back in lockstep and nobody in particular is to blame."""
    return Report("missing", "", None, (), (), (f"The ranks have diverged: {why}.",))


@dataclass(frozen=True)
class Reason:
    """Why a rank may still launch something.

    Attributes:
      kind: ``cell`` (one runs or waits), ``background`` (a thread, task or timer lives), ``busy``
        (its main thread does something else), or ``moment`` (a second look must tell).
      message: the rest of a sentence that begins with the rank.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Suspicion:
    """Ranks wait for a launch that others have not made, and may still make.

    Attributes:
      waiting: the ranks that have made it.
      launch: what they wait for, if a journal still has it.
      reasons: why each of the others may still make it.
      hosts: of the ranks, where there are several.
    """

    processes: str
    waiting: tuple[int, ...]
    launch: wire.Launch | None
    reasons: Mapping[int, Reason]
    hosts: Mapping[int, str] = field(default_factory=dict)

    def has(self, kind: str) -> bool:
        return any(reason.kind == kind for reason in self.reasons.values())


def place_of(report: wire.RankReport) -> str:
    """``cell [4] line 6``: where a rank is in the running cell; "" if that is not known.

    Where the line is in a function of an earlier cell, that cell is named.
    """
    state = report.state
    if state.state != "running" or not state.line:
        return ""
    rows = (row for row in reversed(report.stack) if row[4] is not None and row[1] == state.line)
    return f"cell [{next((row[4] for row in rows), state.cell)}] line {state.line}"


@dataclass(frozen=True)
class Mismatch:
    """At one place of a set's sequence ranks launched different programs.

    Attributes:
      seq: the place; None where the journals no longer reach back to it.
      groups: ranks that launched the same, the largest group last.
    """

    processes: str
    seq: int | None
    groups: tuple[tuple[int, ...], ...]

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that differ from the most."""
        return tuple(sorted(rank for ranks in self.groups[:-1] for rank in ranks))

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(sorted(self.groups[-1]))


@dataclass(frozen=True)
class Missing:
    """Ranks have skipped a launch, and nothing on them can make it any more.

    Attributes:
      seq: the first launch that is missing on one of them.
      culprits: these ranks.
      others: those that made it.
      wanted: what they launched, if a journal still has it.
    """

    processes: str
    seq: int
    culprits: tuple[int, ...]
    others: tuple[int, ...]
    wanted: wire.Launch | None


def made_in(report: wire.RankReport, processes: str, seq: int) -> list[wire.Launch]:
    """What a rank has launched of one set in the cell ``seq``, oldest first."""
    return [e for e in report.launches if (e.processes, e.cell_seq) == (processes, seq)]


@dataclass(frozen=True)
class Crossed:
    """Ranks launched programs of two sets that overlap in another order.

    Attributes:
      sets: the two sets.
      firsts: ranks with the same order, the largest group last, and what each of these launched
        first where they part; None where the journals no longer reach back to it.
    """

    sets: tuple[str, str]
    firsts: tuple[tuple[tuple[int, ...], wire.Launch | None], ...]

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that differ from the most."""
        return tuple(sorted(rank for ranks, _ in self.firsts[:-1] for rank in ranks))

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(sorted(self.firsts[-1][0]))
