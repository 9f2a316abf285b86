"""Decides which launches are made. Pure: what a rank says comes in, answers go out.

No program that spans processes is launched before all of its processes have announced the same
one. The first refusal closes the cell: nothing more is launched in it on any of its ranks. The code
can't change that by catching the exception. So all ranks have always made the same launches.

A launch is refused only if it is certain that it can't be agreed. Otherwise it waits, and
``Referee.look`` says for whom.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from jaxcluster.agreement.messages import (
    BASE,
    DIED,
    FAILED_IN_XLA,
    MAIN,
    NOWHERE,
    STUCK,
    AgreedLaunch,
    CellSpec,
    Doing,
    End,
    Hashes,
    Kind,
    Looked,
    Place,
    Program,
    Refusal,
    Skipped,
    Waiting,
)

ANY = "*"  # the name of a lane in a rendezvous that all may meet in
REMEMBERED = 1024  # closed cells
LAUNCHES = 256  # agreed ones that are shown, and of a cell
MOST_TOLD = 8  # different actions of ranks; of more, only the kind
TICK_S = 0.05  # that other ranks have to announce theirs, once a refusal is certain
SILENT_S = 5.0  # that ranks have to say something after XLA refused their launch elsewhere


def unheard(word: str, *arguments: object) -> None:
    """Tell nobody."""


@dataclass(eq=False, slots=True)
class Lane:
    """A thread of a rank that launches, or its control thread.

    Attributes:
      name: tells it from threads with other tasks; the same on all ranks.
      seq: the cell that it runs, or that has started it; 0 for none.
      tell: says a word with its arguments to it.
      place, since: where and when it has announced its last launch.
      group: it waits with these for the others that this launch needs; ``NOBODY`` otherwise.
    """

    rank: int
    name: str
    seq: int = 0
    tell: Callable[..., None] = unheard
    place: Place = NOWHERE
    since: float = 0.0
    group: Group = field(default_factory=lambda: NOBODY)

    @property
    def waits(self) -> bool:
        """Whether it has announced a launch, and has no answer."""
        return self.group is not NOBODY


@dataclass(eq=False, slots=True)
class Group:
    """Threads whose announcements agree, and that wait for those of other ranks.

    ``seq`` is their cell, or 0 if it does not cover the program; ``name`` that of their lanes.
    ``lanes`` has them by rank, in the order in which they came.
    """

    program: Program
    given: int
    folded: int
    seq: int
    name: str
    lanes: dict[int, Lane] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Program, int, int, int, str]:
        """The common part of the announcements."""
        return self.program, self.given, self.folded, self.seq, self.name

    @property
    def missing(self) -> list[int]:
        """The ranks that they wait for."""
        return [rank for rank in self.program.processes if rank not in self.lanes]


NOBODY: Group = Group(Program((), 0), 0, 0, 0, "")


@dataclass(eq=False)
class Cell:
    """A cell on its way through the ranks.

    Attributes:
      ended: the ranks on which it has ended.
      launched: the last agreed launches of its main threads, with their places.
    """

    spec: CellSpec
    arrived: set[int] = field(default_factory=set)
    ended: dict[int, End] = field(default_factory=dict)
    refusal: Refusal | None = None
    launched: deque[tuple[Program, Place]] = field(default_factory=lambda: deque(maxlen=LAUNCHES))
    covered: dict[Program, int] = field(default_factory=dict)

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
        living = {rank: end.unmade for rank, end in self.ended.items() if end.outcome != DIED}
        return bool(odd_ones(living))

    def cover(self, program: Program) -> int:
        """Its ``seq`` if all processes of a program run it, or 0; ``covered`` has that then."""
        is_covered = {*self.spec.ranks}.issuperset(program.processes)
        return self.covered.setdefault(program, self.spec.seq if is_covered else 0)

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


class Referee:
    """Hears the ranks of one cluster, and tells their threads what an event brings.

    Attributes:
      dead: the ranks that have died.
      agreed: the last agreed launches.
      is_certain: a refusal is certain, but what others announce in a moment shows who is alone
        with what it does.
    """

    def __init__(self, num_ranks: int) -> None:
        self.dead: set[int] = set()
        self.agreed: deque[AgreedLaunch] = deque(maxlen=LAUNCHES)
        self.is_certain = False
        # By seq: cells that wait, that have not ended on all ranks, and that are closed.
        self._queue: dict[int, Cell] = {}
        self._running: dict[int, Cell] = {}
        self._closed: dict[int, Cell] = {}  # threads may outlive their cell
        self._groups: dict[tuple[Program, int, int, int, str], Group] = {}
        # By a lane's name, cell and processes: the ranks on which XLA has refused such a launch.
        self._unmade: dict[tuple[str, int, tuple[int, ...]], set[int]] = {}
        self._number = 0  # of agreed launches
        # By rank: how many agreed launches it has, and its threads.
        self._goes = [0] * num_ranks
        self._mains = [Lane(rank, MAIN) for rank in range(num_ranks)]
        self._bases = [Lane(rank, BASE) for rank in range(num_ranks)]
        self._others = [set[Lane]() for _ in range(num_ranks)]

    # ------------------------------------------------------------------ threads

    def hello(self, rank: int, name: str, seq: int, tell: Callable[..., None]) -> Lane:
        """A thread that cell ``seq`` has started will launch, or a rank has come: see ``Lane``."""
        if name in (MAIN, BASE):
            lane = (self._mains if name == MAIN else self._bases)[rank]
        else:
            lane = Lane(rank, name, seq)
            self._others[rank].add(lane)
        lane.tell = tell
        return lane

    def gone(self, me: Lane) -> None:
        """A thread has ended. The control thread's end is the rank's death."""
        if me.name == MAIN:  # of a child that has closed what it has of its parent
            return
        if me.name == BASE:
            self.dead.add(me.rank)
            for lane in (self._mains[me.rank], *self._others[me.rank]):
                self._forget(lane)
            self.end(me, End(DIED))
            return
        self._others[me.rank].discard(me)
        self._forget(me)
        self._settle()

    # ------------------------------------------------------------------ cells

    def arrive(self, me: Lane, spec: CellSpec) -> None:
        """A rank has received a cell, and waits for its turn."""
        self._queue.setdefault(spec.seq, Cell(spec)).arrived.add(me.rank)
        self._settle()

    def end(self, me: Lane, end: End) -> None:
        """A rank's main thread has ended its cell, and makes no more launches in it."""
        main = self._mains[me.rank]
        if (cell := self._running.get(main.seq)) is not None:
            cell.ended[me.rank] = end
            if end.outcome != "ok":
                how: Kind = "died" if end.outcome == DIED else "failed"
                self._refuse(how, (me.rank,), seqs=[main.seq])
            if cell.is_over:
                uneven = odd_ones({rank: one.folded for rank, one in cell.ended.items()})
                odd = uneven or odd_ones({rank: one.given for rank, one in cell.ended.items()})
                if cell.is_torn:
                    cell.refusal = replace(cell.refusal or Refusal("torn"), kind="torn")
                elif cell.refusal is None and odd:
                    kind: Kind = "uneven" if uneven else "unequal"
                    cell.refusal = self._refusal(kind, odd, seqs=[main.seq])
                if cell.refusal is not None:
                    self._closed[main.seq] = cell
                del self._running[main.seq]
                self._tell("over", cell)
            main.seq = 0
        self._settle()

    def stop(self, seq: int | None) -> None:
        """Close a cell, or don't run it; None: all that run, and every launch that waits."""
        waits = self._waits() if seq is None else []
        self._refuse("stopped", (), waits, self._running if seq is None else [seq])
        self._settle()

    # --------------------------------------------------------------- launches

    def launch(
        self,
        me: Lane,
        program: Program,
        given: int = 0,
        folded: int = 0,
        place: Place = NOWHERE,
        now: float = 0.0,
    ) -> None:
        """A thread is about to launch a program, and waits for the answer.

        Args:
          given: hashes what the host gives to the launch, and to those that did not wait before.
          folded: hashes launches that no wait would show. They are the main thread's of these
            processes in the cell without collectives, and the thread's that XLA has refused.
          now: the time, in seconds; for status and reports alone.
        """
        if me.rank in self.dead:
            return
        if (closed := self._closed.get(me.seq)) is not None:
            me.tell("refuse", closed.refusal)
            return
        name = ANY if program.meets_all else me.name
        cell = self._running.get(me.seq) if name == MAIN else None
        covered = 0
        if cell is not None and (covered := cell.covered.get(program, -1)) < 0:
            covered = cell.cover(program)
        is_alike = covered or name not in (MAIN, ANY)
        agreeing = program, given, folded if is_alike else 0, covered, name
        if (group := self._groups.get(agreeing)) is None:
            group = self._groups[agreeing] = Group(*agreeing)
        me.group, me.place, me.since = group, place, now
        lanes = group.lanes
        lanes[me.rank] = me
        if len(lanes) == len(program.processes):
            self._agree(group, me)
            return
        # Whether this may be one that can't be agreed, or make others so.
        has_rivals = len(self._groups) > 1 and sum(key[-1] == MAIN for key in self._groups) > 1
        if has_rivals or (cell is not None and (cell.ended or not covered)) or self.dead:
            self._settle()

    def unmade(self, me: Lane, processes: tuple[int, ...]) -> None:
        """XLA has refused a thread's last agreed launch: ranks that are silent are in it."""
        if me.rank not in self.dead:
            task = me.name, me.seq, processes
            refused = self._unmade.setdefault(task, set())
            refused.add(me.rank)
            if len(refused) == len(processes):  # an error of the program's
                del self._unmade[task]

    def withdraw(self, me: Lane) -> None:
        """Something raised in a wait. It is refused, unless ``go`` is on its way.

        Leaving closes the cell: the next launch might look like this one, and would not be. A
        rendezvous has its name, so leaving one closes nothing.
        """
        if me.waits:
            self._refuse("left", (me.rank,), [me])
        self._settle()

    @property
    def patience_s(self) -> float | None:
        """How long ranks may say nothing until ``tick`` is called; None for ever."""
        return TICK_S if self.is_certain else SILENT_S if self._unmade else None

    def tick(self) -> None:
        """The ranks have had their time."""
        if self.is_certain:
            self._settle(is_patient=False)
            return
        for (name, _, processes), refused in self._unmade.items():
            mains = [self._mains[r] for r in processes if r not in refused | self.dead]
            # One that announces another launch is not in it.
            if all(name == MAIN and (main.waits or not main.seq) for main in mains):
                continue
            seqs = {self._mains[rank].seq for rank in processes} - {0}
            for cell in (self._running[seq] for seq in seqs):  # closed for another reason, or now
                cell.refusal = cell.refusal and replace(cell.refusal, kind="torn")
            self._refuse("torn", refused, seqs=seqs)
        self._unmade.clear()
        self._settle()

    def look(self, now: float, launches: int = 0) -> Looked:
        """Who waits for whom, and the last agreed launches."""
        waits = [
            Waiting(one.rank, one.name, one.seq, group.program.name, one.place, one.since, missing)
            for group in self._groups.values()
            for missing in [group.missing]
            for one in group.lanes.values()
        ]
        first = max(0, len(self.agreed) - launches)
        known = [base.rank for base in self._bases if base.tell is not unheard]
        connected = [rank for rank in known if rank not in self.dead]
        return Looked(now, waits, [*self.agreed][first:], connected)

    # ------------------------------------------------------------------ the queue of cells

    def _begin_cells(self) -> None:
        """Skip cells that must not run any more, and begin cells that can begin.

        A cell begins on all of its ranks at the same time. Before that all of them must have it and
        be idle, and no earlier cell may need one of them.
        """
        blocked: set[tuple[str | None, int]] = set()  # for cells of this notebook, None: of any
        for seq, cell in sorted(self._queue.items()):
            spec = cell.spec
            if (why := self._why_skip(spec)) is not None:
                del self._queue[seq]
                for rank in cell.arrived:
                    self._bases[rank].tell("skip", seq, why)
                continue
            is_next = blocked.isdisjoint((who, r) for r in spec.ranks for who in (spec.owner, None))
            is_next = is_next and len(cell.arrived) == len(spec.ranks)
            if not is_next or any(self._mains[rank].seq for rank in spec.ranks):
                who = None if is_next else spec.owner
                blocked.update((who, rank) for rank in spec.ranks)
                continue
            self._running[seq] = self._queue.pop(seq)
            for rank in spec.ranks:
                self._mains[rank].seq = seq
                self._bases[rank].tell("run", seq)

    def _why_skip(self, spec: CellSpec) -> Skipped | None:
        if spec.seq in self._closed:
            return Skipped()
        if dead := self.dead.intersection(spec.ranks):
            return Skipped(dead=min(dead))
        for cell in self._closed.values() if spec.is_skippable else ():
            failed = cell.spec
            if cell.is_over and failed.owner == spec.owner and spec.seen < failed.seq < spec.seq:
                return Skipped(after=failed.seq)
        return None

    def next_of(self, rank: int) -> Cell | None:
        """The next cell of a rank; one that not all of its ranks have comes last."""
        mine = [cell for _, cell in sorted(self._queue.items()) if rank in cell.spec.ranks]
        return min(mine, key=lambda cell: len(cell.arrived) < len(cell.spec.ranks), default=None)

    # ------------------------------------------------------------------ deciding

    def _agree(self, group: Group, last: Lane) -> None:
        """All have announced it, ``last`` as the last one."""
        program, place, now = group.program, last.place, last.since
        del self._groups[group.key]
        lanes = list(group.lanes.values())
        late_s = now - lanes[-2].since if len(lanes) > 1 else 0.0
        self._number += 1
        told = self._number, last.seq, program.name, place, now, last.rank, late_s
        self.agreed.append(AgreedLaunch(*told))
        if group.name == MAIN:
            for seq in (group.seq,) if group.seq else {lane.seq for lane in lanes} - {0}:
                self._running[seq].launched.append((program, place))
        goes, others = self._goes, self._others
        for lane in lanes:
            rank, lane.group = lane.rank, NOBODY
            goes[rank] = number = goes[rank] + 1
            lane.tell("go", number if others[rank] else 0)

    def _settle(self, is_patient: bool = True) -> None:
        """Begin what can begin, and refuse what can't be agreed any more."""
        self._begin_cells()
        self.is_certain = False
        while (lost := self._lost()) and (verdict := self._verdict(lost, is_patient)):
            self._refuse(*verdict)

    def _lost(self) -> list[Group]:
        """The launches that can't be agreed: all but a least fixpoint."""
        lost, alive = [*self._groups.values()], set[Group]()
        while found := [group for group in lost if self._may_fill(group, alive)]:
            alive.update(found)
            lost = [group for group in lost if group not in alive]
        return lost

    def _may_fill(self, group: Group, alive: set[Group]) -> bool:
        """Whether all ranks that are missing may still announce this."""
        missing = group.missing
        if group.name != MAIN or not self.dead.isdisjoint(missing):
            return self.dead.isdisjoint(missing)  # to a thread's launch others may still come
        if self._ended_without(group):
            return False
        cells = [self._running.get(lane.seq) for lane in group.lanes.values()]
        is_open = any(cell is None or not cell.spec.is_foreground for cell in cells)
        for rank in missing:
            needed: Sequence[int] = (rank,)
            if not (self._mains[rank].seq or self._mains[rank].waits):
                if (queued := self.next_of(rank)) is not None:
                    needed = queued.spec.ranks
                elif not is_open:  # no more cells are sent to it
                    return False
            mains = [self._mains[one] for one in needed]
            if any(main.waits and main.group not in alive for main in mains):
                return False
        return True

    def _verdict(
        self, lost: Sequence[Group], is_patient: bool
    ) -> tuple[Kind, Iterable[int], list[Lane]] | None:
        """Why some of these launches can't be agreed, who is the cause, and which are refused.

        None if ranks that are needed still work, and may announce something in a moment.
        """
        for group in lost:
            if dead := self.dead.intersection(group.missing):
                return "died", dead, [*group.lanes.values()]
        needed = {rank for group in lost for rank in group.program.processes}
        idle = [self._mains[rank] for rank in needed if not self._mains[rank].waits]
        if is_patient and any(main.seq for main in idle):
            self.is_certain = True
            return None
        for group in lost:
            if ended := self._ended_without(group):
                lanes = group.lanes
                return "ended", ended if len(lanes) >= len(ended) else lanes, [*lanes.values()]
        for group in lost:
            processes = group.program.processes
            rivals = [one.lanes for one in lost if one.program.processes == processes]
            if len(rivals) > 1:
                return "differs", _minority(rivals), [one for g in rivals for one in g.values()]
        waiting = [rank for group in lost for rank in group.lanes]
        kind: Kind = "circle" if all(main.seq for main in idle) else "idle"
        return kind, waiting, [*lost[0].lanes.values()]

    def _ended_without(self, group: Group) -> set[int]:
        """The ranks that a main thread's launch needs, and that have ended the cell without it."""
        seqs = {lane.seq for lane in group.lanes.values()} if group.name == MAIN else set()
        ended = {rank for seq in seqs - {0} for rank in self._running[seq].ended}
        return ended.intersection(group.missing)

    # -------------------------------------------------------------------- refusing

    def _refuse(
        self,
        kind: Kind,
        causes: Iterable[int] = (),
        lanes: Collection[Lane] = (),
        seqs: Iterable[int] = (),
    ) -> None:
        """Close these cells and those of these launches, and refuse what waits in them.

        From then on nothing is launched in them, nor by threads that they have started.
        """
        closed = {*seqs, *(one.seq for one in lanes if kind != "left" or one.group.name != ANY)}
        refusal = self._refusal(kind, causes, lanes, closed)
        for seq in sorted(closed - {0} - self._closed.keys()):
            cell = self._closed[seq] = self._running.get(seq) or Cell(CellSpec(seq, ()))
            cell.refusal = refusal
            self._tell("closed", cell)
            if len(self._closed) > REMEMBERED:
                del self._closed[next(iter(self._closed))]
        for lane in self._waits():
            if lane in lanes or lane.seq in self._closed:
                self._forget(lane)
                lane.tell("refuse", refusal)

    def _refusal(
        self,
        kind: Kind,
        causes: Iterable[int],
        lanes: Iterable[Lane] = (),
        seqs: Iterable[int] = (),
    ) -> Refusal:
        """A refusal, with what all ranks of these launches and cells do."""
        seqs = {*seqs, *(lane.seq for lane in lanes)} & self._running.keys()
        cells = [self._running[seq] for seq in sorted(seqs)]
        known = {rank: self._mains[rank] for cell in cells for rank in cell.spec.ranks}
        known.update((lane.rank, lane) for lane in lanes)
        awaited = {rank for lane in known.values() for rank in lane.group.program.processes}
        shown = {rank: self._mains[rank] for rank in awaited} | known
        left = {*causes} if kind == "left" else ()
        groups: dict[Doing, list[int]] = {}  # what ranks did, and which
        for rank in sorted(shown):
            doing = self._doing(shown[rank], cells, rank in left)
            if doing not in groups and len(groups) >= MOST_TOLD:
                doing = replace(doing, name="", signature="", place=NOWHERE)
            groups.setdefault(doing, []).append(rank)
        told = tuple(replace(doing, ranks=tuple(ranks)) for doing, ranks in groups.items())
        mixed = (
            self._running[known[rank].seq].mixed(known[rank].group.program)
            for rank in sorted(known)
            if known[rank].seq in self._running
        )
        since = next(filter(None, mixed), ()) if kind in ("ended", "differs", "circle") else ()
        return Refusal(kind, tuple(sorted({*causes})), told, *since)

    def _doing(self, lane: Lane, cells: Sequence[Cell], is_left: bool) -> Doing:
        """The rank's launch now, or how it has ended a cell; without the rank."""
        program, given = lane.group.program, lane.group.given
        if lane.rank in self.dead:
            return Doing((), "died")
        if lane.waits:
            told = program.name, program.signature, lane.place, program.fingerprint, given
            return Doing((), "left" if is_left else "waits", *told)
        how = next((cell.ended[lane.rank].outcome for cell in cells if lane.rank in cell.ended), "")
        if not how:
            return Doing((), "works" if lane.seq else "idle")
        if how == "ok":
            return Doing((), "ended")
        return Doing((), "failed", "" if how in ("error", FAILED_IN_XLA) else how)

    # -------------------------------------------------------------------- helpers

    def _tell(self, word: str, cell: Cell) -> None:
        """Tell each living rank of a cell; the first of them tells the notebook."""
        living = [rank for rank in cell.spec.ranks if rank not in self.dead]
        for rank in living:
            self._bases[rank].tell(word, cell.spec.seq, cell.refusal, rank == living[0])

    def _waits(self) -> list[Lane]:
        return [lane for group in self._groups.values() for lane in group.lanes.values()]

    def _forget(self, lane: Lane) -> None:
        """Its announcement is no more."""
        if lane.waits:
            del lane.group.lanes[lane.rank]
            if not lane.group.lanes:
                del self._groups[lane.group.key]
        lane.group = NOBODY


def odd_ones(hashes: dict[int, Hashes]) -> tuple[int, ...]:
    """The ranks, of those with such hashes, whose hashes are not those of the most."""
    for processes in {processes for of_rank in hashes.values() for processes in of_rank}:
        found = {r: hashes[r].get(processes, 0) for r in sorted(hashes.keys() & {*processes})}
        counts = Counter(found.values())
        # Among groups of equal size, ranks that have launched nothing are the odd ones.
        most = max(counts, key=lambda value: (counts[value], value != 0))
        if odd := tuple(rank for rank, value in found.items() if value != most):
            return odd
    return ()


def _minority(groups: Sequence[Collection[int]]) -> list[int]:
    """The ranks that are alone with their program; all of them if that is not clear."""
    sizes = sorted(len(group) for group in groups)
    is_clear = sizes[-1] > sizes[-2]
    return [rank for group in groups if not is_clear or len(group) < sizes[-1] for rank in group]
