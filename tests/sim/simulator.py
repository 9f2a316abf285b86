"""Random programs of ranks against the referee. The simulator knows the truth.

A schedule is a seed: it makes cells for a few ranks, perhaps with one fault, and picks at random
which rank, thread or message moves next. ``Schedule.check`` holds what came of it against the
properties.

``python -m sim.simulator FIRST COUNT`` plays schedules and prints those that break one.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxcluster.agreement import referee as core
from jaxcluster.agreement.messages import CellSpec, End, Place, Program, Refusal, Waiting

MOST_STEPS = 20_000
FOLDS = 4  # each so many launches without collectives are announced; 64 on real ranks
# Faults of one rank's main flow, and what else may come.
MISTAKES = (
    "skip",
    "other",
    "extra",
    "swap",
    "given",
    "fail",
    "skip fold",
    "extra fold",
    "given fold",
)
MISHAPS = ("die", "stop", "alarm", "unmade", "unmade on all", "cancel", "pool", "interrupt all")


class Broken(AssertionError):
    """A schedule has broken a property."""


@dataclass(frozen=True)
class Op:
    """A step of a program. Equal ``truth`` on all ranks: the same turn of the same loop."""

    kind: str  # launch, fold, meet (a rendezvous), fail
    processes: tuple[int, ...] = ()
    fingerprint: int = 0
    given: int = 0
    truth: int = 0


class Answer(NamedTuple):
    """What the referee has told a thread of a rank; ``why`` is a ``Refusal`` or a ``Skipped``."""

    rank: int
    lane: str
    word: str
    number: int = 0
    why: Any = None
    tells: bool = False


@dataclass
class SimCell:
    """A cell: for each rank the steps of its main flow and of its threads."""

    spec: CellSpec
    steps: dict[int, list[Op]]
    threads: dict[str, dict[int, list[Op]]]
    is_endless: bool = False
    is_waited_for: bool = True


@dataclass
class Lane:
    """A thread of a rank. ``state``: runs, waits, granted, stuck."""

    name: str
    seq: int
    steps: list[Op]
    at: int = 0
    state: str = "runs"
    count: int = 0  # of its last agreed launch among those of its rank, and
    number: int = 0  # ... among all
    folds: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    op: Op | None = None
    raises: bool = False  # after the launch, or in place of it
    unmade: dict[tuple[int, ...], int] = field(default_factory=dict)
    given: dict[tuple[int, ...], int] = field(default_factory=dict)  # to folds, and not yet told

    def hash_of(self, processes: tuple[int, ...]) -> int:
        folds = self.folds if self.name == core.MAIN else {}
        return folds.get(processes, [0, 0])[1] ^ self.unmade.get(processes, 0)


@dataclass
class SimRank:
    rank: int
    is_alive: bool = True
    lanes: dict[str, Lane] = field(default_factory=dict)
    made: dict[int, Op] = field(default_factory=dict)  # by the number among all launches
    order: list[int] = field(default_factory=list)
    goes: int = 0  # launches that were agreed
    taken: int = 0  # ... that were made, or refused by XLA
    spoiled: set[int] = field(default_factory=set)  # numbers that XLA has refused here
    out: dict[str, deque[tuple[Any, ...]]] = field(default_factory=dict)  # by connection
    inbox: dict[str, deque[Answer]] = field(default_factory=dict)
    cells: list[int] = field(default_factory=list)  # that it has run, in order
    folded: dict[int, dict[tuple[int, ...], list[int]]] = field(default_factory=dict)

    def say(self, connection: str, *event: Any) -> None:
        self.out.setdefault(connection, deque()).append(event)


class Notebook:
    """Sends its cells to each rank on a link of its own, and hears how they end."""

    def __init__(self, name: str, cells: list[SimCell]) -> None:
        self.name, self.cells, self.at, self.seen = name, cells, 0, 0
        self.links: dict[int, deque[CellSpec]] = {}
        self.waits_for = 0
        self.over: dict[int, Refusal | None] = {}
        self.skipped: set[int] = set()


class Schedule:
    """One run, from its seed to its end."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.fault = self.rng.choice(("none", "none", *MISTAKES[:-1], *MISHAPS))
        if self.fault == "given" and seed % 2:
            self.fault = MISTAKES[-1]
        self.guilty: int | None = None
        self.num_ranks = self.rng.randint(2, 4)
        self.meets = self.rng.random() < 0.2
        self.programs: dict[tuple[tuple[int, ...], int], Program] = {}
        self.truth = 0
        self.cells: dict[int, SimCell] = {}
        self.notebooks = [Notebook(name, []) for name in ("n1", "n2")[: self.rng.choice((1, 1, 2))]]
        self.make_cells()
        self.catches = self.fault not in ("none", "pool") and self.rng.random() < 0.3
        self.ranks = [SimRank(rank) for rank in range(self.num_ranks)]
        self.referee = core.Referee(self.num_ranks)
        self.heard: list[Answer] = []  # since it was last asked something
        self.known: dict[tuple[int, str], core.Lane] = {}
        for rank in range(self.num_ranks):
            self.hello(rank, core.MAIN, 0)
            self.hello(rank, core.BASE, 0)
        self.number = 0  # of agreed launches
        self.granted: dict[int, tuple[Program, int, str]] = {}  # number -> program, seq, lane
        self.closed: dict[int, Refusal] = {}
        self.decided: dict[int, Refusal | None] = {}
        self.left: set[int] = set()  # cells in which a main flow has left a wait
        self.troubled: set[int] = set()  # cells that a rank has left or failed in
        self.stopped: set[int] = set()  # cells that somebody has stopped or cancelled
        self.awaited: set[int] = set()  # torn launches of threads that a main flow waits for
        self.refusals: list[tuple[int, str, Refusal]] = []
        self.skips: dict[int, dict[int, bool]] = {}  # seq -> rank -> whether it was run
        self.is_struck = False
        self.strikes_at = self.rng.randint(3, 60)
        self.ticks = 0

    # -------------------------------------------------------------- making programs

    def new_truth(self) -> int:
        self.truth += 1
        return self.truth

    def make_cells(self) -> None:
        rng, everyone = self.rng, tuple(range(self.num_ranks))
        few = rng.random() < 0.6  # few programs: equal ones are frequent
        has_threads = self.fault == "pool" or rng.random() < 0.25
        for seq in range(1, rng.randint(1, 3) + 1):
            notebook = rng.choice(self.notebooks)
            ranks = everyone
            if self.num_ranks > 2 and rng.random() < 0.2:
                ranks = tuple(sorted(rng.sample(everyone, rng.randint(1, self.num_ranks - 1))))
            cell = SimCell(CellSpec(seq, ranks, notebook.name), {r: [] for r in ranks}, {})
            body = list(self.make_ops(ranks, few, rng.randint(0, 6)))
            if rng.random() < 0.3:  # a loop: later turns launch what earlier ones did
                turns = [body[:2]] * rng.randint(2, 4)
                body = [
                    Op(o.kind, o.processes, o.fingerprint, o.given, self.new_truth())
                    for turn in turns
                    for o in turn
                ]
            for op in body:
                for rank in op.processes:
                    cell.steps[rank].append(op)
            if has_threads:
                names = ["loader", "writer"] if self.fault != "pool" else ["pool#1", "pool#2"]
                for name in names[: rng.randint(1, 2)]:
                    steps = list(self.make_ops(ranks, few, rng.randint(1, 3), 50))
                    cell.threads[name] = {r: [o for o in steps if r in o.processes] for r in ranks}
            cell.is_endless = self.fault in ("stop", "interrupt all") and rng.random() < 0.7
            cell.is_waited_for = rng.random() < 0.6
            self.cells[seq] = cell
            notebook.cells.append(cell)
        if self.fault == "none" and self.num_ranks > 2 and rng.random() < 0.3:
            self.cross()
        if self.fault in MISTAKES:
            self.spoil()
        if self.fault == "pool":
            self.shuffle_pools()

    def cross(self) -> None:
        """Two cells of other ranks meet in a program of all, on purpose."""
        rng, everyone = self.rng, tuple(range(self.num_ranks))
        middle = rng.randint(1, self.num_ranks - 1)
        met = Op("launch", everyone, 77, 0, self.new_truth())
        for ranks in (everyone[:middle], everyone[middle:]):
            notebook, seq = rng.choice(self.notebooks), len(self.cells) + 1
            body = list(self.make_ops(ranks, True, rng.randint(0, 2)))
            body.insert(rng.randint(0, len(body)), met)
            steps = {r: [o for o in body if r in o.processes] for r in ranks}
            cell = SimCell(CellSpec(seq, ranks, notebook.name), steps, {})
            cell.is_waited_for = rng.random() < 0.3
            self.cells[seq] = cell
            notebook.cells.append(cell)

    def make_ops(
        self, ranks: tuple[int, ...], few: bool, count: int, base: int = 0
    ) -> Iterator[Op]:
        rng = self.rng
        for _ in range(count):
            processes = ranks
            if len(ranks) > 2 and rng.random() < 0.4:
                processes = tuple(sorted(rng.sample(ranks, rng.randint(2, len(ranks)))))
            if len(processes) < 2:
                continue
            truth = self.new_truth()
            fingerprint = base + (rng.randint(1, 2) if few else truth)
            kind = "fold" if rng.random() < 0.3 else "launch"
            fingerprint += 100 * (kind == "fold")
            if self.meets and rng.random() < 0.3:
                kind, fingerprint = "meet", 1000 + truth
            yield Op(kind, processes, fingerprint, 0, truth)

    def spoil(self) -> None:
        """Put one mistake into the main flow of one rank; none where there is no place for it."""
        rng, kind = self.rng, "fold" if "fold" in self.fault else "launch"
        places = [
            (cell, rank, at)
            for cell in self.cells.values()
            for rank, steps in cell.steps.items()
            for at, op in enumerate(steps)
            if op.kind == kind
        ]
        if not places:
            self.fault = "none"
            return
        cell, rank, at = rng.choice(places)
        steps = cell.steps[rank]
        op = steps[at]
        self.guilty = rank
        match self.fault:
            case "skip" | "skip fold":
                del steps[at]
            case "other":
                steps[at] = Op("launch", op.processes, 99, op.given, self.new_truth())
            case "extra" | "extra fold":
                steps.insert(at, Op(kind, op.processes, 98 + 100 * (kind == "fold"), 0, -1))
            case "given" | "given fold":
                steps[at] = Op(kind, op.processes, op.fingerprint, 7, self.new_truth())
            case "fail":
                steps[at:] = [Op("fail")]
            case "swap":
                others = [
                    i
                    for i in range(at + 1, len(steps))
                    if steps[i].kind == "launch" and steps[i].processes == op.processes
                    and steps[i].fingerprint != op.fingerprint
                ]  # fmt: skip
                if not others:
                    self.fault, self.guilty = "none", None
                    return
                steps[at], steps[others[0]] = steps[others[0]], op

    def shuffle_pools(self) -> None:
        """Workers of a pool take the tasks in another order on each rank."""
        for cell in self.cells.values():
            if len(cell.threads) == 2:
                first, second = cell.threads.values()
                for rank in cell.spec.ranks:
                    if self.rng.random() < 0.5:
                        first[rank], second[rank] = second[rank], first[rank]

    def program(self, op: Op) -> Program:
        key = op.processes, op.fingerprint
        made = Program(*key, name=f"p{key}", meets_all=op.kind == "meet")
        return self.programs.setdefault(key, made)

    # ---------------------------------------------------------------------- playing

    def play(self) -> Schedule:
        """Move until nothing moves any more; then interrupt what waits for cells to come."""
        is_freed = False
        for step in range(MOST_STEPS):
            if step >= self.strikes_at and not self.is_struck:
                self.strike()
            moves = list(self.moves())
            patience_s = self.referee.patience_s
            if patience_s and (not moves or (patience_s < 1 and self.rng.random() < 0.05)):
                self.ticks += 1
                self.referee.tick()
                self.hear()
                continue
            if not moves:
                if is_freed and not self.waits():
                    return self
                is_freed = True
                self.check_told()
                if self.fault in ("stop", "cancel", "interrupt all") and not self.is_struck:
                    self.is_struck = True
                self.referee.stop(None)
                self.hear()
                continue
            self.rng.choice(moves)()
        raise Broken("endless")

    def moves(self) -> Iterator[Callable[[], None]]:
        for notebook in self.notebooks:
            yield from self.moves_of_notebook(notebook)
        for rank in self.ranks:
            if not rank.is_alive:
                continue
            for connection, waiting in rank.out.items():
                if waiting:
                    yield lambda r=rank, c=connection: self.deliver(r, c)
            for connection, answers in rank.inbox.items():
                if answers:
                    yield lambda r=rank, c=connection: self.answer(r, r.inbox[c].popleft())
            for name, lane in rank.lanes.items():
                if lane.state == "runs" and not self.joins(rank, lane):
                    yield lambda r=rank, n=name, one=lane: self.go_on(r, n, one)
                elif lane.state == "granted" and rank.taken == lane.count - 1:
                    yield lambda r=rank, n=name, one=lane: self.make(r, n, one)

    def moves_of_notebook(self, notebook: Notebook) -> Iterator[Callable[[], None]]:
        if notebook.at < len(notebook.cells) and notebook.waits_for in (0, *notebook.over):
            yield lambda: self.send(notebook)
        for rank, link in notebook.links.items():
            if link:
                yield lambda r=rank, one=link: self.arrive(r, one.popleft())

    def send(self, notebook: Notebook) -> None:
        cell = notebook.cells[notebook.at]
        earlier = notebook.cells[: notebook.at]
        notebook.at += 1
        is_foreground = cell.is_waited_for and all(
            one.spec.seq in {*notebook.over, *notebook.skipped} for one in earlier
        )
        spec = CellSpec(cell.spec.seq, cell.spec.ranks, notebook.name, notebook.seen, is_foreground)
        notebook.waits_for = cell.spec.seq if cell.is_waited_for else 0
        cell.spec = spec
        for rank in spec.ranks:
            notebook.links.setdefault(rank, deque()).append(spec)

    def arrive(self, rank: int, spec: CellSpec) -> None:
        if self.ranks[rank].is_alive:
            self.ranks[rank].say("base", "arrive", spec)
        else:
            self.notebook_of(spec.seq).over[spec.seq] = None
            self.notebook_of(spec.seq).skipped.add(spec.seq)

    def notebook_of(self, seq: int) -> Notebook:
        owner = self.cells[seq].spec.owner
        return next(one for one in self.notebooks if one.name == owner)

    def hello(self, rank: int, lane: str, seq: int) -> None:
        tell = functools.partial(self.tell, rank, lane)
        self.known[rank, lane] = self.referee.hello(rank, lane, seq, tell)

    def deliver(self, rank: SimRank, connection: str) -> None:
        name, *args = rank.out[connection].popleft()
        lane = core.MAIN if connection == "main" else connection
        if name == "hello":
            self.hello(rank.rank, lane, *args)
            return
        me = self.known[rank.rank, lane]
        if name == "launch":
            op, given, folded = args
            self.referee.launch(me, self.program(op), given, folded, Place(1, op.truth))
        else:
            getattr(self.referee, name)(me, *args)
        self.hear()

    def tell(self, rank: int, lane: str, word: str, *told: Any) -> None:
        answer = (0, *told) if word == "refuse" else told
        self.heard.append(Answer(rank, lane, word, *answer))

    def hear(self) -> None:
        """What the referee says is on its way to the ranks."""
        answers, self.heard = self.heard, []
        goes = [one for one in answers if one.word == "go"]
        self.number += bool(goes)
        number, agreed = self.number, set[int]()
        for go in goes:
            rank = self.ranks[go.rank]
            lane = rank.lanes.get(go.lane)
            if lane is None or lane.state != "waits" or lane.op is None:
                raise Broken(f"P1 go for a lane that does not wait: {go}")
            rank.goes += 1
            lane.count, lane.number = rank.goes, number
            if go.number not in (0, rank.goes):
                raise Broken("P1 a launch of another number")
            program = self.program(lane.op)
            told = self.granted.setdefault(number, (program, lane.seq, lane.name))
            if told[0] is not program:
                raise Broken("P1 one number for two programs")
            agreed.add(go.rank)
            if lane.seq in self.closed or (lane.name == core.MAIN and lane.seq in self.left):
                raise Broken("P8 a launch is agreed in a closed cell")
        for answer in answers:
            seq, why = answer.number, answer.why
            if self.is_left(answer):
                lane = self.ranks[answer.rank].lanes[core.MAIN]
                if lane.op is not None and lane.op.kind != "meet":
                    self.left.add(lane.seq)
            if answer.word == "over":
                mains = [r.lanes.get(core.MAIN) for r in self.ranks if r.is_alive]
                if any(main is not None and main.seq == seq for main in mains):
                    raise Broken("P7 a cell is over before its end")
                self.decided[seq] = why
            if answer.word == "run":
                spec = self.cells[seq].spec
                for before, refusal in self.decided.items():
                    is_own = self.cells[before].spec.owner == spec.owner
                    if refusal is not None and is_own and spec.seen < before < spec.seq:
                        raise Broken("P7 a cell is run after one that failed")
            if answer.word == "closed" and why is not None:
                self.closed.setdefault(seq, why)
                if why.kind == "idle" and not self.is_idle_certain():
                    raise Broken("P2 a launch was refused that others may come to")
            if answer.word == "skip" and why.after:
                spec, failed = self.cells[seq].spec, self.decided[why.after]
                if failed is None or not spec.seen < why.after < seq:
                    raise Broken("P7 a cell is skipped after one that is none of its reasons")
            if answer.word == "skip" and self.skips.setdefault(seq, {}).setdefault(
                answer.rank, False
            ):
                raise Broken("P7 a cell is skipped that was run")
            connection = answer.lane or "main"
            self.ranks[answer.rank].inbox.setdefault(connection, deque()).append(answer)
        if goes and agreed != {*self.granted[number][0].processes}:
            raise Broken(f"P1 go for some ranks of a program: {agreed}")

    def is_idle_certain(self) -> bool:
        """Whether a cell that would launch with others may be kept from coming."""
        ranks = range(self.num_ranks)
        running = any(spec.is_foreground for spec in self.running() if spec)
        return running or any(self.referee.next_of(rank) for rank in ranks)

    def running(self) -> list[CellSpec | None]:
        """For each rank the cell that it is in."""
        mains = [self.known[rank, core.MAIN] for rank in range(self.num_ranks)]
        return [self.cells[main.seq].spec if main.seq else None for main in mains]

    def is_left(self, answer: Answer) -> bool:
        """Whether a main thread has left its wait."""
        why = answer.why if answer.word == "refuse" else None
        is_left = why is not None and why.kind == "left" and answer.rank in why.causes
        return is_left and answer.lane == core.MAIN

    def answer(self, rank: SimRank, answer: Answer) -> None:
        seq = answer.number
        match answer.word:
            case "go":
                lane = rank.lanes[answer.lane]
                lane.state = "granted"
                if not answer.number and rank.taken != lane.count - 1:
                    raise Broken("P1 another thread's launch comes first")
            case "refuse":
                self.refusals.append((rank.rank, answer.lane, answer.why))
                self.raise_in(rank, answer.lane, rank.lanes[answer.lane], self.is_left(answer))
            case "run":
                if self.skips.setdefault(seq, {}).setdefault(rank.rank, True) is False:
                    raise Broken("P7 a cell is run that was skipped")
                rank.cells.append(seq)
                cell = self.cells[seq]
                steps = list(cell.steps[rank.rank])
                rank.lanes[core.MAIN] = Lane(core.MAIN, seq, steps)
                for name, of in cell.threads.items():
                    lane = f"{name}.{seq}"
                    rank.lanes[lane] = Lane(lane, seq, list(of[rank.rank]))
                    rank.say(lane, "hello", seq)
            case "skip":
                notebook = self.notebook_of(seq)
                notebook.skipped.add(seq)
                notebook.over.setdefault(seq, None)
                notebook.seen = max(notebook.seen, seq)
            case "over" if answer.tells:
                notebook = self.notebook_of(seq)
                notebook.over[seq] = answer.why
                notebook.seen = max(notebook.seen, seq)

    def go_on(self, rank: SimRank, name: str, lane: Lane) -> None:
        """A thread does its next step."""
        if lane.raises:
            lane.raises = False
            self.fail(rank, name, lane, "error")
            return
        cell = self.cells[lane.seq]
        if lane.at == len(lane.steps) and cell.is_endless and lane.name == core.MAIN and lane.steps:
            lane.at = 0
        if lane.at == len(lane.steps):
            self.end(rank, name, lane, "ok")
            return
        op = lane.steps[lane.at]
        lane.at += 1
        if op.kind == "fail":
            self.fail(rank, name, lane, "error")
            return
        if op.kind == "fold":
            count, value = lane.folds.get(op.processes, [0, 0])
            lane.folds[op.processes] = [count + 1, hash((value, op.fingerprint))]
            if lane.name == core.MAIN:
                rank.folded.setdefault(lane.seq, {}).setdefault(op.processes, []).append(op.truth)
                lane.given[op.processes] = lane.given.get(op.processes, 0) * 3 + op.given
            if (count + 1) % FOLDS:
                return
        lane.state, lane.op = "waits", op
        told = lane.given.pop(op.processes, 0) or op.given
        rank.say(name or "main", "launch", op, told, lane.hash_of(op.processes))

    def make(self, rank: SimRank, name: str, lane: Lane) -> None:
        """Launch what was agreed; or XLA refuses it here."""
        number = lane.number
        assert lane.op is not None
        rank.taken += 1
        lane.state = "runs"
        if self.is_unmade(rank, number):
            before = lane.unmade.get(lane.op.processes, 0)
            lane.unmade[lane.op.processes] = hash((before, lane.op.fingerprint))
            rank.say(name or "main", "unmade", lane.op.processes)
            rank.spoiled.add(number)
            self.fail(rank, name, lane, "error")
            return
        rank.made[number] = lane.op
        rank.order.append(number)
        if self.fault == "unmade" and number == 2 and name != core.MAIN:
            lane.state = "stuck"
            main = rank.lanes.get(core.MAIN)
            if main is not None and main.seq == lane.seq:
                self.awaited.add(number)

    def joins(self, rank: SimRank, main: Lane) -> bool:
        """Whether a main flow waits for a thread of its cell that XLA does not let go."""
        return (
            main.name == core.MAIN
            and main.at == len(main.steps)
            and main.seq not in self.closed  # or it is interrupted
            and any(one.state == "stuck" and one.seq == main.seq for one in rank.lanes.values())
        )

    def is_unmade(self, rank: SimRank, number: int) -> bool:
        if self.fault == "unmade on all" and number == 2:
            return True
        if self.fault == "unmade" and number == 2 and len(self.granted[number][0].processes) > 1:
            return rank.rank == max(self.granted[number][0].processes)
        return False

    def raise_in(self, rank: SimRank, name: str, lane: Lane, withdrawn: bool) -> None:
        lane.state, lane.raises = "runs", False
        if withdrawn and name == core.MAIN and lane.op is not None and lane.op.kind != "meet":
            self.troubled.add(lane.seq)
        self.fail(rank, name, lane, "withdrawn" if withdrawn else "refused")

    def fail(self, rank: SimRank, name: str, lane: Lane, how: str) -> None:
        """An exception: it ends the flow, or the code catches it and goes on."""
        if self.catches and self.rng.random() < 0.7:
            return
        self.end(rank, name, lane, how)

    def end(self, rank: SimRank, name: str, lane: Lane, how: str) -> None:
        if name == core.MAIN:
            if how != "ok":
                self.troubled.add(lane.seq)
            folded = {processes: value for processes, (_, value) in lane.folds.items()}
            rank.say("main", "end", End(how, "", folded, lane.unmade, lane.given))
        else:
            rank.say(name, "gone")
        del rank.lanes[name]

    def strike(self) -> None:
        """The mishap comes, if it can now."""
        rng = self.rng
        running = [(r, lane) for r in self.ranks for lane in r.lanes.values() if r.is_alive]
        match self.fault:
            case "die":
                rank = rng.choice(self.ranks)
                self.guilty, rank.is_alive = rank.rank, False
                if rng.random() < 0.5:
                    for connection, waiting in rank.out.items():
                        while waiting:
                            self.deliver(rank, connection)
                rank.lanes.clear()
                rank.inbox.clear()
                self.referee.gone(self.known[rank.rank, core.BASE])
                self.hear()
            case "stop" | "cancel":
                seqs = [lane.seq for _, lane in running if lane.name == core.MAIN]
                if self.fault == "cancel":
                    seqs = [seq for seq in self.cells if seq not in self.skips]
                if not seqs:
                    return
                seq = rng.choice(seqs)
                self.stopped.add(seq)
                self.referee.stop(seq)
                self.hear()
            case "interrupt all":
                if not running:
                    return
                self.referee.stop(None)
                self.hear()
                if any(spec and spec.seq not in self.closed for spec in self.running()):
                    raise Broken("P6 a stop has left a cell open")
                self.strikes_at += rng.randint(5, 40)
                for cell in self.cells.values():  # what begins later has an end
                    if cell.spec.seq not in self.skips:
                        cell.is_endless = False
                return
            case "alarm":
                waiting = [(r, lane) for r, lane in running if lane.state == "waits"]
                if not waiting:
                    return
                rank, lane = rng.choice(waiting)
                self.guilty, lane.raises = rank.rank, True
                rank.say(lane.name or "main", "withdraw")
        self.is_struck = True
        if self.fault in ("stop", "cancel"):
            for cell in self.cells.values():  # one is stopped, so the others have an end
                if cell.spec.seq != seq:
                    cell.is_endless = False

    # --------------------------------------------------------------------- checking

    def waits(self) -> list[Waiting]:
        return self.referee.look(0.0).waits

    def check_told(self) -> None:
        """P3: when nothing can move, only who may yet be joined waits."""
        waits = self.waits()
        meetings = {one.name for one in self.programs.values() if one.meets_all}
        if any(wait.name in meetings for wait in waits):
            return  # another thread may come to it, so it is shown and can be stopped
        is_joined = any(self.may_be_joined(wait) for wait in waits)
        for wait in waits:
            spec = self.running()[wait.rank]
            is_open = spec is not None and not spec.is_foreground
            if wait.lane == core.MAIN and not (is_open and is_joined):
                raise Broken(f"P3 rank {wait.rank} waits for {wait.missing}, and is not told")

    def may_be_joined(self, wait: Waiting) -> bool:
        """Whether a rank that is awaited runs no cell, and may get one that launches this."""
        running = self.running()
        spec = running[wait.rank]
        return (
            spec is not None
            and not spec.is_foreground
            and any(running[r] is None and r not in spec.ranks for r in wait.missing)
        )

    def check(self) -> None:
        """All properties, once nothing moves."""
        self.check_launches()
        self.check_order()
        self.check_cells()
        self.check_refusals()
        self.check_mixed()

    def check_mixed(self) -> None:
        """P1: whoever is told of different turns is told since which launch."""
        if self.fault == "pool":
            return
        for seq, refusal in self.closed.items():
            if refusal.kind not in ("ended", "differs", "circle"):
                continue
            names = {one.name for one in refusal.doing if one.does == "waits"}
            for processes in {p.processes for p in self.programs.values() if p.name in names}:
                mixed = [
                    len({r.made[number].truth for r in self.ranks if number in r.made}) > 1
                    for number, (program, of, lane) in sorted(self.granted.items())
                    if of == seq and program.processes == processes and lane == core.MAIN
                    and not self.is_fold(program)
                ]  # fmt: skip
                if True in mixed and len(mixed) - mixed.index(True) > refusal.mixed_launches:
                    raise Broken(f"P1 launches are mixed, and not told: {mixed} {refusal}")

    def is_fold(self, program: Program) -> bool:
        """Whether a program without collectives: its announcement says what came before it."""
        return 100 < program.fingerprint % 1000 < 200

    def check_launches(self) -> None:
        """P1, P5: what one rank of a set has launched all of it have, in one order."""
        for number, (program, seq, lane) in self.granted.items():
            made = {r.rank: r.made[number] for r in self.ranks if number in r.made}
            living = [r for r in program.processes if self.ranks[r].is_alive]
            refused = {r.rank for r in self.ranks if number in r.spoiled}
            lacks = [r for r in living if r not in made and r not in refused]
            if lacks:
                raise Broken(f"P1 ranks {lacks} did not launch {number}")
            if len({(op.processes, op.fingerprint, op.given) for op in made.values()}) > 1:
                raise Broken("P1 different programs")
            is_mixed = len({op.truth for op in made.values()}) > 1
            if is_mixed and self.fault in ("none", "stop", "cancel", "die"):
                raise Broken("P2 turns of a correct program met others")
            if is_mixed and self.fault != "pool" and self.outcome(seq) == "ok":
                raise Broken("P1 different turns met, and the cell is ok")
            over = self.notebook_of(seq).over
            is_torn = seq not in over or ((why := over[seq]) is not None and why.kind == "torn")
            if made and refused and (lane == core.MAIN or number in self.awaited) and not is_torn:
                raise Broken("P1 a launch was made on some ranks alone, and nobody says so")

    def outcome(self, seq: int) -> str:
        over = self.notebook_of(seq).over
        if seq not in over:
            return "open"
        return "ok" if over[seq] is None else "error"

    def check_order(self) -> None:
        """P1: two ranks make the launches that they share in one order; P7: and cells."""
        for one in self.ranks:
            for other in self.ranks[one.rank + 1 :]:
                if not (one.is_alive and other.is_alive):
                    continue
                shared = one.made.keys() & other.made.keys()
                orders = [[n for n in r.order if n in shared] for r in (one, other)]
                if orders[0] != orders[1]:
                    raise Broken("P1 another order of launches")
                pair = {one.rank, other.rank}
                both = [
                    [seq for seq in r.cells if pair.issubset(self.cells[seq].spec.ranks)]
                    for r in (one, other)
                ]
                if both[0] != both[1]:
                    raise Broken(f"P7 another order of cells: {both}")

    def check_cells(self) -> None:
        """P7: a cell runs on all of its ranks or on none; P9: what is ok is equal."""
        for seq, cell in self.cells.items():
            ran = {r for r, was in self.skips.get(seq, {}).items() if was}
            living = {r for r in cell.spec.ranks if self.ranks[r].is_alive}
            if ran and self.fault != "die" and ran != {*cell.spec.ranks}:
                raise Broken("P7 a cell was run on some ranks")
            if any(lane.seq == seq and n == core.MAIN for r in self.ranks if r.is_alive
                   for n, lane in r.lanes.items()):  # fmt: skip
                raise Broken("P3 a cell is not over, though all was interrupted")
            if self.outcome(seq) != "ok" or not ran:
                continue
            for processes in {p for r in living for p in self.ranks[r].folded.get(seq, {})}:
                found = [self.ranks[r].folded.get(seq, {}).get(processes, [])
                         for r in processes if r in living]  # fmt: skip
                programs = [len(one) for one in found]
                if len({*programs}) > 1:
                    raise Broken("P9 launches without collectives differ, and the cell is ok")
            if seq in self.stopped:
                raise Broken("P6 a cell was stopped, and is ok")
        for notebook in self.notebooks:
            for cell in notebook.cells[: notebook.at]:
                living = {r for r in cell.spec.ranks if self.ranks[r].is_alive}
                if living - self.skips.get(cell.spec.seq, {}).keys():
                    raise Broken("P3 a cell is neither run nor skipped")
            for earlier, later in zip(notebook.cells, notebook.cells[1:], strict=False):
                shared = {*earlier.spec.ranks} & {*later.spec.ranks}
                for rank in shared:
                    cells = self.ranks[rank].cells
                    seqs = [s for s in (earlier.spec.seq, later.spec.seq) if s in cells]
                    if sorted(seqs, key=cells.index) != seqs:
                        raise Broken("P7 a notebook's cells ran in another order")

    def check_refusals(self) -> None:
        """P2: a correct program is not refused; P4: who is named did it."""
        for seq in self.troubled:
            if self.outcome(seq) == "ok":
                raise Broken("P1 a rank has left or failed, and the cell is ok")
        if self.fault == "unmade on all":
            torn = [r for r in [*self.closed.values(), *self.decided.values()] if r is not None]
            if any(r.kind == "torn" for r in torn):
                raise Broken("P2 what XLA has refused on all ranks is torn")
        told = [r for _, _, r in self.refusals] + [*self.closed.values()]
        if self.fault in ("none", "pool"):
            wrong = [r for r in told if r.kind not in ("stopped", "idle")]
            if wrong:
                raise Broken(f"P2 a correct program was refused: {wrong[0]}")
        if self.fault in ("stop", "cancel", "interrupt all"):
            wrong = [r for r in told if r.kind not in ("stopped", "idle", "failed")]
            if wrong:
                raise Broken(f"P2 a stopped program was refused: {wrong[0]}")
        if self.fault in MISTAKES and self.closed and not self.is_mixed():
            first = next(iter(self.closed.values()))
            if first.kind in ("stopped", "idle"):
                return
            waiting = [rank for one in first.doing if one.does == "waits" for rank in one.ranks]
            is_even = first.kind == "ended" and (
                len(waiting) == len(first.causes) or "fold" in self.fault
            )
            if self.guilty not in first.causes and not (is_even and self.guilty in waiting):
                raise Broken(f"P4 rank {self.guilty} ({self.fault}) is not named: {first}")

    def is_mixed(self) -> bool:
        return any(
            len({r.made[number].truth for r in self.ranks if number in r.made}) > 1
            for number in self.granted
        )


def play(seed: int) -> Schedule:
    """Play a schedule and check it.

    Raises:
      Broken: it breaks a property.
    """
    schedule = Schedule(seed)
    schedule.play()
    schedule.check()
    return schedule


def main(first: int, count: int) -> int:
    broken: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            play(seed)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            broken[what[:60]] += 1
            if broken[what[:60]] <= 3:
                print(seed, what[:140])
    print(f"{count} schedules from {first}: {sum(broken.values())} broken {dict(broken)}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
