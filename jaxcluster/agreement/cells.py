"""A cell on its way through the ranks, as data. Pure: no clock, no socket."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxcluster.agreement.refusals import Looked, Place, Program, Refusal

LAUNCHES = 256  # of a cell
# How a cell may end on a rank, beside "ok", "error" and an error's text.
FAILED_IN_XLA, DIED = "failed in XLA", "died"
# What XLA does at a cell's end: it is at work, or is so still a while after an interrupt.
AT_WORK, STUCK = "at work", "stuck"
BASE = "base"  # the lane of a rank's control thread

Hashes = dict[tuple[int, ...], int]  # of launches in a cell, by the processes of their programs


@dataclass(frozen=True)
class CellSpec:
    """A cell as its notebook has sent it.

    Args:
      seq: its number among the cells of all notebooks; later cells of a notebook have larger ones.
      ranks: which run it, in order.
      owner: the notebook.
      seen: the last cell whose end the notebook knew of when it sent this one. If a cell between
        the two failed, this one is skipped, as Jupyter skips cells queued after an error.
      is_foreground: the notebook waits for it, so it sends no other cell meanwhile.
      is_skippable: see ``seen``; a widget's event and a transfer of values are not.
    """

    seq: int
    ranks: tuple[int, ...]
    owner: str = ""
    seen: int = 0
    is_foreground: bool = False
    is_skippable: bool = True


@dataclass(frozen=True)
class Skipped:
    """Why a cell is not run: cell ``after`` failed, rank ``dead`` died, or it was cancelled."""

    after: int = 0
    dead: int | None = None


class Answer(NamedTuple):
    """What a rank is told on the connection of one of its threads.

    ========= ===================================================================================
    go        launch: the ``number``-th agreed launch of the rank; 0 if no other thread of it
              launches, so these come in order anyway
    refuse    don't launch
    run       begin cell ``number``
    skip      don't begin it
    closed    nothing more is launched in it. One rank ``tells`` the notebook
    over      it has ended on all of its ranks; without a ``refusal`` it is ok on all
    looked    what was asked for by this ``number``
    ========= ===================================================================================
    """

    word: str
    rank: int
    lane: str = BASE
    number: int = 0
    refusal: Refusal | None = None
    skipped: Skipped | None = None
    tells: bool = False
    looked: Looked | None = None


@dataclass(frozen=True)
class End:
    """How a cell has ended on a rank.

    Args:
      outcome: "ok", "error", FAILED_IN_XLA, DIED, or the error's text.
      folded: hashes the launches without collectives.
      at_work: AT_WORK or STUCK if XLA still computes; else "".
    """

    outcome: str
    folded: Hashes = field(default_factory=dict)
    at_work: str = ""


@dataclass(eq=False)
class Cell:
    """A cell on its way through the ranks.

    Attributes:
      ended: the ranks on which it has ended.
      unmade: for each of these a hash of the agreed launches that XLA has refused.
      launched: the last agreed launches of its main threads, with their places.
    """

    spec: CellSpec
    arrived: set[int] = field(default_factory=set)
    ended: dict[int, End] = field(default_factory=dict)
    unmade: dict[int, Hashes] = field(default_factory=dict)
    refusal: Refusal | None = None
    launched: deque[tuple[Program, Place]] = field(default_factory=lambda: deque(maxlen=LAUNCHES))

    @property
    def is_over(self) -> bool:
        """Whether it has ended on all of its ranks."""
        return bool(self.ended) and len(self.ended) == len(self.spec.ranks)

    @property
    def is_torn(self) -> bool:
        """Whether XLA has made a launch on some of its ranks alone, so that these wait for ever."""
        ends = self.ended.values()
        at_work = [end.at_work for end in ends if end.at_work]
        if any(end.outcome == FAILED_IN_XLA for end in ends) and at_work:
            return True
        if STUCK in at_work and len(at_work) < len(ends):
            return True
        living = [rank for rank, end in self.ended.items() if end.outcome != DIED]
        return bool(odd_ones({rank: self.unmade[rank] for rank in living}))

    def covers(self, program: Program) -> bool:
        """Whether all processes of a program run the cell."""
        ranks = self.spec.ranks
        return program.processes == ranks or {*ranks}.issuperset(program.processes)

    def mixed(self, awaited: Program) -> tuple[Place, int] | None:
        """Since which launch turns of a loop may have met other turns, and how many launches.

        A rank that has left out some launches meets the others' earlier turns. So what is awaited
        was launched before: in the loop, which begins with the programs that come again.
        """
        made = [one for one in self.launched if one[0].processes == awaited.processes]
        programs = [program for program, _ in made]
        if awaited not in programs:
            return None
        first = programs.index(awaited)
        while first and programs[first - 1] in programs[first:]:
            first -= 1
        return made[first][1], len(made) - first


def odd_ones(hashes: dict[int, Hashes]) -> tuple[int, ...]:
    """The ranks, of those with such hashes, whose hashes are not those of the most."""
    for processes in {processes for of_rank in hashes.values() for processes in of_rank}:
        found = {r: hashes[r].get(processes, 0) for r in sorted(hashes.keys() & {*processes})}
        counts = Counter(found.values())
        # Of two as many: who has launched nothing is the odd one.
        most = max(counts, key=lambda value: (counts[value], value != 0))
        if odd := tuple(rank for rank, value in found.items() if value != most):
            return odd
    return ()
