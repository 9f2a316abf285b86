"""The cells of all notebooks, in one order for all ranks. Pure: no clock, no socket.

A cell is queued once all of its ranks have it, and begins on all of them at the same time: when
they are idle, and no earlier cell needs one of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from jaxcluster.agreement.refusals import Place, Program, Refusal

REMEMBERED = 256  # cells that were cancelled or failed, for what arrives late
LAUNCHES = 256  # of a cell
MOST_TURNS = 64  # of a loop that a rank may have left out
FAILED_IN_XLA = "failed in XLA"  # how a cell may end on a rank, beside "ok" and "error"
# What XLA does at a cell's end: it is at work, or is so still a while after an interrupt.
AT_WORK, STUCK = "at work", "stuck"


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


@dataclass(eq=False)
class Cell:
    """A cell on its way through the ranks.

    ``folded``: the launches without collectives, by rank. ``launched``: the last agreed ones of its
    main threads, with their places.
    """

    spec: CellSpec
    arrived: set[int] = field(default_factory=set)
    ended: dict[int, str] = field(default_factory=dict)  # rank -> "ok", "error", FAILED_IN_XLA...
    at_work: dict[int, str] = field(default_factory=dict)  # rank -> AT_WORK or STUCK
    folded: dict[int, Folded] = field(default_factory=dict)
    refusal: Refusal | None = None
    launched: deque[tuple[Program, Place]] = field(default_factory=lambda: deque(maxlen=LAUNCHES))
    _covered: dict[Program, bool] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return len(self.arrived) == len(self.spec.ranks)

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.spec.ranks)

    @property
    def is_split(self) -> bool:
        """Whether some of its ranks wait in XLA for others that are out of it."""
        has_failed = FAILED_IN_XLA in self.ended.values()
        is_alone = STUCK in self.at_work.values() and len(self.at_work) < len(self.ended)
        return is_alone or (has_failed and bool(self.at_work))

    def covers(self, program: Program) -> bool:
        """Whether all processes of a program run the cell."""
        found = self._covered.get(program)
        if found is None:
            found = self._covered[program] = {*self.spec.ranks}.issuperset(program.processes)
        return found

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
            if made[at][0] is not awaited:
                continue
            while at and made[at - 1][0] is made[at - 1 + left_out][0]:
                at -= 1
            first = min(first, at)
        return (made[first][1], count - first) if first < count else None


@dataclass(frozen=True)
class Skipped:
    """Why a cell is not run: cell ``after`` failed, rank ``dead`` died, or it was cancelled."""

    after: int = 0
    dead: int | None = None


class CellQueue:
    """Which cell each rank is in, and which cells wait.

    Attributes:
      running: by rank, the cell that it is in.
    """

    def __init__(self, num_ranks: int) -> None:
        self.running: list[Cell | None] = [None] * num_ranks
        self._waiting: dict[int, Cell] = {}  # by seq
        self._cancelled: deque[int] = deque(maxlen=REMEMBERED)
        self._failed: dict[str, deque[int]] = {}  # by notebook, its last cells that failed
        self._dead: set[int] = set()

    def arrive(self, rank: int, spec: CellSpec) -> Skipped | None:
        """A rank has a cell. Returns why it is not to run it, if it is not."""
        if (why := self._why_skip(spec)) is None:
            self._waiting.setdefault(spec.seq, Cell(spec)).arrived.add(rank)
        return why

    def begin(self) -> list[Cell]:
        """The cells that begin now."""
        begun: list[Cell] = []
        needed: set[int] = set()  # by cells that are before
        for cell in list(self._waiting.values()):
            ranks = {*cell.spec.ranks}
            if not cell.is_complete or self._is_behind(cell):
                continue
            if needed.isdisjoint(ranks) and not any(self.running[rank] for rank in ranks):
                del self._waiting[cell.spec.seq]
                for rank in ranks:
                    self.running[rank] = cell
                begun.append(cell)
            needed |= ranks
        return begun

    def next_of(self, rank: int) -> Cell | None:
        """The next cell of a rank; one that not all of its ranks have comes last."""
        mine = [cell for cell in self._waiting.values() if rank in cell.spec.ranks]
        return min(mine, key=lambda cell: not cell.is_complete, default=None)

    def end(self, rank: int, how: str) -> Cell | None:
        """A rank has ended its cell."""
        cell = self.running[rank]
        if cell is not None:
            self.running[rank] = None
            cell.ended[rank] = how
        return cell

    def over(self, cell: Cell) -> list[tuple[int, int, Skipped]]:
        """A cell has ended on all ranks. Returns (rank, seq, why) of what is skipped after it."""
        if cell.refusal is None:
            return []
        failed = self._failed.setdefault(cell.spec.owner, deque(maxlen=REMEMBERED))
        failed.append(cell.spec.seq)
        return self._skip()

    def cancel(self, seq: int) -> list[tuple[int, int, Skipped]]:
        """Don't run a cell that has not begun; also if it arrives later."""
        self._cancelled.append(seq)
        return self._skip()

    def died(self, rank: int) -> list[tuple[int, int, Skipped]]:
        """What needs this rank is not run."""
        self._dead.add(rank)
        return self._skip()

    def _is_behind(self, cell: Cell) -> bool:
        """Whether an earlier cell of its notebook, which needs one of its ranks, waits too."""
        return any(
            other.spec.owner == cell.spec.owner
            and other.spec.seq < cell.spec.seq
            and not {*other.spec.ranks}.isdisjoint(cell.spec.ranks)
            for other in self._waiting.values()
        )

    def _why_skip(self, spec: CellSpec) -> Skipped | None:
        if spec.seq in self._cancelled:
            return Skipped()
        if dead := self._dead.intersection(spec.ranks):
            return Skipped(dead=min(dead))
        if spec.is_skippable:
            for failed in self._failed.get(spec.owner, ()):
                if spec.seen < failed < spec.seq:
                    return Skipped(after=failed)
        return None

    def _skip(self) -> list[tuple[int, int, Skipped]]:
        """What is not to be run any more."""
        told: list[tuple[int, int, Skipped]] = []
        for seq, cell in list(self._waiting.items()):
            if (why := self._why_skip(cell.spec)) is not None:
                del self._waiting[seq]
                told += [(rank, seq, why) for rank in sorted(cell.arrived)]
        return told
