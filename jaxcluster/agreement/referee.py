"""Decides which launches are made. Pure: what a rank says comes in, answers go out.

No program that spans processes is launched before all of its processes have announced the same
one. The first refusal closes the cell: nothing more is launched in it on any of its ranks, whatever
the code does with the exception. So all ranks have always made the same launches.

A launch is refused only if it is certain that it can't be agreed. Otherwise it waits, and
``Referee.look`` says for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxcluster.agreement.cellqueue import (
    BASE,
    DIED,
    FAILED_IN_XLA,
    Answer,
    Cell,
    CellQueue,
    CellSpec,
    Folded,
)
from jaxcluster.agreement.refusals import (
    NOWHERE,
    AgreedLaunch,
    Doing,
    Kind,
    Looked,
    Place,
    Program,
    Refusal,
    Waiting,
    grouped,
)

MAIN = ""  # the lane of a rank's main thread; other threads have a name of their own
ANY = "*"  # the name of a lane in a rendezvous that all may meet in
REMEMBERED = 4096  # closed cells
SHOWN = 256  # agreed launches
TICK_S = 0.05  # that other ranks have to announce theirs, once a refusal is certain
SILENT_S = 5.0  # that ranks have to say something after XLA refused their launch elsewhere


class Key(NamedTuple):
    """Announcements with equal keys agree.

    ``seq`` is the cell, or 0 if it does not cover the program; ``name`` that of the lane.
    """

    program: Program
    given: int
    folded: int
    seq: int
    name: str


class Wait(NamedTuple):
    """A lane that has announced a launch and has no answer. ``seq``: its cell's, 0 for none."""

    rank: int
    lane: str
    key: Key
    place: Place
    seq: int
    since: float


Group = dict[int, Wait]  # by rank, in the order in which they came


class Rank:
    """What is known of one rank.

    Attributes:
      goes: how many agreed launches it has.
      made: the last one of each lane, until that says what it does next: number, cell, program.
      lanes: its threads that launch, with their names and the cells that started them.
      waits: by lane.
    """

    def __init__(self) -> None:
        self.goes = 0
        self.made: dict[str, tuple[int, int, Program]] = {}
        self.lanes: dict[str, tuple[str, int]] = {}
        self.waits: dict[str, Wait] = {}


class Referee:
    """Hears the ranks of one cluster. Each method returns the answers that an event brings.

    Attributes:
      cells: the cells that run and wait.
      agreed: the last agreed launches; ``AgreedLaunch`` has the names of what is told.
    """

    def __init__(self, num_ranks: int) -> None:
        self.cells = CellQueue(num_ranks)
        self.agreed: deque[tuple[Any, ...]] = deque(maxlen=SHOWN)
        self._ranks = [Rank() for _ in range(num_ranks)]
        self._groups: dict[Key, Group] = {}
        self._closed: dict[int, Refusal] = {}  # by seq; threads may outlive their cell
        self._number = 0
        self._is_certain = False  # that something is to be refused in a moment
        # Agreed launches, and the ranks that XLA has refused them on.
        self._unmade: dict[tuple[int, int, Program], set[int]] = {}

    # ------------------------------------------------------------------ cells

    def arrive(self, rank: int, spec: CellSpec) -> list[Answer]:
        """A rank has a cell, and runs it once it is told to."""
        return self.cells.arrive(rank, spec) + self._settle()

    def end(
        self, rank: int, outcome: str, folded: Folded | None = None, at_work: str = ""
    ) -> list[Answer]:
        """A rank's main thread has ended its cell, and makes no more launches in it.

        Args:
          outcome: "ok", "error", FAILED_IN_XLA, DIED, or the error's text.
          folded: hashes the launches without collectives.
          at_work: AT_WORK or STUCK if XLA still computes; else "".
        """
        self._ranks[rank].made.pop(MAIN, None)
        answers = self._tear()
        if (cell := self.cells.running[rank]) is None:
            return answers
        cell.ended[rank], cell.folded[rank] = outcome, folded or {}
        if at_work:
            cell.at_work[rank] = at_work
        if outcome != "ok":
            answers += self._give_up("died" if outcome == DIED else "failed", (rank,), cells=[cell])
        self.cells.running[rank] = None
        if len(cell.ended) == len(cell.spec.ranks):
            if cell.is_torn or cell.is_split:
                cell.refusal = replace(cell.refusal or Refusal("torn"), kind="torn")
            elif cell.refusal is None and (odd := cell.odd_ones()):
                cell.refusal = self._refusal("uneven", odd, cells=[cell])
            if cell.refusal is not None:
                self.cells.failed.append(cell.spec)
            answers += self._tell("over", cell) + self.cells.step()
        return answers + self._settle()

    def stop(self, seq: int | None = None) -> list[Answer]:
        """Close a cell, or don't run it; None: all that run, and every launch that waits."""
        if seq is not None and self._find(seq) is None:
            return self.cells.cancel(seq) + self._settle()
        answers: list[Answer] = []
        for cell in self._cells_of(range(len(self._ranks))):
            if seq in (None, cell.spec.seq):
                answers += self._give_up("stopped", cells=[cell])
        for wait in self._all_waits() if seq is None else ():
            answers += self._give_up("stopped", waits=[wait])
        return answers + self._settle()

    # --------------------------------------------------------------- launches

    def hello(self, rank: int, lane: str, name: str, seq: int) -> list[Answer]:
        """A thread that cell ``seq`` has started will launch.

        Args:
          lane: tells it from the rank's other threads.
          name: tells it from threads with other tasks; the same on all ranks.
        """
        if lane not in (MAIN, BASE):
            self._ranks[rank].lanes[lane] = name, seq
        return []

    def gone(self, rank: int, lane: str) -> list[Answer]:
        """A thread has ended. The control thread's end is the rank's death."""
        state = self._ranks[rank]
        if lane == MAIN:  # of a child that has closed what it has of its parent
            return []
        for wait in [*state.waits.values()]:
            if lane in (wait.lane, BASE):
                self._forget(wait)
        state.lanes.pop(lane, None)
        state.made.pop(lane, None)
        if lane != BASE:
            return self._tear() + self._settle()
        state.lanes.clear()
        self.cells.dead.add(rank)
        return self.end(rank, DIED) + self.cells.step() + self._settle()

    def launch(
        self,
        rank: int,
        lane: str,
        program: Program,
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
        state.made.pop(lane, None)
        answers = self._tear() if self._unmade else []
        if lane != MAIN:
            name, seq = state.lanes.get(lane, (lane, 0))
        elif (cell := self.cells.running[rank]) is not None:
            seq = cell.spec.seq
            covered = seq if cell.covers(program) else 0
        if (closed := self._closed.get(seq)) is not None:
            return [*answers, Answer("refuse", rank, lane, 0, closed)]
        if program.meets_all:
            covered, name = 0, ANY
        key = Key(program, given, folded if covered else 0, covered, name)
        group = self._groups.setdefault(key, {})
        group[rank] = state.waits[lane] = wait = Wait(rank, lane, key, place, seq, now)
        if len(group) == len(program.processes):
            return answers + self._go(group, wait)
        return answers + (self._settle() if self._is_doubtful(wait) else [])

    def unmade(self, rank: int, lane: str) -> list[Answer]:
        """XLA has refused the last agreed launch of this thread.

        If it has refused it on all ranks, that is an error of the program's. Otherwise the other
        ranks are in a launch that can't end.
        """
        if (made := self._ranks[rank].made.get(lane)) is None:
            return []
        self._unmade.setdefault(made, set()).add(rank)
        return self._tear() + self._settle()

    def withdraw(self, rank: int, lane: str) -> list[Answer]:
        """Something raised in a wait. It is refused, unless ``go`` is on its way.

        Leaving closes the cell: the next launch might look like this one, and would not be. A
        rendezvous has its name, so leaving one closes nothing.
        """
        if (wait := self._ranks[rank].waits.get(lane)) is None:
            return []
        refusal = self._refusal("left", (rank,), [wait])
        closed = [] if wait.key.program.meets_all else self._close(wait.seq, refusal)
        return closed + self._refuse([wait], refusal) + self._settle()

    @property
    def patience_s(self) -> float | None:
        """How long ranks may say nothing until ``tick`` is called; None for ever.

        A refusal is certain, but what others announce in a moment shows who is alone with what it
        does. Or XLA has refused a launch on some ranks, and others are silent.
        """
        return TICK_S if self._is_certain else SILENT_S if self._unmade else None

    def tick(self) -> list[Answer]:
        """The ranks have had their time."""
        if self._is_certain:
            return self._settle(is_patient=False)
        return self._tear(is_late=True) + self._settle()

    def look(self, now: float, launches: int = 0) -> Looked:
        """Who waits for whom, and the last agreed launches."""
        waits = [
            Waiting(*wait[:2], wait.seq, wait.key.program.name, wait.place, wait.since, missing)
            for key in self._groups
            for missing in [self._missing(key)]
            for wait in self._groups[key].values()
        ]
        first = max(0, len(self.agreed) - launches)
        agreed = [AgreedLaunch(*one) for one in [*self.agreed][first:]]
        running = [None if cell is None else cell.spec.seq for cell in self.cells.running]
        return Looked(now, waits, agreed, running)

    # ------------------------------------------------------------------ deciding

    def _go(self, group: Group, last: Wait) -> list[Answer]:
        """All have announced it, ``last`` as the last one."""
        program, place, now = last.key.program, last.place, last.since
        del self._groups[last.key]
        self._number += 1
        waits = list(group.values())
        late_s = now - waits[-2].since if len(waits) > 1 else 0.0
        self.agreed.append((self._number, last.seq, program.name, place, now, last.rank, late_s))
        answers: list[Answer] = []
        for wait in waits:
            state = self._ranks[wait.rank]
            del state.waits[wait.lane]
            state.goes += 1
            state.made[wait.lane] = self._number, last.seq, program
            told = wait.rank, wait.lane, state.goes, None, False, not state.lanes
            answers.append(Answer("go", *told))
        if last.key.name == MAIN:
            for cell in self._cells_of([last.rank] if last.key.seq else group):
                cell.launched.append((program, place))
        return answers

    def _is_doubtful(self, wait: Wait) -> bool:
        """Whether an announcement may be one that can't be agreed, or make others so."""
        if self.cells.dead or wait.key.name != MAIN:
            return bool(self.cells.dead)
        cell = self.cells.running[wait.rank]
        if cell is not None and (cell.ended or not wait.key.seq):
            return True
        return len(self._groups) > 1 and sum(key.name == MAIN for key in self._groups) > 1

    def _settle(self, is_patient: bool = True) -> list[Answer]:
        """Refuse what can't be agreed any more, until nothing of that kind is left."""
        answers: list[Answer] = []
        self._is_certain = False
        while (lost := self._lost()) and (verdict := self._verdict(lost, is_patient)):
            answers += self._give_up(*verdict)
        return answers

    def _lost(self) -> list[Key]:
        """The launches that can't be agreed: all but a least fixpoint."""
        lost, alive = list(self._groups), set[Key]()
        while found := [key for key in lost if self._may_fill(key, alive)]:
            alive.update(found)
            lost = [key for key in lost if key not in alive]
        return lost

    def _verdict(
        self, lost: Sequence[Key], is_patient: bool
    ) -> tuple[Kind, Iterable[int], list[Wait]] | None:
        """Why some of these launches can't be agreed, who is the cause, and which are refused.

        None if ranks that are needed still work, and may announce something in a moment.
        """
        for key in lost:
            if dead := self.cells.dead.intersection(self._missing(key)):
                return "died", dead, [*self._groups[key].values()]
        running = self.cells.running
        needed = {rank for key in lost for rank in key.program.processes}
        idle = [rank for rank in needed if not self._waits(rank)]
        if is_patient and any(running[rank] for rank in idle):
            self._is_certain = True
            return None
        for key in lost:
            group = self._groups[key]
            if ended := self._ended_without(key):
                others = [r for r in self._missing(key) if r in ended or self._waits_for(r, group)]
                return "ended", ended if len(group) >= len(others) else group, [*group.values()]
        for key in lost:
            processes = key.program.processes
            rivals = [self._groups[one] for one in lost if one.program.processes == processes]
            if len(rivals) > 1:
                waits = [wait for group in rivals for wait in group.values()]
                return "differs", _minority(rivals), waits
        waiting = [rank for key in lost for rank in self._groups[key]]
        kind: Kind = "circle" if all(running[rank] for rank in idle) else "idle"
        return kind, waiting, [*self._groups[lost[0]].values()]

    def _may_fill(self, key: Key, alive: set[Key]) -> bool:
        """Whether all ranks that are missing may still announce this."""
        missing = self._missing(key)
        if key.name != MAIN or not self.cells.dead.isdisjoint(missing):
            return self.cells.dead.isdisjoint(missing)  # to a thread's launch others may still come
        cells = {self.cells.running[rank] for rank in self._groups[key]}
        is_open = any(cell is None or not cell.spec.is_foreground for cell in cells)
        may_come = all(self._may_come(rank, alive, is_open) for rank in missing)
        return may_come and not self._ended_without(key)

    def _may_come(self, rank: int, alive: set[Key], is_open: bool) -> bool:
        """Whether a rank may announce another launch than the one that it waits in.

        Args:
          is_open: more cells may be sent to it.
        """
        if not self._may_go_on(rank, alive):
            return False
        if self.cells.running[rank] is not None or self._waits(rank):
            return True
        cell = self.cells.next_of(rank)
        return is_open if cell is None else all(self._may_go_on(r, alive) for r in cell.spec.ranks)

    def _may_go_on(self, rank: int, alive: set[Key]) -> bool:
        """Whether a rank's main thread works, or what it waits for may come."""
        wait = self._waits(rank)
        return wait is None or wait.key in alive

    def _ended_without(self, key: Key) -> set[int]:
        """The ranks that a main thread's launch needs, and that have ended the cell without it."""
        cells = self._cells_of(self._groups[key]) if key.name == MAIN else []
        return {rank for cell in cells for rank in cell.ended}.intersection(self._missing(key))

    def _waits_for(self, rank: int, others: Group) -> bool:
        """Whether a rank waits in another launch for one of these."""
        wait = self._waits(rank)
        return wait is not None and not others.keys().isdisjoint(self._missing(wait.key))

    def _waits(self, rank: int) -> Wait | None:
        """What a rank's main thread waits in."""
        return self._ranks[rank].waits.get(MAIN)

    def _all_waits(self) -> list[Wait]:
        return [wait for group in self._groups.values() for wait in group.values()]

    def _missing(self, key: Key) -> list[int]:
        group = self._groups[key]
        return [rank for rank in key.program.processes if rank not in group]

    # -------------------------------------------------------------------- refusing

    def _give_up(
        self,
        kind: Kind,
        causes: Iterable[int] = (),
        waits: Sequence[Wait] = (),
        cells: Sequence[Cell] = (),
    ) -> list[Answer]:
        """Close these cells and those of these launches, and refuse these launches."""
        refusal = self._refusal(kind, causes, waits, cells)
        answers: list[Answer] = []
        for seq in [*(wait.seq for wait in waits), *(cell.spec.seq for cell in cells)]:
            answers += self._close(seq, refusal)
        return answers + self._refuse(waits, refusal)

    def _refusal(
        self,
        kind: Kind,
        causes: Iterable[int],
        waits: Sequence[Wait] = (),
        cells: Sequence[Cell] = (),
    ) -> Refusal:
        """A refusal, with what all ranks of these launches and cells do."""
        cells = [*cells, *(cell for wait in waits if (cell := self._find(wait.seq)) is not None)]
        ranks = {rank for cell in cells for rank in cell.spec.ranks}
        known = {rank: wait for rank in ranks if (wait := self._waits(rank)) is not None}
        known.update((wait.rank, wait) for wait in waits)
        ranks.update(rank for wait in known.values() for rank in wait.key.program.processes)
        left = causes if kind == "left" else ()
        doing = [self._doing(rank, known.get(rank), cells, rank in left) for rank in sorted(ranks)]
        mixed = None
        for rank in sorted(ranks) if kind in ("ended", "differs", "circle") else ():
            wait = self._waits(rank)
            cell = self._find(wait.seq) if wait is not None else None
            if wait and cell and (mixed := cell.mixed(wait.key.program)) is not None:
                break
        return Refusal(kind, tuple(sorted({*causes})), grouped(doing), *(mixed or ()))

    def _doing(self, rank: int, wait: Wait | None, cells: Sequence[Cell], is_left: bool) -> Doing:
        """The rank's launch now, or its last one in a cell that it has ended."""
        if rank in self.cells.dead:
            return Doing((rank,), "died")
        if (wait := wait or self._waits(rank)) is not None:
            program = wait.key.program
            told = program.name, program.signature, wait.place, program.fingerprint, wait.key.given
            return Doing((rank,), "left" if is_left else "waits", *told)
        how = next((cell.ended[rank] for cell in cells if rank in cell.ended), None)
        if how is None:
            return Doing((rank,), "idle" if self.cells.running[rank] is None else "works")
        if how == "ok":
            return Doing((rank,), "ended")
        return Doing((rank,), "failed", "" if how in ("error", FAILED_IN_XLA) else how)

    def _close(self, seq: int, refusal: Refusal) -> list[Answer]:
        """From now on nothing is launched in this cell, nor by threads that it has started."""
        if not seq or seq in self._closed:
            return []
        self._closed[seq] = refusal
        if len(self._closed) > REMEMBERED:
            del self._closed[next(iter(self._closed))]
        answers: list[Answer] = []
        if (cell := self._find(seq)) is not None:
            cell.refusal = refusal
            answers += self._tell("closed", cell)
        return answers + self._refuse([w for w in self._all_waits() if w.seq == seq], refusal)

    def _refuse(self, waits: Iterable[Wait], refusal: Refusal) -> list[Answer]:
        answers: list[Answer] = []
        for wait in waits:
            if self._ranks[wait.rank].waits.get(wait.lane) is wait:  # it has no answer yet
                self._forget(wait)
                answers.append(Answer("refuse", wait.rank, wait.lane, 0, refusal))
        return answers

    def _tear(self, is_late: bool = False) -> list[Answer]:
        """Notice that XLA has launched an agreed program on some ranks alone."""
        answers: list[Answer] = []
        for made, ranks in [*self._unmade.items()]:
            _, seq, program = made
            others = {*program.processes} - ranks - self.cells.dead
            may_say = all(made in self._ranks[rank].made.values() for rank in others)
            if others and may_say and not is_late:
                continue  # they may still say that XLA has refused it
            del self._unmade[made]
            if others:
                cells = self._cells_of(program.processes, seq)
                for cell in cells:
                    cell.is_torn = True
                refusal = self._refusal("torn", ranks, cells=cells)
                for closed in (seq, *(cell.spec.seq for cell in cells)):
                    answers += self._close(closed, refusal)
        return answers

    # -------------------------------------------------------------------- helpers

    def _cells_of(self, ranks: Iterable[int], seq: int = 0) -> list[Cell]:
        """The cells that these ranks are in, and that of a number."""
        found = dict.fromkeys(self.cells.running[rank] for rank in ranks)
        if seq:
            found[self._find(seq)] = None
        return [cell for cell in found if cell is not None]

    def _find(self, seq: int) -> Cell | None:
        """The cell of this number, if it runs."""
        return next((cell for cell in self.cells.running if cell and cell.spec.seq == seq), None)

    def _tell(self, word: str, cell: Cell) -> list[Answer]:
        """An answer for each living rank of a cell; the first of them tells the notebook."""
        living = [rank for rank in cell.spec.ranks if rank not in self.cells.dead]
        told = cell.spec.seq, cell.refusal
        return [Answer(word, rank, BASE, *told, tells=rank == living[0]) for rank in living]

    def _forget(self, wait: Wait) -> None:
        del self._ranks[wait.rank].waits[wait.lane]
        group = self._groups[wait.key]
        del group[wait.rank]
        if not group:
            del self._groups[wait.key]


def _minority(groups: Sequence[Group]) -> list[int]:
    """The ranks that are alone with their program; all of them if that is not clear."""
    sizes = sorted(len(group) for group in groups)
    is_clear = sizes[-1] > sizes[-2]
    return [rank for group in groups if not is_clear or len(group) < sizes[-1] for rank in group]
