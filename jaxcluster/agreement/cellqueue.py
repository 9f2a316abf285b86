"""The cells of all notebooks, in one order for all ranks. Pure: no clock, no socket.

A cell is queued once all of its ranks have it, and begins on all of them at the same time: when
they are idle, and no earlier cell needs one of them.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxcluster.agreement.refusals import Place, Program, Refusal

REMEMBERED = 256  # cells that were cancelled or failed, for what arrives late
LAUNCHES = 256  # of a cell
MOST_TURNS = 64  # of a loop that a rank may have left out
# How a cell may end on a rank, beside "ok", "error" and an error's text.
FAILED_IN_XLA, DIED = "failed in XLA", "died"
# What XLA does at a cell's end: it is at work, or is so still a while after an interrupt.
AT_WORK, STUCK = "at work", "stuck"
BASE = "base"  # the lane of a rank's control thread

# By processes of a program, a hash of the launches without collectives in a cell.
Folded = dict[tuple[int, ...], int]


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
    go        launch: the ``number``-th agreed launch of the rank. ``is_alone``: it has no other
              thread that launches, so these come in order anyway
    refuse    don't launch
    run       begin cell ``number``
    skip      don't begin it
    closed    nothing more is launched in it. One rank ``tells`` the notebook
    over      it has ended on all of its ranks; without a ``why`` it is ok on all
    ========= ===================================================================================
    """

    word: str
    rank: int
    lane: str = BASE
    number: int = 0
    why: Refusal | Skipped | None = None
    tells: bool = False
    is_alone: bool = False


@dataclass(eq=False)
class Cell:
    """A cell on its way through the ranks.

    Attributes:
      ended, at_work, folded: by rank, see ``Referee.end``.
      launched: the last agreed launches of its main threads, with their places.
      is_torn: XLA has launched an agreed program on some ranks alone.
    """

    spec: CellSpec
    arrived: set[int] = field(default_factory=set)
    ended: dict[int, str] = field(default_factory=dict)
    at_work: dict[int, str] = field(default_factory=dict)
    folded: dict[int, Folded] = field(default_factory=dict)
    refusal: Refusal | None = None
    is_torn: bool = False
    launched: deque[tuple[Program, Place]] = field(default_factory=lambda: deque(maxlen=LAUNCHES))

    @property
    def is_split(self) -> bool:
        """Whether some of its ranks wait in XLA for others that are out of it."""
        if FAILED_IN_XLA in self.ended.values():
            return bool(self.at_work)
        return STUCK in self.at_work.values() and len(self.at_work) < len(self.ended)

    def covers(self, program: Program) -> bool:
        """Whether all processes of a program run the cell."""
        ranks = self.spec.ranks
        return program.processes == ranks or {*ranks}.issuperset(program.processes)

    def mixed(self, awaited: Program) -> tuple[Place, int] | None:
        """Since which launch turns of a loop may have met other turns, and how many launches.

        A rank that has left out some launches meets the others' earlier turns, as long as it makes
        the same launches as these: from one place on, each launch is that of so many later. The
        next launch that the others wait for is such a one, too.
        """
        made = [one for one in self.launched if one[0].processes == awaited.processes]
        first = count = len(made)
        for left_out in range(1, min(MOST_TURNS, count) + 1):
            at = count - left_out
            if made[at][0] is awaited:
                while at and made[at - 1][0] is made[at - 1 + left_out][0]:
                    at -= 1
                first = min(first, at)
        return (made[first][1], count - first) if first < count else None

    def odd_ones(self) -> tuple[int, ...]:
        """The ranks whose launches without collectives are not those of the most."""
        for processes in {processes for folded in self.folded.values() for processes in folded}:
            ranks = sorted(self.folded.keys() & {*processes})
            found = {rank: self.folded[rank].get(processes, 0) for rank in ranks}
            counts = Counter(found.values())
            # Of two as many: who has launched nothing is the odd one.
            most = max(counts, key=lambda folded: (counts[folded], folded != 0))
            if odd := tuple(rank for rank in ranks if found[rank] != most):
                return odd
        return ()


class CellQueue:
    """Which cell each rank is in, and which cells wait.

    Attributes:
      running: by rank, the cell that it is in.
      dead: the ranks that have died.
      failed: the last cells that have failed.
    """

    def __init__(self, num_ranks: int) -> None:
        self.running: list[Cell | None] = [None] * num_ranks
        self.dead: set[int] = set()
        self.failed: deque[CellSpec] = deque(maxlen=REMEMBERED)
        self._waiting: dict[int, Cell] = {}  # by seq
        self._cancelled: deque[int] = deque(maxlen=REMEMBERED)

    def arrive(self, rank: int, spec: CellSpec) -> list[Answer]:
        """A rank has a cell."""
        self._waiting.setdefault(spec.seq, Cell(spec)).arrived.add(rank)
        return self.step()

    def cancel(self, seq: int) -> list[Answer]:
        """Don't run a cell that has not begun; also if it arrives later."""
        self._cancelled.append(seq)
        return self.step()

    def step(self) -> list[Answer]:
        """Skip what is not to be run any more, and begin what can begin."""
        answers: list[Answer] = []
        for seq, cell in list(self._waiting.items()):
            if (why := self._why_skip(cell.spec)) is not None:
                del self._waiting[seq]
                answers += [Answer("skip", rank, BASE, seq, why) for rank in sorted(cell.arrived)]
        needed: set[int] = set()  # by cells that are before
        for seq, cell in list(self._waiting.items()):
            ranks = {*cell.spec.ranks}
            if cell.arrived != ranks or self._is_behind(cell.spec):
                continue
            if needed.isdisjoint(ranks) and not any(self.running[rank] for rank in ranks):
                del self._waiting[seq]
                for rank in cell.spec.ranks:
                    self.running[rank] = cell
                    answers.append(Answer("run", rank, BASE, seq))
            needed |= ranks
        return answers

    def next_of(self, rank: int) -> Cell | None:
        """The next cell of a rank; one that not all of its ranks have comes last."""
        mine = [cell for cell in self._waiting.values() if rank in cell.spec.ranks]
        return min(mine, key=lambda cell: len(cell.arrived) < len(cell.spec.ranks), default=None)

    def _is_behind(self, spec: CellSpec) -> bool:
        """Whether an earlier cell of its notebook, which needs one of its ranks, waits too."""
        return any(
            other.owner == spec.owner
            and other.seq < spec.seq
            and not {*other.ranks}.isdisjoint(spec.ranks)
            for other in (cell.spec for cell in self._waiting.values())
        )

    def _why_skip(self, spec: CellSpec) -> Skipped | None:
        if spec.seq in self._cancelled:
            return Skipped()
        if dead := self.dead.intersection(spec.ranks):
            return Skipped(dead=min(dead))
        for failed in self.failed if spec.is_skippable else ():
            if failed.owner == spec.owner and spec.seen < failed.seq < spec.seq:
                return Skipped(after=failed.seq)
        return None
