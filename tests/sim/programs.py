"""What simulated users write: cells for all ranks, and mistakes in them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Launch:
    """A program of the ranks ``where``; ``meant`` is the place in the source that was meant."""

    where: str
    program: int
    meant: Any
    name: str
    inputs: tuple[str, ...] = ()
    is_refused: bool = False  # by XLA, on this rank: it raises, and launches nothing
    is_cut: bool = False  # a signal's handler raises at the first bytecode after it


@dataclass(frozen=True)
class Print:
    name: str


@dataclass(frozen=True)
class Set:
    name: str
    what: Any


@dataclass(frozen=True)
class Sleep:
    seconds: float
    awaits: bool = False


@dataclass(frozen=True)
class Raise:
    pass


@dataclass(frozen=True)
class Catch:
    """``try: steps``, which hears errors, or the stop button (``except KeyboardInterrupt``)."""

    steps: tuple[Step, ...]
    of_stop: bool = False


@dataclass(frozen=True)
class Repeat:
    """A loop."""

    times: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Thread:
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Late:
    """A timer: these steps on the main thread, when it is free."""

    seconds: float
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Join:
    """Wait until this rank's threads, tasks and timers have done what they were to do."""


Step = Launch | Print | Set | Sleep | Raise | Catch | Repeat | Thread | Late | Join


@dataclass(frozen=True)
class Program:
    """One cell: what each of its ranks does."""

    number: int
    client: int
    steps: Mapping[int, tuple[Step, ...]]
    queued: bool  # the client does not wait for it before it sends the next
    stop_at: float | None = None
    timeout_s: float | None = None
    pause_s: float = 0.0  # before it is sent
    interrupt_at: float | None = None  # by the other notebook, whatever the ranks run then
    act: tuple[str, str] | None = None  # no cell, but what ``acts`` do, and with which name

    @functools.cached_property
    def is_stopped(self) -> bool:
        return any(at is not None for at in (self.stop_at, self.timeout_s, self.interrupt_at))

    @property
    def ranks(self) -> list[int]:
        return sorted(self.steps)

    def of(self, rank: int) -> tuple[Step, ...]:
        return self.steps.get(rank, ())

    @functools.cached_property
    def source(self) -> str:
        names = sorted({name for steps in self.steps.values() for name in names_in(steps)})
        bound = " = ".join([*names, "0"])
        return f"{bound} # {self.number}"


@dataclass(frozen=True)
class Own:
    """A rank's own value, of which it can tell no other process what it is."""

    number: int
    rank: int


@dataclass(frozen=True)
class Losses:
    """What is lost of a cluster, whose ranks are then given new processes by the real code.

    Attributes:
      hosts: the host of each rank; (): all are on one machine, without an agent.
      deaths: when a "rank" or a "host" is lost, and which.
    """

    hosts: tuple[int, ...] = ()
    deaths: tuple[tuple[float, str, int], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """All of it. ``fault`` is what was put in; "" in a program that is right."""

    seed: int
    num_ranks: int
    inline: bool
    programs: tuple[Program, ...]
    fault: str = ""
    guilty: frozenset[tuple[int, int]] = frozenset()  # (cell, rank)
    death: tuple[float, int] | None = None
    lateness: float = 0.02  # how often a message is late
    is_strict: bool = False
    losses: Losses | None = None
    leaves_at: float | None = None  # a notebook's process ends
    leaver: int = 1  # which one's; a third one, with programs of client 2, comes then
    cut_off: float = 0.0  # how often a cell is seconds on its way to a rank
    is_tuned: bool = False  # ranks wait for each other in the compiler, as on GPU
    donates: bool = False  # launches take what their results' names were bound to
    is_raised_early: bool = False  # a stop comes between a launch and the name of what it gives

    def tell(self) -> str:
        lines = [f"seed {self.seed}, {'one device' if self.inline else 'several devices'} a rank, "
                 f"fault {self.fault or 'none'}, guilty {sorted(self.guilty)}, "
                 f"death {self.death}, lateness {self.lateness}, "
                 f"strict {self.is_strict}, {self.leaver} leaves {self.leaves_at}, "
                 f"cut off {self.cut_off}, tuned {self.is_tuned}, donates {self.donates}, "
                 f"raised early {self.is_raised_early}"]  # fmt: skip
        lines += [str(self.losses)] * (self.losses is not None)
        for p in self.programs:
            if p.act is not None:
                lines.append(f"act {p.number}, client {p.client}, after {p.pause_s}: {p.act}")
                continue
            mode = "queued" if p.queued else "waited for"
            lines.append(f"cell {p.number}, client {p.client}, {mode}, stop at {p.stop_at}, "
                         f"timeout {p.timeout_s}, interrupt at {p.interrupt_at}")  # fmt: skip
            lines += [f"    rank {rank}: {list(steps)}" for rank, steps in p.steps.items()]
        return "\n".join(lines)


# Of a schedule, and the steps of a cell. One cell alone shows little. With two, a second of search
# shows as much as with three or four, and of most holes more; but some schedules are long.
NUM_CELLS, NUM_STEPS = (1, 2, 2, 2, 2, 2, 2, 3), (1, 1, 2, 2, 3)
LONG, LONG_CELLS, LONG_STEPS = 0.04, (3, 4, 5, 6), (1, 2, 4, 6)
SLEEPS_S = (0, 0, 0, 0, 0.01, 0.5, 0.5, 1.5)
PAUSES_S = (0.0, 0.0, 0.05, 0.4, 1.5)
FAULTS = ("skip", "extra", "shift", "other", "swap", "raise", "caught", "refused", "partial")


class Writer:
    """Writes one schedule by chance.

    How often something happens differs from schedule to schedule: some holes show only where much
    of one kind comes together, as all cells queued and one of them stopped.
    """

    def __init__(self, chance: random.Random, num_ranks: int = 3) -> None:
        self.chance, self.num_ranks = chance, num_ranks
        self.sets: Sequence[str] = ("0,1,2", "0,1,2", "0,1")
        self.queued = self.pick([0.2, 0.6, 1.0])
        self.others = self.pick([0.0, 0.2, 0.5])  # of the other notebook
        self.stopped = self.pick([0.05, 0.3, 0.6])
        self.empty = self.pick([0.0, 0.0, 0.4])
        self.lateness = self.pick([0.02, 0.02, 0.3])
        self.is_long = chance.random() < LONG

    def pick(self, among: Sequence[T]) -> T:
        """As ``choice`` of ``random.Random``, which takes five times as long."""
        return among[int(len(among) * self.chance.random())]

    def schedule(self, seed: int, faults: Sequence[str], with_life: bool = True) -> Schedule:
        chance, fault = self.chance, self.pick(faults)
        programs = self.programs(with_life, bool(fault))
        is_inline = chance.random() < 0.5
        made = Schedule(seed, self.num_ranks, is_inline, programs, lateness=self.lateness)
        made = replace(made, is_strict=with_life and chance.random() < 0.15)
        if with_life and chance.random() < 0.15:
            made = self.harmless(made)
        if fault:
            made = self.spoil(made, fault)
        is_stopped = any(p.is_stopped for p in programs)
        if with_life and not is_stopped and chance.random() < self.stopped:
            made = self.stop(made)
        # Not by the same chance: what was found before is found again.
        more = random.Random(~seed).random
        made = replace(made, is_tuned=more() < 0.1)
        made = replace(made, donates=more() < 0.3, is_raised_early=more() < 0.2)
        return self.cut(made) if with_life and not made.fault and more() < 0.05 else made

    def programs(self, with_life: bool, with_launch: bool) -> tuple[Program, ...]:
        """What the cells of a notebook are to do, ``with_launch`` so that a mistake can be made."""
        kind = self.chance.random() if with_life else 1.0
        if kind < 0.15:
            return self.beside_cells()
        if kind < 0.2:
            return self.endless()
        numbers = range(1, self.pick(LONG_CELLS if self.is_long else NUM_CELLS) + 1)
        while True:
            made = tuple(self.cell(number, with_life) for number in numbers)
            if not with_launch or any(_launches(program) for program in made):
                return made

    def beside_cells(self) -> tuple[Program, ...]:
        """A thread, or a timer, that launches beside cells which launch nothing, and its end.

        Each rank takes its own time, so it launches in one cell here and in another one there.
        """
        chance = self.chance
        made = [
            Launch(self.sets[0], self.pick([1, 2]), (1, index), "t")
            for index in range(chance.randint(1, 3))
        ]
        is_thread = chance.random() < 0.6

        def begin(rank: int) -> tuple[Step, ...]:
            slow = self.pick([0.0, 0.2, 1.5, 3.0])
            if is_thread:
                steps: list[Step] = [Sleep(slow)]
                for launch in made:
                    steps += [launch, Sleep(self.pick([0.01, 0.4]))]
                return (Thread(tuple(steps)),)
            return (Late(0.05 + slow, tuple(made)),)

        ranks = range(self.num_ranks)
        programs = [Program(1, 0, {r: begin(r) for r in ranks}, chance.random() < 0.6)]
        for number in range(2, chance.randint(2, 4)):
            idle = {r: (Sleep(self.pick([0.01, 0.7]), True), Set("p", number)) for r in ranks}
            programs.append(Program(number, 0, idle, chance.random() < 0.6))
        last = self.launch((9, 0))
        ending: tuple[Step, ...] = (Join(), last, Print(last.name), Print("t"))
        each = {r: tuple(step for step in ending if _is_of(step, r)) for r in ranks}
        return (*programs, Program(9, 0, each, False))

    def endless(self) -> tuple[Program, ...]:
        """A loop that somebody interrupts, and what comes after it."""
        chance = self.chance
        steps: list[Step] = [self.launch((1, index)) for index in range(chance.randint(1, 2))]
        steps.insert(chance.randint(0, len(steps)), Sleep(0.1))
        if chance.random() < 0.5:
            steps += [Print(step.name) for step in steps if isinstance(step, Launch)]
        each = {
            rank: (Repeat(200, tuple(step for step in steps if _is_of(step, rank))),)
            for rank in range(self.num_ranks)
        }
        loop = Program(1, 0, each, chance.random() < self.queued)
        at = chance.uniform(0.1, self.pick([0.6, 0.6, 2.0]))  # each turn costs
        how = self.pick(["stop_at", "timeout_s", "interrupt_at", "interrupt_at"])
        changed: dict[str, Any] = {how: at}
        after = [self.cell(number, True) for number in range(2, chance.randint(2, 4))]
        return (replace(loop, **changed), *(replace(p, client=0) for p in after))

    def harmless(self, made: Schedule) -> Schedule:
        """What goes wrong in it on one rank is heard, and made good there."""
        chance = self.chance
        at = [(p, *place) for p in made.programs for place in _launches(p)]
        if not at:
            return made
        program, rank, index = self.pick(at)
        launch = program.steps[rank][index]
        assert isinstance(launch, Launch)
        if chance.random() < 0.5:  # refused by XLA there, and made again
            own = list(program.steps[rank])
            own.insert(index, Catch((replace(launch, is_refused=True),)))
            changed = _with(program, rank, own)
        else:  # its own number is not used any more on any rank
            changed = program
            for each, steps in program.steps.items():
                unused: list[Step] = [
                    replace(s, name="x") if isinstance(s, Launch) and s == launch else s
                    for s in steps
                ]
                if each == rank:
                    unused[index] = Catch((replace(launch, name="x", is_cut=True),))
                changed = _with(changed, each, unused)
        return replace(made, programs=tuple(changed if p is program else p for p in made.programs))

    def cell(self, number: int, with_life: bool) -> Program:
        chance = self.chance
        steps: list[Step] = []
        length = self.pick(LONG_STEPS if self.is_long else NUM_STEPS)
        if chance.random() < self.empty:
            length = 0
        for index in range(length):
            steps += self.some_steps((number, index), with_life)
        sleeps = {r: self.pick(SLEEPS_S) for r in range(self.num_ranks)}
        each = {
            r: (*((Sleep(sleeps[r]),) if sleeps[r] else ()), *(s for s in steps if _is_of(s, r)))
            for r in range(self.num_ranks)
        }
        client = 1 if chance.random() < self.others else 0
        return Program(number, client, each, chance.random() < self.queued)

    def some_steps(self, place: tuple[int, int], with_life: bool) -> list[Step]:
        chance = self.chance
        kind = chance.random()
        if kind < 0.7 or not with_life:
            made = self.launch(place)
            printed: list[Step] = [Print(made.name)] if chance.random() < 0.5 else []
            return [made, *printed]
        if kind < 0.8:
            return [Set(self.pick("pq"), place)]
        if kind < 0.9:
            return [Sleep(self.pick([0.01, 0.3]), chance.random() < 0.5)]
        return [Set(self.pick("pq"), place)]

    def launch(self, place: tuple[int, int]) -> Launch:
        chance = self.chance
        where = self.pick(self.sets)
        inputs = (self.pick("abc"),) if chance.random() < 0.5 else ()
        name = self.pick("abc") if where == self.sets[0] else "d"
        inputs = inputs if where == self.sets[0] else ()
        return Launch(where, self.pick([1, 1, 1, 2]), place, name, inputs)

    # ------------------------------------------------------------------ losses

    def lose(self, made: Schedule) -> Schedule:
        """Lose some of the ranks, in the middle of anything."""
        chance = self.chance
        if any(_is_apart(step) for p in made.programs for own in p.steps.values() for step in own):
            return made  # what threads change nobody promises to bring back
        is_one = chance.random() < 0.4  # notebook's
        programs = [
            replace(
                self.with_own(p),
                client=0 if is_one else p.client,
                pause_s=self.pick(PAUSES_S),
            )
            for p in made.programs
        ]
        last = self.launch((8, 0))
        steps = {r: tuple(s for s in (last, Print(last.name)) if _is_of(s, r))
                 for r in range(self.num_ranks)}  # fmt: skip
        programs.append(Program(8, 0, steps, False, pause_s=self.pick(PAUSES_S)))
        hosts = self.pick([(), (), (0, 1, 2), (0, 0, 1), (0, 1, 1)])
        at = chance.uniform(0.1, 1.0 + sum(1 + p.pause_s for p in programs) / 2)
        deaths = [self.loss(at, hosts)]
        if chance.random() < 0.25:
            deaths.append(self.loss(at + chance.uniform(0, self.pick([0.05, 1.0, 4.0])), hosts))
        return replace(made, programs=tuple(programs), losses=Losses(hosts, tuple(deaths)))

    def loss(self, at: float, hosts: tuple[int, ...]) -> tuple[float, str, int]:
        chance = self.chance
        if hosts and chance.random() < 0.5:
            return at, "host", self.pick(hosts)
        return at, "rank", chance.randrange(self.num_ranks)

    def with_own(self, program: Program) -> Program:
        """The program, in which each rank may bind a value of its own, which may be its number."""
        chance = self.chance
        name = self.pick(["o", "h", "n", "", ""])
        if not name:
            return program
        made = {
            "o": lambda rank: (program.number, rank),
            "h": lambda rank: Own(program.number, rank),
            "n": lambda rank: rank,
        }[name]
        each = {}
        at_end = chance.random() < 0.5
        for rank, steps in program.steps.items():
            own = (Set(name, made(rank)),)
            each[rank] = (*steps, *own) if at_end else (*own, *steps)
        return replace(program, steps=each)

    # ------------------------------------------------------------------ mistakes

    def spoil(self, made: Schedule, fault: str) -> Schedule:
        """Put one mistake in, on one rank."""
        chance = self.chance
        at = [
            (p, r, i)
            for p in made.programs
            for r, i in _launches(p)
            if fault != "swap" or _can_swap(p.steps[r], i)
        ]
        if not at:
            return made
        program, rank, index = self.pick(at)
        steps = list(program.steps[rank])
        launch = steps[index]
        assert isinstance(launch, Launch)
        others = list(made.programs)
        guilty = {(program.number, rank)}
        if fault == "skip":
            del steps[index]
        elif fault == "extra":
            steps.insert(index, replace(launch, meant=(program.number, "extra")))
        elif fault == "shift":
            del steps[index]
            later = [p for p in others if p.number > program.number]
            if later:
                target = self.pick(later)
                own = list(target.steps[rank])
                moved = replace(launch, meant=(target.number, "extra"))
                own.insert(chance.randint(0, len(own)), moved)
                others[others.index(target)] = _with(target, rank, own)
                guilty.add((target.number, rank))
        elif fault == "other":
            steps[index] = replace(launch, program=3 - launch.program if launch.program < 3 else 1,
                                   meant=(program.number, "other"))  # fmt: skip
        elif fault == "swap":
            steps[index], steps[index + 1] = steps[index + 1], steps[index]
        elif fault == "raise":
            steps.insert(index, Raise())
        elif fault == "caught":
            steps[index:] = [Catch((Raise(), *steps[index:]))]
        elif fault == "refused":  # by XLA, and the user does not care
            steps[index] = Catch((replace(launch, is_refused=True),))
        elif fault == "partial":  # it is not sent to one of the ranks
            each = {r: s for r, s in program.steps.items() if r != rank}
            others[others.index(program)] = replace(program, steps=each)
            return replace(made, programs=tuple(others), fault=fault, guilty=frozenset(guilty))
        others[[p.number for p in others].index(program.number)] = _with(program, rank, steps)
        return replace(made, programs=tuple(others), fault=fault, guilty=frozenset(guilty))

    def cut(self, made: Schedule) -> Schedule:
        """Have an error keep what a cell launches last from its name, on one rank."""
        at = [(p, *place) for p in made.programs for place in _launches(p)]
        if not at:
            return made
        program, rank, _ = self.pick(at)
        index = max(index for p, r, index in at if (p, r) == (program, rank))
        own = list(program.steps[rank])
        own[index] = replace(own[index], is_cut=True)
        programs = tuple(_with(p, rank, own) if p is program else p for p in made.programs)
        guilty = frozenset({(program.number, rank)})
        return replace(made, programs=programs, fault="cut", guilty=guilty)

    def stop(self, made: Schedule) -> Schedule:
        """The stop button, or a time limit, for one of the cells."""
        chance = self.chance
        program = self.pick(made.programs)
        guilty = [p for p in made.programs if any(p.number == number for number, _ in made.guilty)]
        if guilty and chance.random() < 0.85:
            program = self.pick(guilty)
        at = chance.uniform(0, self.pick([0.1, 2.0]))
        if chance.random() < 0.7:
            stopped = replace(program, stop_at=at)
        else:
            stopped = replace(program, timeout_s=0.05 + at)
        if chance.random() < 0.6:
            steps = self.hear_stop(program.steps)
            stopped = replace(stopped, steps=steps)
        others = tuple(stopped if p is program else p for p in made.programs)
        return replace(made, programs=others)

    def hear_stop(self, steps: Mapping[int, tuple[Step, ...]]) -> dict[int, tuple[Step, ...]]:
        """``except KeyboardInterrupt: pass``, around all of it or a wait before or after it."""
        wait = Catch((Sleep(1.5),), True)
        kind = self.pick(["all", "before", "after"])
        if kind == "all":
            return {rank: (Catch(own, True),) for rank, own in steps.items()}
        if kind == "before":
            return {rank: (wait, *own) for rank, own in steps.items()}
        return {rank: (*own, wait) for rank, own in steps.items()}


def names_in(steps: Sequence[Step]) -> Iterator[str]:
    """The names that steps bind, also within others."""
    for step in steps:
        if isinstance(step, (Launch, Set)):
            yield step.name
        elif isinstance(step, (Catch, Repeat, Thread, Late)):
            yield from names_in(step.steps)


def _launches(program: Program) -> list[tuple[int, int]]:
    """Where it launches by itself: rank, and place among that rank's steps."""
    return [
        (rank, at)
        for rank, steps in program.steps.items()
        for at, step in enumerate(steps)
        if isinstance(step, Launch)
    ]


def _is_apart(step: Step) -> bool:
    return isinstance(step, Thread | Late | Join)


def _is_of(step: Step, rank: int) -> bool:
    return not isinstance(step, Launch) or str(rank) in step.where.split(",")


def _can_swap(steps: Sequence[Step], at: int) -> bool:
    """Whether it changes what is launched: equal programs in another order are the same ones."""
    one, other = steps[at], steps[at + 1] if at + 1 < len(steps) else None
    if not isinstance(one, Launch) or not isinstance(other, Launch):
        return False
    return (one.where, one.program) != (other.where, other.program)


def _with(program: Program, rank: int, steps: Sequence[Step]) -> Program:
    return replace(program, steps={**program.steps, rank: tuple(steps)})
