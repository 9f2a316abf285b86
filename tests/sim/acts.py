"""What simulated users do between cells: pull and push values, undo a cell, ask for a resync."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from jaxcluster.cluster import between_cells, handle, recovery
from jaxcluster.errors import JaxClusterError
from sim.clients import Client
from sim.hub import Sink
from sim.programs import Join, Launch, Program, Schedule, Set, Sleep, Step, Thread, Writer, names_in
from sim.truth import Value

NUMBERS = 20, 21  # of acts; cells have others
BEHIND = 7  # of the cell that is stopped before its turn
LATER = 30, 31, 32  # of a notebook that comes later
NAMES = "aabbcpq"


@dataclass(frozen=True)
class Pull:
    """Ask a rank for a name."""

    name: str
    op: ClassVar[str] = "sim_pull"


@dataclass(frozen=True)
class Push:
    """Bind a name on a rank."""

    name: str
    number: int
    op: ClassVar[str] = "sim_push"


@dataclass(frozen=True)
class Px:
    """Run a program's steps on a rank as ipyparallel does: in no turn, and for no cell."""

    number: int
    op: ClassVar[str] = "sim_px"


def carry_out(client: Client, program: Program, course: Any) -> BaseException | None:
    """How it ended."""
    what, name = program.act
    client.attach()
    said, number = course.said, program.number
    said[number] = ""
    client.hear = lambda text: said.update({number: said[number] + text})
    try:
        told = _ACTS[what](client, program.number, name, course)
    except (JaxClusterError, KeyboardInterrupt) as error:
        return error
    said[number] += told
    return None


def _pull(client: Client, number: int, name: str, course: Any) -> str:
    for rank, (value, has_ended) in _ask(client, Pull(name)).items():
        client.cluster.pulled.append((number, name, rank, value, has_ended))
    return ""


def _push(client: Client, number: int, name: str, course: Any) -> str:
    _ask(client, Push(name, number))
    return ""


def _px(client: Client, number: int, name: str, course: Any) -> str:
    ranks = client.cluster.program(f"# {number}").ranks
    client.link.request_each(dict.fromkeys(ranks, Px(number)), sink=Sink())  # type: ignore[arg-type]
    return ""


def _ask(client: Client, request: Any) -> dict[int, Any]:
    with between_cells.place(client, warn=client.hear):
        ranks = [rank for rank in client.link.ranks if rank not in client.world.dead]
        answers = client.link.gather(ranks, request, timeout_s=60.0)
    return {rank: event.body for rank, event in answers.items() if event.op == "reply"}


def _undo(client: Client, number: int, name: str, course: Any) -> str:
    told = recovery.undo(client)
    assert client.last is not None
    undone = [number for number, seq in course.seqs.items() if seq == client.last.seq]
    course.broken += [
        f"P6: {name} of cell {undone}, which is undone, is on rank {rank.number}"
        for rank in client.cluster.ranks
        for name, value in rank.names.items()
        if isinstance(value, Value) and value.meaning[0] in undone and not rank.is_dead
        if value.meaning not in course.apart
    ]
    return told


def _resync(client: Client, number: int, name: str, course: Any) -> str:
    return handle.Cluster.resync(client)  # type: ignore[arg-type]


def _restart(client: Client, number: int, name: str, course: Any) -> str:
    return client.restart()


_ACTS: dict[str, Callable[[Client, int, str, Any], str]] = {
    "pull": _pull, "push": _push, "undo": _undo, "resync": _resync, "restart": _restart,
    "px": _px,
}  # fmt: skip


def add(made: Schedule, chance: random.Random) -> Schedule:
    """One act or two among the cells, of either notebook."""
    programs = list(made.programs)
    for number in NUMBERS[: chance.randint(1, 2)]:
        act = chance.choice(["pull", "pull", "push", "push", "undo", "undo", "resync", "restart"])
        name = chance.choice(NAMES)
        pause_s = chance.choice([0.0, 0.0, 0.02, 0.3, 1.0])
        program = Program(number, chance.randrange(2), {}, False, pause_s=pause_s, act=(act, name))
        programs.insert(chance.randint(0, len(programs)), program)
    return replace(made, programs=tuple(programs))


def stop_behind(made: Schedule, chance: random.Random) -> Schedule:
    """A cell behind the mistake is stopped before its turn, and its notebook pulls a value."""
    programs = list(made.programs)
    at = next(i for i, p in enumerate(programs) if any(p.number == g for g, _ in made.guilty))
    bound = {s.name for own in programs[at].steps.values() for s in own if isinstance(s, Launch)}
    client = chance.randrange(2)
    empty: dict[int, tuple[Step, ...]] = dict.fromkeys(range(made.num_ranks), ())
    stopped = Program(BEHIND, client, empty, False, stop_at=chance.uniform(0.0, 0.3))
    pull = Program(NUMBERS[0], client, {}, False, act=("pull", chance.choice(sorted(bound) or "a")))
    programs[at : at + 1] = [replace(programs[at], queued=True), stopped, pull]
    return replace(made, programs=tuple(programs))


def px(made: Schedule, chance: random.Random) -> Schedule:
    """A ``%%px`` in the midst of cells, on all ranks or some; what it launches no cell launches."""
    programs = list(made.programs)
    steps: list[Step] = [Set(chance.choice("xpq"), (NUMBERS[0], 0))]
    if is_launching := chance.random() < 0.5:
        steps.append(Launch("0,1,2", 3, (NUMBERS[0], 1), "x"))
    ranks = [rank for rank in range(made.num_ranks) if not rank or chance.random() < 0.8]
    pause_s = chance.choice([0.0, 0.0, 0.02, 0.3, 1.0])
    each = dict.fromkeys(ranks, tuple(steps))
    own = Program(NUMBERS[0], chance.randrange(2), each, False, pause_s=pause_s, act=("px", ""))
    programs.insert(chance.randint(0, len(programs)), own)
    if chance.random() < 0.3:
        undo = Program(NUMBERS[1], chance.randrange(2), {}, False, act=("undo", "a"))
        programs.append(undo)
    fault = made.fault or ("px" if is_launching else "")
    return replace(made, programs=tuple(programs), fault=fault)


def follow(made: Schedule, chance: random.Random) -> Schedule:
    """Either notebook is the one that goes, and a third one comes, which has its own cells."""
    programs = [*made.programs]
    writer = Writer(chance)
    for number in LATER[: chance.randint(1, 3)]:
        act = chance.choice(["", "", "", "pull", "pull", "push", "undo", "resync"])
        own = Program(number, 2, {}, False, act=(act, chance.choice(NAMES)))
        if not act:
            own = replace(writer.cell(number, True), client=2)
        programs.append(replace(own, pause_s=chance.choice([0.0, 0.0, 0.02, 0.3, 1.0])))
    return replace(made, programs=tuple(programs), leaver=chance.choice([1, 1, 0]))


def restart(made: Schedule, chance: random.Random) -> Schedule:
    """The user asks for new processes, in the midst of anything."""
    programs = list(made.programs)
    pause_s = chance.choice([0.0, 0.0, 0.02, 0.3, 1.0])
    again = Program(NUMBERS[0], 0, {}, False, pause_s=pause_s, act=("restart", ""))
    programs.insert(chance.randint(0, len(programs)), again)
    return replace(made, programs=tuple(programs))


def with_loader(made: Schedule, chance: random.Random) -> Schedule:
    """Ranks have a thread from the first cell on that launches nothing, as one that loads data.

    Nobody knows that it launches nothing. Where the schedule has threads already: as it is.
    """
    first, *others = made.programs
    steps = [step for p in made.programs for own in p.steps.values() for step in own]
    if not first.steps or any(isinstance(step, Thread | Join) for step in steps):
        return made
    seconds = chance.choice([0.5, 2.0, 8.0, 30.0])
    lives = {rank: chance.random() < 0.7 for rank in first.steps}
    begun = {r: Thread((Sleep(seconds if lives[r] else 0.0),)) for r in lives}
    each = {rank: (begun[rank], *own) for rank, own in first.steps.items()}
    return replace(made, programs=(replace(first, steps=each), *others))


def is_px(program: Program | None) -> bool:
    return program is not None and program.act is not None and program.act[0] == "px"


def is_restarted(made: Schedule) -> bool:
    return any(program.act is not None and program.act[0] == "restart" for program in made.programs)


def judge(
    cluster: Any, course: Any, is_right: bool, was_named: Callable[[Value, Any], bool]
) -> list[str]:
    """P7: a value that is pulled is of one moment, and is not wrong unless that was said.

    Behind all cells it may differ between the ranks, where a stopped cell has said that of it.
    """
    broken = []
    pulled: dict[tuple[int, str], dict[int, Any]] = {}
    behind: dict[tuple[int, str], bool] = {}  # all cells, on all ranks
    for number, name, rank, value, has_ended in cluster.pulled:
        key = number, name
        pulled.setdefault(key, {})[rank] = value
        behind[key] = behind.get(key, True) and has_ended
    for (number, name), values in pulled.items():
        if course.ended.get(number, 1) is None and any(
            isinstance(value, Value) and value.tainted and not was_named(value, course)
            for value in values.values()
            if between_cells.NOT_SETTLED not in course.said[number]
        ):
            broken.append(f"P1: {number} has pulled a wrong number, ok")
        told = [value for value in values.values() if value is not None]
        meant = {v.meaning if isinstance(v, Value) else v for v in told}
        is_told = behind[number, name] and _may_differ(cluster, course, name)
        if is_right and len(meant) > 1 and not is_told:
            broken.append(f"P7: {name} was pulled by {number} as of several moments: {meant}")
    return broken


def _may_differ(cluster: Any, course: Any, name: str) -> bool:
    """Whether a cell that was stopped, not alike on all ranks, has bound it, and said so."""
    return any(
        re.search(
            rf"may differ between the ranks|may be of different steps.*\b{name}\b", str(error)
        )
        and name in names_in(steps)
        for number, error in course.ended.items()
        for steps in cluster.program(f"# {number}").steps.values()
    )
