"""Runs schedules, and says which property one has broken."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

from jaxcluster.engine import blackbox
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    RankDied,
    RecoveryError,
    UsageError,
)
from jaxcluster.model import explain, lineage, rewrite
from jaxcluster.wire import Death
from jaxcluster.wire.ops.cells import Interrupt
from sim import acts, restarts
from sim.clients import Client, outcome, virtual
from sim.hub import Hub, Sink, Stuck
from sim.programs import (
    FAULTS,
    Catch,
    Late,
    Launch,
    Own,
    Program,
    Repeat,
    Schedule,
    Sleep,
    Thread,
    Writer,
    names_in,
)
from sim.ranks import CHECK, Cluster
from sim.truth import ZEROS, Value

GARBAGE = 500_000  # objects between looks for what only cycles hold
LOST = 0.006  # of the schedules: in each of these ranks or hosts are lost
LEFT = 0.1  # of those with two notebooks: the other one's process ends
FOLLOWED = 0.5  # of these: a third one comes then
CUT_OFF = 0.05  # of those: some cells are seconds on their way to a rank
ACTS = 0.1  # of the others: values come and go between cells, or cells are undone
PX = 0.02  # of the others: ipyparallel runs code of a client's beside the cells
LOADER = 0.03  # a thread lives beside the cells that launches nothing
BEHIND = 0.03  # of those with a mistake: a cell behind it is stopped before its turn
BLAMED = ("skip", "other", "raise", "caught", "refused", "cut")  # faults of which a rank is guilty
NEWCOMER = 2  # which notebook
KEPT_TOLD = "did is kept:"  # of a cell whose time was up
LIMIT_S = 200.0  # of the virtual clock; what waits as long waits for ever


@dataclass
class Course:
    """What has become of a schedule.

    Attributes:
      ended: how each cell did; None: ok.
      reports: the findings of cells.
      broken: what is wrong with it, a line each.
      said: what each cell has said while it ran.
      apart: the launches of threads and timers, by what is meant by them.
    """

    ended: dict[int, BaseException | None] = field(default_factory=dict)
    reports: dict[int, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    seqs: dict[int, int] = field(default_factory=dict)
    said: dict[int, str] = field(default_factory=dict)
    apart: frozenset[Any] = frozenset()


def run(schedule: Schedule) -> Course:
    """Carry a schedule out on ranks of its own, and look at the four properties."""
    course = Course(apart=frozenset(_meant_apart(schedule)))
    chance = random.Random(schedule.seed)
    hub = Hub(chance)
    programs = {str(p.number): p for p in schedule.programs}
    with contextlib.ExitStack() as stack:
        stack.enter_context(virtual(hub))
        real = None
        if schedule.losses is not None:
            real = restarts.Restarts(schedule.losses, schedule.num_ranks)
            stack.enter_context(restarts.virtual(hub, real))
        cluster = Cluster(
            hub,
            schedule.num_ranks,
            schedule.inline,
            programs,
            schedule.is_strict,
            schedule.is_tuned,
            real,
            schedule.donates,
            schedule.is_raised_early,
        )
        clients = [Client(cluster, n, schedule.lateness) for n in range(2)]
        for client in clients:
            client.others = [c for c in clients if c is not client]
        cluster.owner, cluster.cut_off = clients[0], schedule.cut_off
        number = len(schedule.programs)
        for client in clients:
            mine = [p for p in schedule.programs if p.client == client.number]
            if mine:
                hub.start(
                    f"client {client.number}", partial(use, client, mine, course, hub, number)
                )
        hub.is_over = not schedule.programs
        if schedule.death is not None:
            at, rank = schedule.death
            hub.at(at, lambda: die(cluster, clients, rank))
        if schedule.leaves_at is not None:
            hub.at(schedule.leaves_at, partial(leave, clients, schedule, course, hub))
        for at, what, which in schedule.losses.deaths if schedule.losses is not None else ():
            hub.at(at, partial(lose, cluster, clients, what, which))
        try:
            hub.run(LIMIT_S)
        except Stuck as stuck:
            missing = sorted({p.number for p in schedule.programs} - course.ended.keys())
            if not _is_explained(schedule, course, missing):
                course.broken.append(f"P3: cells {missing} have not ended: {stuck}")
        except Exception:
            course.broken.append(f"an error of ours: {traceback.format_exc(limit=-6)}")
        judge(schedule, cluster, clients, course)
        hub.end()
    _take_apart(cluster, clients, course)
    return course


def _take_apart(cluster: Cluster, clients: Sequence[Client], course: Course) -> None:
    """Leave no cycles behind: then all of it goes at once, and nobody looks for garbage."""
    for error in course.ended.values():
        if error is not None:
            error.__traceback__ = error.__context__ = error.__cause__ = None
    for made in cluster.devices.made:
        made.met = made.inputs = ()
        made.value = None
    for client in clients:
        vars(client).clear()
    for rank in [*cluster.past, *cluster.ranks]:
        vars(rank.journal).clear()
        vars(rank).clear()
    vars(cluster).clear()


def use(client: Client, programs: Sequence[Program], course: Course, hub: Hub, number: int) -> None:
    """What the user of one notebook does."""
    left, own, is_waiting = 0, hub.running, False
    assert own is not None

    def become_known(program: Program, error: BaseException | None) -> None:
        course.ended[program.number] = error
        hub.is_over = len(course.ended) == number

    def end(program: Program, cell: Any) -> None:
        error = outcome(cell)
        course.reports[program.number] = cell.report
        course.broken += _look_at_undone(client.cluster, course, program.number, error)
        if error is None and (cell.core.undone is not None or cell.recovered):
            course.broken.append(f"P6: cell {program.number} is taken back, and ends ok")
        course.broken += _look_at_kept(client.cluster, course, program, error)
        course.broken += _look_at_apart(client.cluster, course, program, error)
        become_known(program, error)
        nonlocal left
        left -= 1
        if is_waiting and not left:
            hub.wake(own)

    def wait() -> None:
        nonlocal is_waiting
        is_waiting = left > 0
        if is_waiting:
            hub.block(None)
        is_waiting = False

    for program in programs:
        if program.pause_s:
            hub.block(None, program.pause_s)
        if program.act is not None:
            become_known(program, acts.carry_out(client, program, course))
            continue
        try:
            cell = client.submit(program.source, program.ranks, program.timeout_s)
        except Exception as error:  # it was refused
            become_known(program, error)
            continue
        course.seqs[program.number] = cell.record.seq
        course.said[program.number] = ""
        cell.runner.on_notice = partial(_hear, course, program.number)
        if program.stop_at is not None:
            hub.at(hub.now + program.stop_at, cell.stop)
        if program.interrupt_at is not None:
            hub.at(hub.now + program.interrupt_at, lambda: interrupt(client.others[0]))
        left += 1
        hub.start(f"cell {program.number}", lambda p=program, c=cell: end(p, c))
        if not program.queued:
            wait()
    wait()


def _hear(course: Course, number: int, text: str) -> None:
    course.said[number] += text


def _is_explained(schedule: Schedule, course: Course, numbers: Sequence[int]) -> bool:
    """Whether cells that wait for ever say who waits for whom, as they may after a mistake."""
    is_right = not schedule.fault and not any(p.is_stopped for p in schedule.programs)
    waits = re.compile(r"wait for each other|waits? for rank|waited \S+ (s|min) for rank")
    said = [waits.search(course.said.get(number, "")) is not None for number in numbers]
    return not is_right and any(said)  # those that are queued behind it wait for its end


def interrupt(client: Client) -> None:
    """%jaxcluster interrupt: the ranks alone know what they are in."""
    client.link.request_each(dict.fromkeys(client.link.ranks, Interrupt(None)), sink=Sink())


class Left(Exception):
    """Its notebook's process has ended: nobody is told how it did."""


def leave(clients: list[Client], schedule: Schedule, course: Course, hub: Hub) -> None:
    """The process of a notebook ends, with all that it was to do yet; perhaps another one comes."""
    client = clients[schedule.leaver]
    client.link.cut()
    own = [p.number for p in schedule.programs if p.client == client.number]
    names = {f"client {client.number}", *(f"cell {number}" for number in own)}
    for actor in [each for each in hub.actors if each.name in names]:
        actor.kill()
        hub.actors.remove(actor)
    for number in own:
        course.ended.setdefault(number, Left())
    hub.is_over = len(course.ended) == len(schedule.programs)
    if programs := [p for p in schedule.programs if p.client == NEWCOMER]:
        hub.start("newcomer", partial(come, clients, programs, course, len(schedule.programs)))


def come(clients: list[Client], programs: Sequence[Program], course: Course, number: int) -> None:
    """Another notebook attaches, and goes on."""
    cluster = clients[0].cluster
    client = Client(cluster, NEWCOMER, clients[0].lateness)
    client.others = list(clients)
    for one in clients:
        one.others.append(client)
    clients.append(client)
    client.hear_of_the_dead()
    use(client, programs, course, cluster.hub, number)


def lose(cluster: Cluster, clients: Sequence[Client], what: str, which: int) -> None:
    """A rank's process ends, or a host with all that is there."""
    if what == "rank":
        die(cluster, clients, which)
        return
    for rank in cluster.restarts.fleet.lose(which):
        die(cluster, clients, rank, host_lost=True)


def die(cluster: Cluster, clients: Sequence[Client], rank: int, host_lost: bool = False) -> None:
    """A rank's process ends."""
    if cluster.ranks[rank].is_dead:
        return
    left = {} if host_lost else {rank: cluster.ranks[rank].journal.tail(blackbox.SLOTS)}
    cluster.ranks[rank].die()
    cluster.devices.die(rank)
    death = Death("killed by SIGKILL", -9)
    if host_lost:
        death = Death("its host is lost", host_lost=True)
    for client in clients:
        client.world.last_launches |= left
        client.world.dead.setdefault(rank, death)
        client.recovered = ""
        client.link.mark_dead(rank, death)


# ------------------------------------------------------------------------------- the properties


def judge(schedule: Schedule, cluster: Cluster, clients: Sequence[Client], course: Course) -> None:
    broken = course.broken
    broken += cluster.wrong
    numbers = {p.source: p.number for p in schedule.programs}
    by_number = {p.number: p for p in schedule.programs}
    has_px = any(map(acts.is_px, schedule.programs))  # then each launch may have met its launch
    for source, rank, value in cluster.printed:
        number = numbers[source]
        is_wrong = isinstance(value, Value) and value.tainted
        if is_wrong and course.ended.get(number, 1) is None and not _was_named(value, course):
            broken.append(f"P1: cell {number} printed a wrong number on rank {rank}, ok")
    for rank in cluster.ranks:
        for name, value in rank.names.items() if not rank.is_dead else ():
            if not isinstance(value, Value) or not value.tainted:
                continue
            number, error = _maker(value), course.ended.get(_maker(value), 1)
            if acts.is_px(by_number.get(number)) or (has_px and value.meaning in course.apart):
                continue  # nobody looks after the last cell
            if _was_named(value, course) or isinstance(error, Left):
                continue
            if number in by_number and number not in course.ended:
                continue  # it waits for others, and says so
            if isinstance(error, KeyboardInterrupt) and _is_to_be_resynced(
                by_number[number], clients
            ):
                continue
            if error is None:
                broken.append(f"P1: cell {number} left {name} wrong on rank {rank.number}, ok")
            elif KEPT_TOLD in str(error) or not re.search(rf"\b{name}\b", str(error)):
                told = f"P1: cell {number} left {name} wrong on rank {rank.number}, unnamed"
                broken.append(f"{told}: {error}")
    if schedule.is_strict and not has_px:
        _look_at_strict(cluster, course)
    is_left = any(isinstance(error, Left) for error in course.ended.values())
    is_whole = schedule.death is None and schedule.losses is None and not is_left
    is_right = not schedule.fault and is_whole
    broken += acts.judge(cluster, course, is_right, _was_named)
    if schedule.fault == "partial" and any(course.ended.values()):
        # What is launched of processes that don't run the cell is compared by its order alone: it
        # is found, but other cells may have met it.
        broken[:] = [line for line in broken if not line.startswith("P1")]
    for number, error in course.ended.items():
        broken += _look_at_undone(cluster, course, number, error)
    # What a notebook leaves open when it ends, half sent or stopped, others find and tell of.
    if is_right:
        for number, error in course.ended.items():
            program = by_number[number]
            may = program.is_stopped or _was_given_new_processes(program, schedule, course)
            if isinstance(error, Divergence) and not _is_stop_heard(schedule):
                broken.append(f"P2: cell {number} is right, and said to have diverged: {error!r}")
            elif program.act is not None and isinstance(error, UsageError | RecoveryError):
                pass  # as where there is nothing to undo, or another notebook must do it
            elif error is not None and not (may or _was_stopped_before(program, schedule, course)):
                broken.append(f"P2: cell {number} is right, and ended with {error!r}")
            elif program.act is not None and program.act[0] == "resync":
                pass  # what timers were still to launch has met its zeros
            elif (
                error is None
                and "Don't trust" in course.said[number]
                and not (program.is_stopped and _is_stop_heard(schedule))
            ):
                broken.append(f"P2: cell {number} is right, and doubted: {course.said[number]}")
    for number, report in course.reports.items():
        if report is None:
            continue
        if is_right:
            if not _was_stopped_before(by_number[number], schedule, course):  # on some ranks
                broken.append(f"P2: cell {number} is right, and reported: {report}")
            continue
        is_doubted = number not in dict(schedule.guilty) and _is_doubted(schedule, course)
        if schedule.fault in BLAMED and not (schedule.cut_off or is_doubted):
            guilty = {rank for _, rank in schedule.guilty}
            guilty |= {schedule.death[1]} if schedule.death else set()
            cells = {course.seqs.get(cell) for cell, _ in schedule.guilty}
            culprits = set(report.culprits)
            is_clear = report.kind != "circle" and len(_members(report.processes)) > 2
            # Where it is not known what a dead rank has made, the message blames nobody.
            is_clear = is_clear and not (schedule.death and report.seq is None)
            # Whoever heard the stop, and went on, has left out what it was in.
            is_clear = is_clear and not _is_stop_heard(schedule)
            is_clear = is_clear and schedule.losses is None and not is_left
            is_clear = is_clear and len(culprits) != len(report.others)  # else nobody can tell
            is_clear = is_clear and not has_px
            if is_clear and guilty.isdisjoint(culprits):
                broken.append(f"P4: cell {number}: {sorted(culprits)} are blamed: {report}")
            is_clear = is_whole and not (_is_stop_heard(schedule) or acts.is_restarted(schedule))
            is_clear = is_clear and not has_px
            if report.cell_seq and report.cell_seq not in cells and is_clear:
                broken.append(f"P4: cell {report.cell_seq} is blamed, not {cells}: {report}")
    if not (broken or is_left or any(rank.is_dead for rank in cluster.ranks)):
        _look_at_all_or_none(schedule, cluster, course)


def _is_to_be_resynced(program: Program, clients: Sequence[Client]) -> bool:
    """Whether the stop button has ended its settling: no cell runs before a resync looks at it."""
    return clients[program.client].divergence is not None


def _look_at_strict(cluster: Cluster, course: Course) -> None:
    """P8: in strict mode no launch meets another program, or another cell's, but a replay's."""
    for each in {id(made.met): made.met for made in cluster.devices.made if made.met}.values():
        real = [made for made in each if made.meant != ZEROS]
        cells = {made.meant[0] for made in real if made.program != CHECK}
        cells -= {made.meant[0] for made in real if made.meant in course.apart}
        if len({made.program for made in real}) > 1 or len(cells) > 1:
            course.broken.append(f"P8: {[made.meant for made in each]} have met in strict mode")


def _maker(value: Value) -> int:
    return value.made.meant[0] if isinstance(value.made.meant, tuple) else 0


def _was_named(value: Value, course: Course) -> bool:
    """Whether the cell that has made it has ended with a warning of what it has bound."""
    maker = _maker(value)
    if "Don't trust" in str(course.ended.get(maker)) + course.said.get(maker, ""):
        return True
    told = "".join([*map(str, course.ended.values()), *course.said.values()])
    if value.meaning in course.apart and "Don't trust what threads" in told:
        return True
    if re.search(rf"Don't trust what [^.]*\bcell \[{maker}\]", told):
        return True
    if re.search(rf"cell \[{maker}\] line[^\0]*Don't trust any number from these cells", told):
        return True
    if isinstance(course.ended.get(maker), Left) and "of another notebook changed is not" in told:
        return True
    if re.search(rf"What cell \[{maker}\] changed is not undone", told):
        return True
    inputs = {v for made in value.made.met for v in made.inputs if v is not None and v.tainted}
    return _is_of_apart(value, course) or any(_was_named(v, course) for v in inputs)


def _is_of_apart(value: Value, course: Course) -> bool:
    """Whether ranks have given it values that a cell has left other on each, as it says."""
    for given in zip(*(made.inputs for made in value.made.met), strict=False):
        makers = {v.meaning: _maker(v) for v in given if v is not None}
        if len(makers) + (None in given) > 1:
            last = max(makers.values(), key=lambda maker: course.seqs.get(maker, 0))
            told = f"{course.ended.get(last)}{course.said.get(last, '')}"
            tells = "may be of different steps", "may differ between", "Don't trust what this cell"
            return any(each in told for each in tells)
    return False


def _meant_apart(schedule: Schedule) -> Iterator[Any]:
    steps = [step for p in schedule.programs for own in p.steps.values() for step in own]
    while steps:
        step = steps.pop()
        if isinstance(step, Thread | Late):
            yield from (s.meant for s in step.steps if isinstance(s, Launch))
        elif isinstance(step, Catch):
            steps += step.steps


def _look_at_undone(
    cluster: Cluster, course: Course, number: int, error: BaseException | None
) -> list[str]:
    """P6: where it says that a cell is undone, no rank has what it has made.

    A rank that is in it yet gets it put back at its end once more.
    """
    if "This cell is undone" not in str(error):
        return []
    return [
        f"P6: cell {number} is undone, and {name} is of it on rank {rank.number}: {error}"
        for rank in cluster.ranks
        for name, value in rank.names.items()
        if not (rank.is_dead or rank.is_to_put_back)
        if _cell_of(value) == number and not _is_apart_from(value, course)
    ]


def _look_at_kept(
    cluster: Cluster, course: Course, program: Program, error: BaseException | None
) -> list[str]:
    """P8: where it says that what a stopped cell did is kept, all ranks have made the same."""
    if KEPT_TOLD not in str(error):
        return []
    held: dict[str, set[Any]] = {}
    for rank in cluster.ranks:
        for name in names_in(program.of(rank.number)):
            value = rank.names.get(name)
            is_of_it = _cell_of(value) == program.number
            told = value.meaning if isinstance(value, Value) and is_of_it else is_of_it
            held.setdefault(name, set()).add(told)
            if isinstance(value, Value) and is_of_it and value.tainted:
                held[name].add("wrong")
    return [
        f"P8: cell {program.number} is kept, and {name} is of {values}: {error}"
        for name, values in held.items()
        if len(values) > 1
    ]


def _look_at_apart(
    cluster: Cluster, course: Course, program: Program, error: BaseException | None
) -> list[str]:
    """P1: where a stop or an error has left a name with values of different steps, it says so."""
    told = f"{error}{course.said[program.number]}"
    if not isinstance(error, CellFailed | CellInterrupted | None):
        return []
    broken = []
    for name in "abcd":  # not of threads, nor of what one rank alone is refused
        ranks = [r for r in cluster.ranks if name in names_in(program.of(r.number))]
        values = [rank.names.get(name) for rank in ranks if not rank.is_dead]
        made = {v.meaning: _maker(v) for v in values if isinstance(v, Value) and not v.tainted}
        seqs = {0: 0, **course.seqs}  # what is pushed beside the cell has none
        own = course.seqs[program.number]
        is_later = any(seqs.get(maker, math.inf) > own for maker in made.values())
        is_of_it = program.number in made.values() and not is_later
        differs = len(made) + (None in values) > 1
        # Of a rank that says nothing, that is all that is known.
        # A launch may be excused by a thread that lives, and the whole cell be doubted.
        doubted = rf"Don't trust what (?:this cell has|cell \[{program.number}\]) assigned"
        silent = "(?:is|are) not responding|(?:has|have) not answered the interrupt"
        is_told = re.search(rf"\b{name}\b|may differ between the ranks|{silent}|{doubted}", told)
        if is_of_it and differs and not is_told:
            broken.append(f"P1: cell {program.number} leaves {name} of steps {[*made]}: {error}")
    return broken


def _cell_of(value: Any) -> Any:
    """The number of the program that has made it; None where it does not say."""
    match value:
        case Value():
            return _maker(value)
        case (number, _):
            return number
        case Own(number=number):
            return number
    return None


def _is_apart_from(value: Any, course: Course) -> bool:
    return isinstance(value, Value) and value.meaning in course.apart


def _members(processes: str) -> list[str]:
    return processes.partition("&")[0].split(",")


def _was_stopped_before(program: Program, schedule: Schedule, course: Course) -> bool:
    """Whether a cell before it, of any notebook, was stopped: then it may not have run."""
    seqs = course.seqs
    own = seqs.get(program.number, math.inf)
    return any(p.is_stopped and seqs.get(p.number, math.inf) <= own for p in schedule.programs)


def _was_given_new_processes(program: Program, schedule: Schedule, course: Course) -> bool:
    """Whether its ranks ended, since the other notebook's cell was stopped before its turn."""
    seqs, error = course.seqs, course.ended[program.number]
    last = seqs.get(program.number, math.inf)
    stopped = any(p.is_stopped and seqs.get(p.number, 0) <= last for p in schedule.programs)
    return (stopped or acts.is_restarted(schedule)) and isinstance(error, RankDied)


def _look_at_all_or_none(schedule: Schedule, cluster: Cluster, course: Course) -> None:
    """P5: what no rank's own steps made different is equal on all ranks."""
    if schedule.fault in ("partial", "raise", "caught", "refused", "cut") or any(
        p.is_stopped for p in schedule.programs
    ):
        return
    px = {p.number for p in schedule.programs if acts.is_px(p)}
    for name in "pq":
        if any(_cell_of(rank.names.get(name)) in px for rank in cluster.ranks):
            continue
        if any(name in str(error).split() or f"{name}," in str(error) or f" {name} " in str(error)
               for error in course.ended.values()):  # fmt: skip
            continue
        values = [rank.names.get(name) for rank in cluster.ranks]
        held = {repr(v.meaning if isinstance(v, Value) else v) for v in values}
        if len(held) > 1:
            told = [rank.names.get(name) for rank in cluster.ranks]
            course.broken.append(f"P5: {name} differs between the ranks: {told}")


# ------------------------------------------------------------------------------- the search


def schedules(first: int, count: int, faults: Sequence[str] = ("", *FAULTS)) -> Iterator[Schedule]:
    for seed in range(first, first + count):
        chance = random.Random(seed)
        made = Writer(chance).schedule(seed, faults)
        if chance.random() < 0.05:
            made = replace(made, death=(chance.uniform(0, 2.0), chance.randrange(3)))
        elif chance.random() < LOST:
            made = Writer(chance).lose(made)
            if chance.random() < 0.3:
                made = acts.restart(made, chance)
        elif any(p.client for p in made.programs) and chance.random() < LEFT:
            made = replace(made, leaves_at=chance.uniform(0, 2.0))
            if chance.random() < FOLLOWED:
                made = acts.follow(made, chance)
            if chance.random() < CUT_OFF:
                made = replace(made, cut_off=0.2, fault=made.fault or "cut off")
        elif chance.random() < ACTS:
            made = acts.add(made, chance)
        elif chance.random() < PX:
            made = acts.px(made, chance)
        elif made.guilty and chance.random() < BEHIND:
            made = acts.stop_behind(made, chance)
        more = random.Random(-2 - seed)  # not by the same chance: what was found is found again
        yield acts.with_loader(made, more) if more.random() < LOADER else made


def shrink(schedule: Schedule, is_broken: Callable[[Schedule], bool]) -> Schedule:
    """The smallest schedule that comes of leaving things out and is still broken."""
    went_on = True
    while went_on:
        went_on = False
        for smaller in _smaller(schedule):
            if is_broken(smaller):
                schedule, went_on = smaller, True
                break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    programs = schedule.programs
    for p in programs:
        yield replace(schedule, programs=tuple(q for q in programs if q is not p))
    if schedule.death is not None:
        yield replace(schedule, death=None)
    if schedule.leaves_at is not None:
        left = tuple(p for p in programs if p.client != NEWCOMER)
        yield replace(schedule, leaves_at=None, programs=left)
    if schedule.cut_off:
        yield replace(schedule, cut_off=0.0)
    if (losses := schedule.losses) is not None:
        yield replace(schedule, losses=None)
        for gone in losses.deaths:
            deaths = tuple(one for one in losses.deaths if one is not gone)
            yield replace(schedule, losses=replace(losses, deaths=deaths))
        if losses.hosts and all(what == "rank" for _, what, _ in losses.deaths):
            yield replace(schedule, losses=replace(losses, hosts=()))
    for at, p in enumerate(programs):

        def put(changed: Program, at: int = at) -> Schedule:
            return replace(schedule, programs=(*programs[:at], changed, *programs[at + 1 :]))

        if p.client:
            yield put(replace(p, client=0))
        if p.pause_s:
            yield put(replace(p, pause_s=0.0))
        if p.queued:
            yield put(replace(p, queued=False))
        if p.is_stopped:
            yield put(replace(p, stop_at=None, timeout_s=None, interrupt_at=None))
        inner = {r: own[0].steps for r, own in p.steps.items() if own and _goes_on(own[0], False)}
        if inner and len(inner) == len(p.steps):
            yield put(replace(p, steps=inner))
            for n in range(max(map(len, inner.values()))):
                less = {r: own[:n] + own[n + 1 :] for r, own in inner.items()}
                yield put(replace(p, steps={r: (Catch(own, True),) for r, own in less.items()}))
        steps = {step for own in p.steps.values() for step in own}
        steps = {step for step in steps if _is_whole(step, p)}
        apart = {step for own in p.steps.values() for step in own if _is_apart(step)}
        for gone in [apart] * bool(apart) + [{step} for step in sorted(steps, key=repr)]:
            yield put(replace(p, steps={
                r: tuple(s for s in own if s not in gone) for r, own in p.steps.items()
            }))  # fmt: skip


def _is_stop_heard(schedule: Schedule) -> bool:
    """Whether a rank goes on after a stop: what it was in, or others did not begin, is left out.

    A stop also ends a timer of an earlier cell, where it has come to its turn in the stopped one.
    And where programs are compiled as on GPU, ranks stay in the compiler, where another notebook's
    cell finds them. What a thread that loads data might launch is left to it, until it ends.
    """
    stopped = max((p.number for p in schedule.programs if p.is_stopped), default=0)
    is_left = schedule.is_tuned or _has_loader(schedule)
    return (is_left and stopped > 0) or any(
        _goes_on(step, p.is_stopped) or (isinstance(step, Late) and p.number <= stopped)
        for p in schedule.programs
        for own in p.steps.values()
        for step in own
    )


def _has_loader(schedule: Schedule) -> bool:
    steps = (step for p in schedule.programs for own in p.steps.values() for step in own)
    return any(isinstance(s, Thread) and all(isinstance(t, Sleep) for t in s.steps) for s in steps)


def _is_doubted(schedule: Schedule, course: Course) -> bool:
    """Whether a cell that went wrong has said so, but been left to a thread that might help it."""
    told = {n: f"{course.ended.get(n)}{course.said.get(n, '')}" for n, _ in schedule.guilty}
    doubts = {n: rf"Don't trust what (?:this cell has|cell \[{n}\]) assigned" for n in told}
    named = {rank for n in told if (report := course.reports.get(n)) for rank in report.culprits}
    is_named = not named.isdisjoint(rank for _, rank in schedule.guilty)
    is_doubted = is_named or any(re.search(doubts[n], told[n]) for n in told)
    return _has_loader(schedule) and is_doubted


def _goes_on(step: Any, is_stopped: bool) -> bool:
    """By itself, or on a thread or timer of a stopped cell, which not all ranks may have begun."""
    hears = isinstance(step, Catch) and step.of_stop
    return hears or (is_stopped and _is_apart(step))


def _is_apart(step: Any) -> bool:
    return isinstance(step, Thread | Late)


def _is_whole(step: Any, program: Program) -> bool:
    """Whether all ranks that it is of have it: what was spoiled stays."""
    if not isinstance(step, Launch):
        return not isinstance(step, Thread | Late | Repeat)  # each rank has its own
    members = [int(rank) for rank in step.where.split(",")]
    return all(step in program.of(rank) for rank in members)


def prepare() -> None:
    """Make a process fast that does nothing but run schedules."""
    for module, name in ((rewrite, "assigned_since"), (explain, "tree_of"), (lineage, "_bound")):
        setattr(module, name, functools.cache(getattr(module, name).__wrapped__))
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] in ("jaxcluster", "sim"):
            for what in vars(module).values():
                if isinstance(what, type) and what.__module__ == module.__name__:
                    _thaw(what)
    # Garbage is looked for seldom, and nowhere but in what the schedules make.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def _thaw(frozen: type) -> None:
    """Have objects of a frozen dataclass made as fast as others: each field by an assignment."""
    own = vars(frozen)
    if "__setattr__" not in own or "__slots__" in own or not is_dataclass(frozen):
        return
    if any(map(is_dataclass, frozen.__bases__)):  # a frozen one has no other kind of base
        return
    del frozen.__setattr__, frozen.__delattr__, frozen.__init__
    for given in fields(frozen):
        if given.default is MISSING:
            setattr(frozen, given.name, given)
    dataclass(repr=False, eq=False)(frozen)


def search(first: int, count: int, faults: Sequence[str] = ("", *FAULTS)) -> list[Schedule]:
    """The broken ones of so many schedules."""
    return [made for made in schedules(first, count, faults) if run(made).broken]


def tell(schedule: Schedule) -> str:
    kinds = {line[:2] for line in run(schedule).broken}
    small = shrink(schedule, lambda s: bool(kinds & {line[:2] for line in run(s).broken}))
    course = run(small)
    ended = [f"cell {n}: {'ok' if e is None else repr(e)[:400]}" for n, e in course.ended.items()]
    return "\n".join([small.tell(), *ended, *course.broken])


def main() -> None:
    """python -m sim.search FIRST COUNT [FAULT ...]"""
    import time

    first, count, *faults = sys.argv[1:]
    prepare()
    started = time.perf_counter()
    found = search(int(first), int(count), faults or ("", *FAULTS))
    took = time.perf_counter() - started
    for schedule in found:
        kinds = sorted({line[:30] for line in run(schedule).broken})
        print(
            f"  seed {schedule.seed} {schedule.fault} {'dies' if schedule.death else ''}: {kinds}"
        )
    print(f"{len(found)} of {count} schedules are broken; {took:.1f} s")
    for schedule in found[:3]:
        print(tell(schedule), end="\n\n")


if __name__ == "__main__":
    main()
