"""Decides which launches are made. Pure: what a rank says comes in, answers go out.

No program that spans processes is launched before all of its processes have announced the same
one. The first refusal closes the cell: nothing more is launched in it on any of its ranks, whatever
the code does with the exception. So all ranks have always made the same launches.

A launch is refused only if it is certain that it can't be agreed. Otherwise it waits, and
``Referee.waits`` says for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxcluster.agreement.cellqueue import (
    FAILED_IN_XLA,
    Cell,
    CellQueue,
    CellSpec,
    Folded,
    Skipped,
)
from jaxcluster.agreement.refusals import NOWHERE, Doing, Kind, Place, Program, Refusal

MAIN = ""  # the lane of a rank's main thread; other threads have a name of their own
ANY = "*"  # the name of a lane in a rendezvous that all may meet in
REMEMBERED = 4096  # agreed launches of a rank, and closed cells
SHOWN = 256  # agreed launches of all


@dataclass(slots=True)
class Go:
    """Launch now. It is the ``count``-th agreed launch of this rank, in that order.

    ``is_alone`` says that no other thread of the rank launches.
    """

    rank: int
    lane: str
    count: int
    is_alone: bool


class Refuse(NamedTuple):
    """Don't launch. ``withdrawn``: the rank has asked for that."""

    rank: int
    lane: str
    refusal: Refusal
    withdrawn: bool = False


class Run(NamedTuple):
    """Begin a cell."""

    rank: int
    seq: int


class Skip(NamedTuple):
    """Don't begin a cell."""

    rank: int
    seq: int
    why: Skipped


class Closed(NamedTuple):
    """Nothing more is launched in a cell of this rank. One rank ``tells`` the notebook."""

    rank: int
    seq: int
    refusal: Refusal
    tells: bool


class Over(NamedTuple):
    """A cell has ended on all of its ranks. ``refusal`` is None if it is ok on all."""

    rank: int
    seq: int
    refusal: Refusal | None
    tells: bool


Answer = Go | Refuse | Run | Skip | Closed | Over


class Key(NamedTuple):
    """Announcements with equal keys agree.

    ``seq`` is the cell, or 0 if it does not cover the program; ``name`` that of the lane.
    """

    program: Program
    given: int
    folded: int
    seq: int
    name: str

    @property
    def is_main(self) -> bool:
        return self.name == MAIN


class Wait(NamedTuple):
    """A lane that has announced a launch and has no answer. ``seq``: its cell's, 0 for none."""

    rank: int
    lane: str
    key: Key
    place: Place
    seq: int
    since: float


Group = dict[int, Wait]  # by rank, in the order in which they came


class Agreed(NamedTuple):
    """An agreed launch. Rank ``last`` came last: the others were complete ``late_s`` before."""

    number: int
    seq: int
    program: Program
    place: Place
    at: float
    last: int
    late_s: float


class Rank:
    """What is known of one rank.

    Attributes:
      goes: how many agreed launches it has; ``made`` has the last of them.
      lanes: its threads that launch, with their names and the cells that started them.
    """

    def __init__(self) -> None:
        self.is_dead = False
        self.goes = 0
        self.made: deque[Agreed] = deque(maxlen=REMEMBERED)
        self.lanes: dict[str, tuple[str, int]] = {}
        self.waits: dict[str, Wait] = {}

    def agreed(self, count: int) -> Agreed | None:
        """Its ``count``-th agreed launch, if that is remembered."""
        before = self.goes - count
        return self.made[-1 - before] if 0 <= before < len(self.made) else None


class Referee:
    """Hears the ranks of one cluster. Each method returns the answers that an event brings.

    Attributes:
      cells: the cells that run and wait.
      agreed: the last agreed launches.
      wants_tick: call ``tick`` in a moment. A refusal is certain, but other ranks may announce
        something until then, and that shows who is alone with what it does.
    """

    def __init__(self, num_ranks: int) -> None:
        self.cells = CellQueue(num_ranks)
        self.agreed: deque[Agreed] = deque(maxlen=SHOWN)
        self.wants_tick = False
        self._ranks = [Rank() for _ in range(num_ranks)]
        self._groups: dict[Key, Group] = {}
        self._main_groups = 0
        self._dead: set[int] = set()
        self._closed: dict[int, Refusal] = {}  # by seq; threads may outlive their cell
        self._number = 0
        self._unmade: dict[Agreed, set[int]] = {}  # the ranks that XLA has refused it on

    # ------------------------------------------------------------------ cells

    def arrive(self, rank: int, spec: CellSpec) -> list[Answer]:
        """A rank has a cell, and runs it once it is told to."""
        if (why := self.cells.arrive(rank, spec)) is not None:
            return [Skip(rank, spec.seq, why)]
        return self._begin_cells() + self._settle()

    def end(
        self, rank: int, outcome: str, folded: Folded | None = None, at_work: str = ""
    ) -> list[Answer]:
        """A rank's main thread has ended its cell, and makes no more launches in it.

        Args:
          outcome: "ok", "error", FAILED_IN_XLA, or the error's text.
          folded: hashes the launches without collectives.
          at_work: AT_WORK or STUCK if XLA still computes; else "".
        """
        cell = self.cells.end(rank, outcome)
        if cell is None:
            return []
        cell.folded[rank] = folded or {}
        if at_work:
            cell.at_work[rank] = at_work
        answers: list[Answer] = []
        if outcome != "ok":
            answers += self._close_cell(cell, "failed", (rank,), _failed(rank, outcome))
        return answers + self._ended(cell)

    def cancel(self, seq: int) -> list[Answer]:
        """Don't run a cell, or stop it if it has begun."""
        if self._find(seq) is not None:
            return self.stop(seq)
        skipped = self.cells.cancel(seq)
        return [Skip(*one) for one in skipped] + self._begin_cells() + self._settle()

    def stop(self, seq: int | None = None) -> list[Answer]:
        """Close a cell; None: all that run, and every launch that waits."""
        answers: list[Answer] = []
        for cell in self._cells_of(range(len(self._ranks))):
            if seq in (None, cell.spec.seq):
                answers += self._close_cell(cell, "stopped")
        if seq is None:
            for wait in [wait for group in self._groups.values() for wait in group.values()]:
                refusal = Refusal("stopped", (), (self._doing(wait.rank),))
                answers += self._close(wait.seq, refusal) + self._refuse(wait, refusal)
        return answers + self._settle()

    # --------------------------------------------------------------- launches

    def hello(self, rank: int, lane: str, name: str, seq: int) -> list[Answer]:
        """A thread that cell ``seq`` has started will launch.

        Args:
          lane: tells it from the rank's other threads.
          name: tells it from threads with other tasks; the same on all ranks.
        """
        self._ranks[rank].lanes[lane] = name, seq
        return []

    def gone(self, rank: int, lane: str) -> list[Answer]:
        """A thread has ended."""
        state = self._ranks[rank]
        state.lanes.pop(lane, None)
        if (wait := state.waits.get(lane)) is not None:
            self._forget(wait)
        return self._settle()

    def launch(
        self,
        rank: int,
        lane: str,
        program: Program,
        *,
        given: int = 0,
        folded: int = 0,
        place: Place = NOWHERE,
        now: float = 0.0,
    ) -> list[Answer]:
        """A thread is about to launch a program, and waits for the answer.

        Args:
          given: hashes the values that the host gives to the launch.
          folded: hashes the launches without collectives of these processes in the cell.
          now: the time, in seconds; for status and reports alone.
        """
        state, seq, covered, name = self._ranks[rank], 0, 0, MAIN
        if lane != MAIN:
            name, seq = state.lanes.get(lane, (lane, 0))
        elif (cell := self.cells.running[rank]) is not None:
            seq = cell.spec.seq
            covered = seq if cell.covers(program) else 0
        if seq and (closed := self._closed.get(seq)) is not None:
            return [Refuse(rank, lane, closed)]
        if program.meets_all:
            covered, name = 0, ANY
        key = Key(program, given, folded if covered else 0, covered, name)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = {}
            self._main_groups += name == MAIN
        group[rank] = state.waits[lane] = wait = Wait(rank, lane, key, place, seq, now)
        if len(group) == len(program.processes):
            if self._unmade and lane == MAIN and self._is_torn(group):
                return self._give_up(group.values(), "torn", ()) + self._settle()
            return self._go(group, wait)
        return self._settle() if self._is_doubtful(wait) else []

    def unmade(self, rank: int, lane: str, count: int) -> list[Answer]:
        """XLA has refused this rank's ``count``-th agreed launch.

        If it has refused a main thread's launch on all ranks, that is an error of the program's.
        Otherwise the other ranks are in a launch that can't end.
        """
        if (agreed := self._ranks[rank].agreed(count)) is None:
            return []
        if lane == MAIN:
            self._unmade.setdefault(agreed, set()).add(rank)
            return []
        processes = agreed.program.processes
        refusal = Refusal("torn", (rank,), tuple(self._doing(one) for one in processes))
        _, seq = self._ranks[rank].lanes.get(lane, ("", 0))
        if self._find(seq) is not None:
            return self._close(seq, refusal) + self._settle()
        self._closed.setdefault(seq, refusal)
        living = [one for one in processes if one not in self._dead]
        return [Closed(one, seq, refusal, one == living[0]) for one in living]

    @property
    def is_unsure(self) -> bool:
        """Whether XLA has refused a launch on some ranks, and others have not spoken since."""
        return bool(self._unmade)

    def silent(self) -> list[Answer]:
        """Those others have said nothing for long: they are in a launch that can't end."""
        answers: list[Answer] = []
        for agreed, ranks in list(self._unmade.items()):
            del self._unmade[agreed]
            for rank in {*agreed.program.processes} - ranks - self._dead:
                if (cell := self.cells.running[rank]) is not None:
                    answers += self._close_cell(cell, "torn", tuple(sorted(ranks)))
        return answers + self._settle()

    def withdraw(self, rank: int, lane: str) -> list[Answer]:
        """Something raised in a wait. Answered with ``withdrawn``, unless ``go`` is on its way.

        Leaving closes the cell: the next launch might look like this one, and would not be. A
        rendezvous has its name, so leaving one closes nothing.
        """
        wait = self._ranks[rank].waits.get(lane)
        if wait is None:
            return []
        left = replace(self._doing(rank, lane), does="left")
        cell = self._find(wait.seq)
        doing = (left,) if cell is None else self._doing_of(cell, left)
        refusal = Refusal("left", (rank,), doing)
        self._forget(wait)
        answers: list[Answer] = [Refuse(rank, lane, refusal, withdrawn=True)]
        if not wait.key.program.meets_all:
            answers += self._close(wait.seq, refusal)
        return answers + self._settle()

    def died(self, rank: int) -> list[Answer]:
        """A rank's process has ended."""
        state = self._ranks[rank]
        if state.is_dead:
            return []
        state.is_dead = True
        self._dead.add(rank)
        for wait in list(state.waits.values()):
            self._forget(wait)
        state.lanes.clear()
        answers: list[Answer] = [Skip(*one) for one in self.cells.died(rank)]
        cell = self.cells.end(rank, "died")
        if cell is not None:
            answers += self._close_cell(cell, "died", (rank,)) + self._ended(cell)
        return answers + self._settle()

    def tick(self) -> list[Answer]:
        """The other ranks have had a moment to announce theirs: see ``wants_tick``."""
        return self._settle(is_patient=False)

    # ------------------------------------------------------------------- reading

    def waits(self) -> list[tuple[Wait, tuple[int, ...]]]:
        """Each lane that waits, with the ranks that it waits for."""
        return [
            (wait, tuple(_missing(key, group)))
            for key, group in self._groups.items()
            for wait in group.values()
        ]

    # ------------------------------------------------------------------ deciding

    def _go(self, group: Group, last: Wait) -> list[Answer]:
        """All have announced it, ``last`` as the last one."""
        program, place, now = last.key.program, last.place, last.since
        self._drop(last.key)
        self._number += 1
        waits = list(group.values())
        late_s = now - waits[-2].since if len(waits) > 1 else 0.0
        agreed = Agreed(self._number, last.seq, program, place, now, last.rank, late_s)
        self.agreed.append(agreed)
        answers: list[Answer] = []
        for wait in waits:
            state = self._ranks[wait.rank]
            del state.waits[wait.lane]
            state.goes += 1
            state.made.append(agreed)
            answers.append(Go(wait.rank, wait.lane, state.goes, not state.lanes))
        if last.key.is_main:
            for cell in self._cells_of(group):
                cell.launched.append((program, place))
        return answers

    def _is_doubtful(self, wait: Wait) -> bool:
        """Whether an announcement may be one that can't be agreed, or make others so."""
        if self._dead or not wait.key.is_main:
            return bool(self._dead)
        cell = self.cells.running[wait.rank]
        is_odd = cell is not None and (bool(cell.ended) or not wait.key.seq)
        return is_odd or self._main_groups > 1

    def _settle(self, is_patient: bool = True) -> list[Answer]:
        """Refuse what can't be agreed any more, until nothing of that kind is left."""
        answers: list[Answer] = []
        self.wants_tick = False
        while found := self._refuse_lost(is_patient):
            answers += found
        return answers

    def _refuse_lost(self, is_patient: bool) -> list[Answer]:
        """Refuse a launch that can't be agreed any more, with those that are its rivals."""
        lost = self._lost()
        for key in lost:
            if dead := self._dead.intersection(_missing(key, self._groups[key])):
                return self._give_up(self._groups[key].values(), "died", dead)
        if is_patient and self._may_tell_more(lost):
            self.wants_tick = True
            return []
        for key in lost:
            if ended := self._ended_without(key):
                group = self._groups[key]
                missing = _missing(key, group)
                others = [one for one in missing if one in ended or self._waits_for(one, group)]
                causes = ended if len(group) >= len(others) else {*group}
                return self._give_up(group.values(), "ended", causes)
        return self._refuse_stuck(lost) if lost else []

    def _refuse_stuck(self, lost: Sequence[Key]) -> list[Answer]:
        """Refuse launches of main threads that wait for each other, so that none can come."""
        waiting = [rank for key in lost for rank in self._groups[key]]
        for key in lost:
            rivals = [other for other in lost if other.program.processes == key.program.processes]
            if len(rivals) > 1:
                groups = [self._groups[rival] for rival in rivals]
                waits = [wait for group in groups for wait in group.values()]
                return self._give_up(waits, "differs", _minority(groups))
        is_idle = any(self._is_idle(rank) for key in lost for rank in key.program.processes)
        kind: Kind = "idle" if is_idle else "circle"
        return self._give_up(self._groups[lost[0]].values(), kind, waiting)

    def _lost(self) -> list[Key]:
        """The launches that can't be agreed: all but a least fixpoint."""
        lost, alive = list(self._groups), set[Key]()
        while found := [key for key in lost if self._may_fill(key, alive)]:
            alive.update(found)
            lost = [key for key in lost if key not in alive]
        return lost

    def _may_fill(self, key: Key, alive: set[Key]) -> bool:
        """Whether all ranks that are missing may still announce this."""
        group = self._groups[key]
        missing = _missing(key, group)
        if not key.is_main or not self._dead.isdisjoint(missing):
            return self._dead.isdisjoint(missing)  # to a thread's launch others may still come
        cells = {self.cells.running[rank] for rank in group}
        is_open = any(cell is None or not cell.spec.is_foreground for cell in cells)
        may_come = all(self._may_come(rank, alive, is_open) for rank in missing)
        return may_come and not self._ended_without(key)

    def _ended_without(self, key: Key) -> set[int]:
        """The ranks that a main thread's launch needs, and that have ended the cell without it."""
        group = self._groups[key]
        ended = {rank for cell in self._cells_of(group) for rank in cell.ended}
        return ended.intersection(_missing(key, group)) if key.is_main else set()

    def _may_come(self, rank: int, alive: set[Key], is_open: bool) -> bool:
        """Whether a rank may announce another launch than the one that it waits in.

        Args:
          is_open: more cells may be sent to it.
        """
        if not self._may_go_on(rank, alive):
            return False
        if self.cells.running[rank] is not None or MAIN in self._ranks[rank].waits:
            return True
        cell = self.cells.next_of(rank)
        return is_open if cell is None else all(self._may_go_on(r, alive) for r in cell.spec.ranks)

    def _may_go_on(self, rank: int, alive: set[Key]) -> bool:
        """Whether a rank's main thread works, or what it waits for may come."""
        wait = self._ranks[rank].waits.get(MAIN)
        return wait is None or wait.key in alive

    def _waits_for(self, rank: int, others: Group) -> bool:
        """Whether a rank waits in another launch for one of these."""
        wait = self._ranks[rank].waits.get(MAIN)
        missing = [] if wait is None else _missing(wait.key, self._groups[wait.key])
        return not others.keys().isdisjoint(missing)

    def _may_tell_more(self, lost: Iterable[Key]) -> bool:
        """Whether a rank that is needed still works, and may announce something in a moment."""
        return any(
            self.cells.running[rank] is not None and MAIN not in self._ranks[rank].waits
            for key in lost
            for rank in key.program.processes
        )

    def _give_up(self, waits: Iterable[Wait], kind: Kind, causes: Iterable[int]) -> list[Answer]:
        """Close the cells of these launches, and refuse those that are in no cell."""
        waits = list(waits)
        ranks = {rank for wait in waits for rank in wait.key.program.processes}
        cells = [cell for wait in waits if (cell := self._find(wait.seq)) is not None]
        for cell in cells:
            ranks.update(cell.spec.ranks)
        of = cells[0] if cells else None
        doing = tuple(self._doing(rank, of=of) for rank in sorted(ranks))
        refusal = Refusal(kind, tuple(sorted({*causes})), doing)
        if kind in ("ended", "differs", "circle"):
            others = [self._ranks[rank].waits.get(MAIN) for rank in sorted(ranks)]
            refusal = self._with_mixed([wait for wait in others if wait is not None], refusal)
        answers: list[Answer] = []
        for wait in waits:
            answers += self._close(wait.seq, refusal)
            answers += self._refuse(wait, refusal)
        return answers

    def _with_mixed(self, waits: Sequence[Wait], refusal: Refusal) -> Refusal:
        """Say since which launch turns of a loop may have met other turns: see ``Cell.mixed``."""
        for wait in waits:
            cell = self._find(wait.seq)
            found = cell.mixed(wait.key.program) if cell is not None else None
            if found is not None and found[1] > refusal.mixed_launches:
                refusal = replace(refusal, mixed=found[0], mixed_launches=found[1])
        return refusal

    def _close_cell(
        self, cell: Cell, kind: Kind, causes: tuple[int, ...] = (), *known: Doing
    ) -> list[Answer]:
        """As ``_close``, with what its ranks do; of some it is known."""
        refusal = Refusal(kind, causes, self._doing_of(cell, *known))
        return self._close(cell.spec.seq, refusal, cell)

    def _close(self, seq: int, refusal: Refusal, cell: Cell | None = None) -> list[Answer]:
        """From now on nothing is launched in this cell, nor by threads that it has started."""
        if not seq or seq in self._closed:
            return []
        self._closed[seq] = refusal
        if len(self._closed) > REMEMBERED:
            del self._closed[next(iter(self._closed))]
        answers: list[Answer] = []
        if (cell := cell or self._find(seq)) is not None:
            cell.refusal = refusal
            answers += self._tell(Closed, cell, refusal)
        for state in self._ranks:
            for wait in [wait for wait in state.waits.values() if wait.seq == seq]:
                answers += self._refuse(wait, refusal)
        return answers

    def _ended(self, cell: Cell) -> list[Answer]:
        """One more rank has ended the cell."""
        if not cell.is_over:
            return self._settle()
        idle = [one for one, of in enumerate(self.cells.running) if of is None]
        if self._is_torn(idle) or cell.is_split:
            cell.refusal = replace(cell.refusal or Refusal("torn"), kind="torn")
        elif cell.refusal is None and (odd := _odd_ones(cell)):
            cell.refusal = Refusal("uneven", odd, self._doing_of(cell))
        skipped: list[Answer] = [Skip(*one) for one in self.cells.over(cell)]
        over = self._tell(Over, cell, cell.refusal)
        return skipped + over + self._begin_cells() + self._settle()

    def _is_torn(self, spoken: Container[int]) -> bool:
        """Whether XLA has launched an agreed program on some ranks alone.

        Args:
          spoken: ranks that have told what XLA refused until now.
        """
        for agreed, ranks in list(self._unmade.items()):
            others = {*agreed.program.processes} - ranks - self._dead
            if not others:
                del self._unmade[agreed]
            elif any(rank in spoken for rank in others):
                return True
        return False

    # -------------------------------------------------------------------- helpers

    def _begin_cells(self) -> list[Answer]:
        return [Run(rank, cell.spec.seq) for cell in self.cells.begin() for rank in cell.spec.ranks]

    def _cells_of(self, ranks: Iterable[int]) -> list[Cell]:
        """The cells that these ranks are in."""
        found = dict.fromkeys(self.cells.running[rank] for rank in ranks)
        return [cell for cell in found if cell is not None]

    def _find(self, seq: int) -> Cell | None:
        """The cell of this number, if it runs."""
        return next((cell for cell in self.cells.running if cell and cell.spec.seq == seq), None)

    def _tell(
        self, kind: type[Closed] | type[Over], cell: Cell, refusal: Refusal | None
    ) -> list[Answer]:
        """An answer for each living rank of a cell; the first of them tells the notebook."""
        living = [rank for rank in cell.spec.ranks if rank not in self._dead]
        return [kind(rank, cell.spec.seq, refusal, rank == living[0]) for rank in living]  # type: ignore[arg-type]

    def _is_idle(self, rank: int) -> bool:
        return self.cells.running[rank] is None and MAIN not in self._ranks[rank].waits

    def _refuse(self, wait: Wait, refusal: Refusal) -> list[Answer]:
        if self._ranks[wait.rank].waits.get(wait.lane) is not wait:
            return []  # it has its answer
        self._forget(wait)
        return [Refuse(wait.rank, wait.lane, refusal)]

    def _forget(self, wait: Wait) -> None:
        del self._ranks[wait.rank].waits[wait.lane]
        group = self._groups[wait.key]
        del group[wait.rank]
        if not group:
            self._drop(wait.key)

    def _drop(self, key: Key) -> None:
        del self._groups[key]
        self._main_groups -= key.is_main

    def _doing_of(self, cell: Cell, *known: Doing) -> tuple[Doing, ...]:
        """What the ranks of a cell do, and those that they wait for; of some it is known."""
        told = {one.rank: one for one in known}
        ranks = {*cell.spec.ranks}
        for rank in cell.spec.ranks:
            if (wait := self._ranks[rank].waits.get(MAIN)) is not None:
                ranks.update(wait.key.program.processes)
        return tuple(told.get(rank) or self._doing(rank, of=cell) for rank in sorted(ranks))

    def _doing(self, rank: int, lane: str = MAIN, of: Cell | None = None) -> Doing:
        """What a rank does now, or has done in a cell that it has ended."""
        state = self._ranks[rank]
        if state.is_dead:
            return Doing(rank, "died")
        if (wait := state.waits.get(lane)) is None:
            cell = self.cells.running[rank]
            if cell is None and of is not None and rank in of.ended:
                how = of.ended[rank]
                return Doing(rank, "ended") if how == "ok" else _failed(rank, how)
            return Doing(rank, "idle" if cell is None else "works")
        program, given = wait.key.program, wait.key.given
        told = program.name, program.signature, wait.place, program.fingerprint
        return Doing(rank, "waits", *told, given)


def _failed(rank: int, outcome: str) -> Doing:
    return Doing(rank, "failed", "" if outcome in ("error", FAILED_IN_XLA) else outcome)


def _missing(key: Key, group: Group) -> list[int]:
    return [rank for rank in key.program.processes if rank not in group]


def _minority(groups: Sequence[Group]) -> list[int]:
    """The ranks that are alone with their program; all of them if that is not clear."""
    sizes = sorted(len(group) for group in groups)
    is_clear = sizes[-1] > sizes[-2]
    return [rank for group in groups if not is_clear or len(group) < sizes[-1] for rank in group]


def _odd_ones(cell: Cell) -> tuple[int, ...]:
    """The ranks whose launches without collectives are not those of the most; () if all agree."""
    for processes in {processes for folded in cell.folded.values() for processes in folded}:
        by_hash: dict[int, list[int]] = {}
        for rank in cell.folded.keys() & {*processes}:
            by_hash.setdefault(cell.folded[rank].get(processes, 0), []).append(rank)
        if len(by_hash) > 1:
            # Of two as many: who has launched nothing is the odd one.
            most = max(by_hash, key=lambda folded: (len(by_hash[folded]), folded != 0))
            return tuple(sorted(r for folded, rs in by_hash.items() if folded != most for r in rs))
    return ()
