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
from typing import NamedTuple

from jaxcluster.agreement.cellqueue import (
    BASE,
    DIED,
    FAILED_IN_XLA,
    Answer,
    Cell,
    CellQueue,
    CellSpec,
    End,
    odd_ones,
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


class Referee:
    """Hears the ranks of one cluster. Each method returns the answers that an event brings.

    Attributes:
      cells: the cells that run and wait.
      agreed: the last agreed launches.
      is_certain: a refusal is certain, but what others announce in a moment shows who is alone
        with what it does.
    """

    def __init__(self, num_ranks: int) -> None:
        self._answers: list[Answer] = []
        self.cells = CellQueue(num_ranks, self._answers)
        self.agreed: deque[AgreedLaunch] = deque(maxlen=SHOWN)
        self.is_certain = False
        self._number = 0
        self._groups: dict[Key, Group] = {}
        self._closed: dict[int, Refusal] = {}  # by seq; threads may outlive their cell
        # By a lane's name, cell and processes: the ranks on which XLA has refused such a launch.
        self._unmade: dict[tuple[str, int, tuple[int, ...]], set[int]] = {}
        # By rank: how many agreed launches it has; what its lanes wait in; its threads that
        # launch, with their names and the cells that started them.
        self._goes = [0] * num_ranks
        self._waits: list[dict[str, Wait]] = [{} for _ in range(num_ranks)]
        self._threads: list[dict[str, tuple[str, int]]] = [{} for _ in range(num_ranks)]

    # ------------------------------------------------------------------ cells

    def arrive(self, rank: int, spec: CellSpec) -> list[Answer]:
        """A rank has a cell, and runs it once it is told to."""
        self.cells.arrive(rank, spec)
        return self._settled()

    def end(self, rank: int, end: End) -> list[Answer]:
        """A rank's main thread has ended its cell, and makes no more launches in it."""
        if (cell := self.cells.running[rank]) is None:
            return self._settled()
        cell.ended[rank] = end
        if end.outcome != "ok":
            self._refuse("died" if end.outcome == DIED else "failed", (rank,), cells=[cell])
        self.cells.running[rank] = None
        if len(cell.ended) == len(cell.spec.ranks):
            odd = odd_ones({one: how.folded for one, how in cell.ended.items()})
            if cell.is_torn:
                cell.refusal = replace(cell.refusal or Refusal("torn"), kind="torn")
            elif cell.refusal is None and odd:
                cell.refusal = self._refusal("uneven", odd, cells=[cell])
            if cell.refusal is not None:
                self.cells.failed.append(cell.spec)
            self._tell("over", cell)
            self.cells.step()
        return self._settled()

    def stop(self, seq: int | None = None) -> list[Answer]:
        """Close a cell, or don't run it; None: all that run, and every launch that waits."""
        if seq is None:
            self._refuse("stopped", waits=self._all_waits(), cells=self._running())
        elif cells := self._running(seq):
            self._refuse("stopped", cells=cells)
        else:
            self.cells.cancel(seq)
        return self._settled()

    # --------------------------------------------------------------- launches

    def hello(self, rank: int, lane: str, name: str, seq: int) -> list[Answer]:
        """A thread that cell ``seq`` has started will launch.

        Args:
          lane: tells it from the rank's other threads.
          name: tells it from threads with other tasks; the same on all ranks.
        """
        if lane not in (MAIN, BASE):
            self._threads[rank][lane] = name, seq
        return []

    def gone(self, rank: int, lane: str) -> list[Answer]:
        """A thread has ended. The control thread's end is the rank's death."""
        if lane == MAIN:  # of a child that has closed what it has of its parent
            return []
        for wait in [*self._waits[rank].values()]:
            if lane in (wait.lane, BASE):
                self._forget(wait)
        self._threads[rank].pop(lane, None)
        if lane == BASE:
            self._threads[rank].clear()
            self.cells.dead.add(rank)
            self.cells.step()
            return self.end(rank, End(DIED))
        return self._settled()

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
          folded: hashes the launches of these processes that XLA has refused to this thread; of
            the main thread also those in the cell that waited for nobody.
          now: the time, in seconds; for status and reports alone.
        """
        name, seq = self._task(rank, lane)
        covered, cell = 0, self.cells.running[rank]
        if lane == MAIN and cell is not None and cell.covers(program):
            covered = seq
        if (closed := self._closed.get(seq)) is not None:
            return [Answer("refuse", rank, lane, refusal=closed)]
        if program.meets_all:
            covered, name = 0, ANY
        is_alike = covered or name not in (MAIN, ANY)
        key = Key(program, given, folded if is_alike else 0, covered, name)
        group = self._groups.setdefault(key, {})
        group[rank] = self._waits[rank][lane] = wait = Wait(rank, lane, key, place, seq, now)
        if len(group) == len(program.processes):
            return self._agreed(group, wait)
        return self._settled() if self._is_doubtful(wait) else []

    def unmade(self, rank: int, lane: str, processes: tuple[int, ...]) -> list[Answer]:
        """XLA has refused a thread's agreed launch of these: those that are silent are in it."""
        task = *self._task(rank, lane), processes
        refused = self._unmade.setdefault(task, set())
        refused.add(rank)
        if len(refused) == len(processes):  # an error of the program's
            del self._unmade[task]
        return []

    def withdraw(self, rank: int, lane: str) -> list[Answer]:
        """Something raised in a wait. It is refused, unless ``go`` is on its way.

        Leaving closes the cell: the next launch might look like this one, and would not be. A
        rendezvous has its name, so leaving one closes nothing.
        """
        if (wait := self._waits[rank].get(lane)) is not None:
            self._refuse("left", (rank,), [wait])
        return self._settled()

    @property
    def patience_s(self) -> float | None:
        """How long ranks may say nothing until ``tick`` is called; None for ever."""
        return TICK_S if self.is_certain else SILENT_S if self._unmade else None

    def tick(self) -> list[Answer]:
        """The ranks have had their time."""
        if self.is_certain:
            return self._settled(is_patient=False)
        for (name, _, processes), refused in self._unmade.items():
            others = {*processes} - refused - self.cells.dead
            if name == MAIN:  # one that announces another launch is not in it
                others = {r for r in others if MAIN not in self._waits[r] and self._cells_of([r])}
            cells = self._cells_of(processes) if others else []
            for cell in cells:  # closed for another reason already, or now
                cell.refusal = cell.refusal and replace(cell.refusal, kind="torn")
            if cells:
                self._refuse("torn", refused, cells=cells)
        self._unmade.clear()
        return self._settled()

    def look(self, now: float, launches: int = 0) -> Looked:
        """Who waits for whom, and the last agreed launches."""
        waits = [
            Waiting(*wait[:2], wait.seq, wait.key.program.name, wait.place, wait.since, missing)
            for key in self._groups
            for missing in [self._missing(key)]
            for wait in self._groups[key].values()
        ]
        first = max(0, len(self.agreed) - launches)
        running = [None if cell is None else cell.spec.seq for cell in self.cells.running]
        return Looked(now, waits, [*self.agreed][first:], running)

    # ------------------------------------------------------------------ deciding

    def _agreed(self, group: Group, last: Wait) -> list[Answer]:
        """All have announced it, ``last`` as the last one."""
        program, place, now = last.key.program, last.place, last.since
        del self._groups[last.key]
        self._number += 1
        waits = list(group.values())
        late_s = now - waits[-2].since if len(waits) > 1 else 0.0
        told = self._number, last.seq, program.name, place, now, last.rank, late_s
        self.agreed.append(AgreedLaunch(*told))
        answers: list[Answer] = []
        for rank, lane, *_ in waits:
            del self._waits[rank][lane]
            self._goes[rank] = number = self._goes[rank] + 1
            answers.append(Answer("go", rank, lane, number if self._threads[rank] else 0))
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

    def _settled(self, is_patient: bool = True) -> list[Answer]:
        """Refuse what can't be agreed any more; the answers that have come together."""
        self.is_certain = False
        while (lost := self._lost()) and (verdict := self._verdict(lost, is_patient)):
            self._refuse(*verdict)
        answers = [*self._answers]
        self._answers.clear()
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
        idle = [rank for rank in needed if MAIN not in self._waits[rank]]
        if is_patient and any(running[rank] for rank in idle):
            self.is_certain = True
            return None
        for key in lost:
            group = self._groups[key]
            if ended := self._ended_without(key):
                return "ended", ended if len(group) >= len(ended) else group, [*group.values()]
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
        if self.cells.running[rank] is not None or MAIN in self._waits[rank]:
            return self._may_go_on(rank, alive)
        cell = self.cells.next_of(rank)
        return is_open if cell is None else all(self._may_go_on(r, alive) for r in cell.spec.ranks)

    def _may_go_on(self, rank: int, alive: set[Key]) -> bool:
        """Whether a rank's main thread works, or what it waits for may come."""
        wait = self._waits[rank].get(MAIN)
        return wait is None or wait.key in alive

    def _ended_without(self, key: Key) -> set[int]:
        """The ranks that a main thread's launch needs, and that have ended the cell without it."""
        cells = self._cells_of(self._groups[key]) if key.name == MAIN else []
        return {rank for cell in cells for rank in cell.ended}.intersection(self._missing(key))

    def _missing(self, key: Key) -> list[int]:
        group = self._groups[key]
        return [rank for rank in key.program.processes if rank not in group]

    # -------------------------------------------------------------------- refusing

    def _refuse(
        self,
        kind: Kind,
        causes: Iterable[int] = (),
        waits: Sequence[Wait] = (),
        cells: Sequence[Cell] = (),
    ) -> None:
        """Close these cells and those of these launches, and refuse what waits in them.

        From then on nothing is launched in them, nor by threads that they have started.
        """
        refusal = self._refusal(kind, causes, waits, cells)
        seqs = {cell.spec.seq for cell in cells}
        seqs.update(w.seq for w in waits if kind != "left" or not w.key.program.meets_all)
        for seq in sorted(seqs - {0} - self._closed.keys()):
            self._closed[seq] = refusal
            if len(self._closed) > REMEMBERED:
                del self._closed[next(iter(self._closed))]
            for cell in self._running(seq):
                cell.refusal = refusal
                self._tell("closed", cell)
        lanes = {wait[:2] for wait in waits}
        for wait in self._all_waits():
            if wait[:2] in lanes or wait.seq in self._closed:
                self._forget(wait)
                self._answers.append(Answer("refuse", wait.rank, wait.lane, refusal=refusal))

    def _refusal(
        self,
        kind: Kind,
        causes: Iterable[int],
        waits: Sequence[Wait] = (),
        cells: Sequence[Cell] = (),
    ) -> Refusal:
        """A refusal, with what all ranks of these launches and cells do."""
        cells = [*cells, *(cell for wait in waits for cell in self._running(wait.seq))]
        ranks = {rank for cell in cells for rank in cell.spec.ranks}
        known = {rank: self._waits[rank][MAIN] for rank in ranks if MAIN in self._waits[rank]}
        known.update((wait.rank, wait) for wait in waits)
        ranks.update(rank for wait in known.values() for rank in wait.key.program.processes)
        left = {*causes} if kind == "left" else ()
        doing = [self._doing(rank, known.get(rank), cells, rank in left) for rank in sorted(ranks)]
        mixed = (
            cell.mixed(known[rank].key.program)
            for rank in sorted(known)
            for cell in self._running(known[rank].seq)
        )
        told = next(filter(None, mixed), ()) if kind in ("ended", "differs", "circle") else ()
        return Refusal(kind, tuple(sorted({*causes})), grouped(doing), *told)

    def _doing(self, rank: int, wait: Wait | None, cells: Sequence[Cell], is_left: bool) -> Doing:
        """The rank's launch now, or its last one in a cell that it has ended."""
        if rank in self.cells.dead:
            return Doing((rank,), "died")
        if (wait := wait or self._waits[rank].get(MAIN)) is not None:
            program = wait.key.program
            told = program.name, program.signature, wait.place, program.fingerprint, wait.key.given
            return Doing((rank,), "left" if is_left else "waits", *told)
        how = next((cell.ended[rank].outcome for cell in cells if rank in cell.ended), None)
        if how is None:
            return Doing((rank,), "idle" if self.cells.running[rank] is None else "works")
        if how == "ok":
            return Doing((rank,), "ended")
        return Doing((rank,), "failed", "" if how in ("error", FAILED_IN_XLA) else how)

    # -------------------------------------------------------------------- helpers

    def _task(self, rank: int, lane: str) -> tuple[str, int]:
        """A thread's name, and the cell that it launches for; 0 for none."""
        if lane != MAIN:
            return self._threads[rank].get(lane, (lane, 0))
        cell = self.cells.running[rank]
        return MAIN, 0 if cell is None else cell.spec.seq

    def _cells_of(self, ranks: Iterable[int]) -> list[Cell]:
        """The cells that these ranks are in."""
        found = dict.fromkeys(self.cells.running[rank] for rank in ranks)
        return [cell for cell in found if cell is not None]

    def _running(self, seq: int | None = None) -> list[Cell]:
        """The cell of this number, if it runs; None: all that run."""
        cells = self._cells_of(range(len(self._goes)))
        return [cell for cell in cells if seq in (None, cell.spec.seq)]

    def _tell(self, word: str, cell: Cell) -> None:
        """Answer each living rank of a cell; the first of them tells the notebook."""
        living = [rank for rank in cell.spec.ranks if rank not in self.cells.dead]
        told = BASE, cell.spec.seq, cell.refusal, None
        self._answers += [Answer(word, rank, *told, rank == living[0]) for rank in living]

    def _all_waits(self) -> list[Wait]:
        return [wait for group in self._groups.values() for wait in group.values()]

    def _forget(self, wait: Wait) -> None:
        del self._waits[wait.rank][wait.lane]
        group = self._groups[wait.key]
        del group[wait.rank]
        if not group:
            del self._groups[wait.key]


def _minority(groups: Sequence[Group]) -> list[int]:
    """The ranks that are alone with their program; all of them if that is not clear."""
    sizes = sorted(len(group) for group in groups)
    is_clear = sizes[-1] > sizes[-2]
    return [rank for group in groups if not is_clear or len(group) < sizes[-1] for rank in group]
