"""No schedule of simulated ranks ends with a wrong number, a false alarm, or not at all.

JAXCLUSTER_SIM_SCHEDULES says how many are tried (1,000; 100,000 in .ci/run), and
JAXCLUSTER_SIM_FIRST from which one on. ``python -m sim.search FIRST COUNT [FAULT ...]``, with
``tests`` on the path, shrinks and prints what it finds.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context, resource_tracker
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import (
    action_runner,
    between_cells,
    handle,
    recovery,
    respawn,
    restart,
    what_returns,
)
from jaxcluster.engine import change_notices, strict
from jaxcluster.errors import CellInterrupted
from jaxcluster.lockstep import actions, polls
from jaxcluster.lockstep.cell import Cell
from jaxcluster.model import deadlock, lockstep
from jaxcluster.model.verdict import Ending
from jaxcluster.wire.ops.cells import OpenGates
from jaxcluster.wire.ops.lockstep import Resume
from sim import clients, hub, ranks, search
from sim.clients import Turns, World
from sim.found import FOUND
from sim.hub import Sink
from sim.programs import Catch, Late, Launch, Print, Program, Repeat, Schedule, Sleep
from sim.ranks import Journal, Rank
from sim.search import prepare, run, schedules, tell

# It lives as long as pytest: before a session has variables by which what it leaves is found.
resource_tracker.ensure_running()

SCHEDULES = int(os.environ.get("JAXCLUSTER_SIM_SCHEDULES", "1000"))
FIRST = int(os.environ.get("JAXCLUSTER_SIM_FIRST", "0"))
FOUND_WITHIN = 10_000
OTHER_TIMES = 20


def open_all_gates(world: Any, seqs: Any) -> None:
    """As it was first built: all cells up to this one."""
    asked = OpenGates(list(range(max(seqs, default=0) + 1)))
    world.link.request_each(dict.fromkeys(world.link.ranks, asked), sink=Sink())


def count_in_python(journal: Journal, program: Any) -> Iterator[None]:
    """As it was first built: Python code counts a launch when it has been made."""
    confirmed = REAL.confirmations(journal, program)
    return (next(confirmed) for _ in iter(int, 1))


def find_in_other_cells(self: polls.Polls, found: Any) -> bool:
    """An interrupt that came from elsewhere is none of the cell's."""
    left = any(reply.status == "interrupted" for reply in self._record.replies.values())
    return self._watch.why in ("stop", "timeout") and left


def stop_no_others(self: Cell, reply: wire.CellReply, now: float) -> list[Any]:
    todo = REAL.take_reply(self, reply, now)
    return [action for action in todo if not isinstance(action, actions.PressStop)]


def meet_at_first(own: Any, theirs: Any, would_be_refused: bool) -> Any:
    """Who makes a launch again that XLA has refused there waits for the others to do so too."""
    place = own.seq, own.passed
    return next((one for one in theirs if (one.seq, one.passed) == place and not one.over), None)


def origin_in_strict_mode(journal: Journal) -> int:
    """What a thread announces bears the number of the cell beside it."""
    asks = sys._getframe(1).f_code is strict.Strict._next.__code__
    return journal.cell_seq if asks else REAL.origin(journal)


def look_at_order_alone(own: strict.Announcement, *more: Any) -> strict.Outlook:
    """Whoever has skipped a launch of an earlier cell."""
    return REAL.look(replace(own, cell=0), *more)


def announce_to_nobody(journal: Journal, upcoming: wire.Launch) -> Any:
    return contextlib.nullcontext()


def find_what_runs(reports: Mapping[int, wire.RankReport]) -> Any:
    """Where ranks wait for each other, and none in the compiler."""
    return REAL.find(
        {
            rank: replace(one, announced=None) if wire.is_compiling(one.announced) else one
            for rank, one in reports.items()
        }
    )


def as_launched(entry: wire.Launch, reports: Mapping[int, wire.RankReport]) -> Any:
    """What is being compiled, as others have launched it; not as they wait to."""
    return REAL.as_compiled(entry, {r: replace(one, announced=None) for r, one in reports.items()})


def undo_beside_a_restart(self: Any, *asked: Any, **options: Any) -> Any:
    """Whatever another cell does to the ranks meanwhile."""
    free = SimpleNamespace(changing=contextlib.nullcontext())
    return REAL.take_back(SimpleNamespace(_cluster=free), *asked, **options)


def ask_who_runs(rests: Any, last: Any) -> Any:
    """And not how the last cells have ended."""
    return between_cells.Standing(REAL.standing(rests, last).busy, set(), True)


def resync_at_once(self: Any) -> str:
    """Whatever other notebooks' cells do."""
    with self.changing:
        return recovery.bring_into_lockstep(self)


@contextlib.contextmanager
def look_only(self: Turns) -> Iterator[dict[int, int]]:
    """Nobody has the turn."""
    yield self.last_cells()


def alone(cells: Any, undone: int) -> frozenset[int]:
    """What is queued behind a cell that is taken back is thought to stay."""
    return frozenset({undone} - {0})


REAL = SimpleNamespace(
    leave=search.leave,
    standing=between_cells.standing,
    take_back=action_runner.ActionRunner._take_back,
    confirmations=Journal.confirmations,
    origin=Journal.origin,
    find=deadlock.find,
    as_compiled=lockstep._as_compiled,
    look=strict.look,
    take_reply=Cell._take_reply,
    begin=hub.Hub.__init__,
)


def begin_nicely() -> None:
    """Tests of live processes run beside it."""
    os.nice(10)
    prepare()


def find_first(first: int, count: int) -> Schedule | None:
    return next((made for made in schedules(first, count) if run(made).broken), None)


@pytest.mark.timeout(2400)
def test_no_schedule_breaks_a_property() -> None:
    parts = [(FIRST + n, min(500, SCHEDULES - n)) for n in range(0, SCHEDULES, 500)]
    if SCHEDULES <= 2000:
        found = [find_first(*part) for part in parts]
    else:
        with ProcessPoolExecutor(2, get_context("spawn"), begin_nicely) as pool:
            found = list(pool.map(find_first, *zip(*parts, strict=True)))
    told = [tell(schedule) for schedule in found if schedule is not None]
    assert not told, "\n\n".join(told[:3])


def courses(first: int, count: int) -> list[str]:
    ran = [run(made) for made in schedules(first, count)]
    return [f"{sorted(course.ended.items())} {course.said} {course.broken}" for course in ran]


class Everybody(set[int]):
    """All ranks, at any time."""

    def __contains__(self, rank: object) -> bool:
        return True


def stir_everybody(self: hub.Hub, chance: random.Random) -> None:
    REAL.begin(self, chance)
    self.stirred = Everybody()


def test_what_makes_a_search_fast_changes_no_course(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that does nothing else, and where each event is thought to change something."""
    usual = courses(0, 60)
    with ProcessPoolExecutor(1, get_context("spawn"), begin_nicely) as pool:
        assert pool.submit(courses, 0, 60).result() == usual
    monkeypatch.setattr(ranks, "CALM", None)
    monkeypatch.setattr(hub.Hub, "__init__", stir_everybody)
    assert courses(0, 60) == usual


def test_a_schedule_without_cells_breaks_nothing() -> None:
    """Else each one that is broken would be shrunk to it."""
    assert run(Schedule(0, 3, True, ())).broken == []


def test_what_timers_have_assigned_is_doubted_where_they_have_met_other_programs() -> None:
    """All have completed, and no cell's launch has met another one."""
    late = Launch("0,1,2", 1, (1, 0), "t")
    steps = {rank: (Late(after, (late,)),) for rank, after in enumerate((0.25, 0.05, 3.05))}
    px = (Launch("0,1,2", 3, (20, 1), "x"),)
    programs = (
        Program(1, 0, steps, False),
        Program(2, 0, dict.fromkeys(range(3), ()), False),
        Program(20, 1, dict.fromkeys(range(3), px), False, act=("px", "")),
    )
    course = run(Schedule(528, 3, True, programs, "px", lateness=0.3))
    assert not course.broken
    assert "All of them have completed" in str(course.ended[2])
    assert "Don't trust what threads, tasks, timers and %%px cells" in str(course.ended[2])


@pytest.mark.parametrize("is_taken_on", [True, False])
def test_a_notebook_may_leave_as_it_has_the_ranks_count_from_zero(
    monkeypatch: pytest.MonkeyPatch, is_taken_on: bool
) -> None:
    """Some have begun to, and some never hear of it: another notebook goes on with that."""
    gather, may_leave, left = clients.Link.gather, [], []

    def leave(link: Any, asked: Any, request: Any, **more: Any) -> Any:
        if isinstance(request, Resume) and may_leave and may_leave[0][0][1] is link.client:
            left.append(may_leave.pop())
            link.hub.at(link.hub.now, lambda: REAL.leave(*left[-1]))
        return gather(link, asked, request, **more)

    monkeypatch.setattr(search, "leave", lambda *course: may_leave.append(course))
    monkeypatch.setattr(clients.Link, "gather", leave)
    if not is_taken_on:
        monkeypatch.setattr(polls.Polls, "_count_anew", lambda *looked: [])
    broken = []
    for made in schedules(0, 4000, ["other"]):
        if any(p.client for p in made.programs) and made.losses is None and made.death is None:
            del may_leave[:]
            before = len(left)
            course = run(replace(made, leaves_at=0.0, leaver=1))
            broken += course.broken if len(left) > before else []
    assert len(left) > 50
    assert not broken if is_taken_on else any(line.startswith("P3") for line in broken)


def test_zeros_behind_a_stop_that_was_heard_are_told() -> None:
    """Rank 0 is not in the cell: it runs zeros, and the code of the others hears nothing of it."""
    wait = Catch((Sleep(1.5),), of_stop=True)
    launch = Launch("0,1,2", 1, (9, 0), "b", ("b",))
    steps = (wait, launch, Print("b"))
    cell = Program(9, 0, {1: steps, 2: steps}, False, stop_at=0.2094328251831663)
    guilty = frozenset({(9, 0)})
    course = run(Schedule(1110, 3, False, (cell,), "partial", guilty))
    assert not course.broken
    assert "with zeros" in str(course.ended[9])


def test_zeros_that_a_rank_has_met_which_died_since_its_reply_are_told() -> None:
    """Rank 1 is not in the cell, and runs zeros. What is left of rank 0's journal tells whose."""
    wait = Catch((Sleep(1.5),), of_stop=True)
    first = (wait, Launch("0,1", 1, (2, 0), "d"), Print("d"))
    before = {0: (Sleep(0.5),), 1: (), 2: ()}
    cell = Program(2, 1, {0: first, 2: (wait, Sleep(1.5))}, False, stop_at=0.09)
    guilty = frozenset({(2, 1)})
    programs = (Program(1, 1, before, False), cell)
    course = run(Schedule(20004740, 3, False, programs, "partial", guilty, death=(1.925, 0)))
    assert not course.broken
    assert "Rank 1 did not run the cell, and ran" in str(course.ended[2])


def test_a_skip_that_a_stop_hides_in_strict_mode_is_told() -> None:
    """What rank 1 has launched met what it had left out; no launch was made after it."""
    one, two = Launch("0,1", 1, (1, 1), "b"), Launch("0,1", 1, (1, 2), "a")
    wait = Catch((Sleep(1.5),), of_stop=True)
    cell = Program(1, 0, {0: (one, two, wait), 1: (two, wait)}, False, stop_at=1.69)
    guilty = frozenset({(1, 1)})
    course = run(Schedule(14047, 2, False, (cell,), "skip", guilty, is_strict=True))
    assert not course.broken
    assert "Rank 1 never came to a launch" in str(course.ended[1])


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_are_interrupted_from_elsewhere_stop_their_cell_once(seed: int) -> None:
    """What they say of it is no stop button that is pressed while they are brought back."""
    steps = (Repeat(200, (Sleep(0.05), Launch("0,1,2", 1, (1, 1), "c", ("a",)))),)
    cell = Program(1, 0, dict.fromkeys(range(3), steps), False, interrupt_at=1.517)
    course = run(Schedule(seed, 3, False, (cell,), lateness=0.3))
    assert not course.broken
    assert isinstance(course.ended[1], CellInterrupted)


def test_a_cell_behind_a_gate_begins_where_only_it_can_release_a_rank_of_the_one_before() -> None:
    """Rank 2 waits in cell 9 for what rank 0 left out, and rank 1 is in the next cell already."""
    first = Launch("0,1,2", 2, (9, 0), "a")
    cell = Program(9, 1, {0: (Sleep(1.5), first), 2: (first,)}, False, timeout_s=1.4)
    after = Program(10, 0, {rank: (Launch("0,1,2", 2, (10, 0), "b"),) for rank in range(3)}, False)
    course = run(Schedule(92276, 3, True, (cell, after), "partial", frozenset({(9, 1)})))
    assert course.ended.keys() == {9, 10}
    assert not course.broken


def test_ranks_that_wait_in_the_cell_behind_are_not_waited_for() -> None:
    """Rank 2 waits in cell 3 for ranks 0 and 1, which wait at the gate for the end of cell 1."""
    first = Catch((Sleep(0.01), Launch("0,1", 1, (1, 1), "d")), of_stop=True)
    cell = Program(1, 0, {0: (first,), 1: ()}, True, stop_at=0.8022011162161282)
    after = {rank: (Launch("0,1,2", 1, (3, 0), "b", ("c",)),) for rank in range(3)}
    waits = Program(3, 0, after, False)
    guilty = frozenset({(1, 2)})
    course = run(Schedule(1029425, 3, True, (cell, waits), "partial", guilty))
    assert not course.broken
    assert "Rank 1 finished the cell without launch 1" in str(course.ended[1])


@pytest.mark.parametrize("is_believed", [False, True])
def test_even_counts_do_not_tell_that_ranks_have_given_the_same_names(
    monkeypatch: pytest.MonkeyPatch, is_believed: bool
) -> None:
    """A rank that was stopped where its launch had returned has bound less than the others."""
    if is_believed:
        monkeypatch.setattr(Cell, "was_stopped_alike", property(lambda cell: True))
    launch = Launch("0,1,2", 1, (1, 0), "a", ("a",))
    each: dict[int, Any] = {0: (launch,), 1: (launch,), 2: (Sleep(0.4), launch)}
    loop = Program(1, 0, {r: (Repeat(9, s),) for r, s in each.items()}, False, timeout_s=0.7)
    made = Schedule(0, 3, True, (loop,), lateness=0.3, donates=True, is_raised_early=True)
    ran = [run(replace(made, seed=seed)) for seed in range(60)]
    broken = [line for course in ran for line in course.broken]
    assert any(line.startswith("P8") for line in broken) is is_believed, broken


@pytest.mark.parametrize("hole", FOUND)
def test_what_was_found_once_is_found_no_more(hole: str) -> None:
    """Nor with messages that come at other times, as they also do by a change of the simulator."""
    first = FOUND[hole]
    for more in range(OTHER_TIMES):
        assert run(replace(first, seed=first.seed + more)).broken == []


def test_a_restart_says_that_another_notebooks_cell_had_not_ended_alike() -> None:
    """Nobody settles it any more, and its values have come to the new processes."""
    course = run(FOUND["a restart beside another notebook's cell that goes wrong"])
    assert respawn.ENDED_UNLIKE in course.said[20]


HOLES: dict[str, list[tuple[Any, str, Any]]] = {
    "queued cells hide a skip": [(wire.cell_ends, "guards", lambda ranks, later: False)],
    "even counts are believed": [(wire.cell_ends, "differing", lambda ends: [])],
    "what may still launch is not known": [(Rank, "_background", lambda rank: [])],
    "a stopped cell's programs are not compared": [
        (polls.Polls, "_is_of_interrupt", lambda self, found: self._watch.why == "stop"),
        (Ending, "is_taken_back", property(lambda ending: False)),  # else its end tells it
    ],
    "a gate is opened for cells that run": [(World, "open_gates", open_all_gates)],
    "a launch is counted by Python code": [(Journal, "confirmations", count_in_python)],
    "an interrupt from elsewhere is a divergence": [
        (polls.Polls, "_is_of_interrupt", find_in_other_cells),
        (Cell, "_take_reply", stop_no_others),
    ],
    "strict: what threads launch is a cell's": [(Journal, "origin", origin_in_strict_mode)],
    "strict: what XLA refuses on one rank hangs all": [(strict, "_met", meet_at_first)],
    "strict: what a rank skips meets its next cell": [(strict, "look", look_at_order_alone)],
    "what is compiled is announced to nobody": [(Journal, "announcing", announce_to_nobody)],
    "what is compiled is in no circle": [(deadlock, "find", find_what_runs)],
    "strict: what waits for others was never compiled": [
        (lockstep, "_as_compiled", as_launched),
    ],
    "a survivor's value is taken for a dead rank's own": [
        (what_returns, "is_common", lambda name, bodies: True),
    ],
    "a cell is taken back while others replace the ranks": [
        (action_runner.ActionRunner, "_take_back", undo_beside_a_restart),
        (Turns, "quiet", look_only),
    ],
    "values come before it is known how a cell went": [(between_cells, "standing", ask_who_runs)],
    "a resync beside others' cells": [(handle.Cluster, "resync", resync_at_once)],
    "an error keeps a value from its name on one rank": [
        (Cell, "was_stopped_apart", property(lambda cell: False)),
    ],
}  # fmt: skip


def is_stopped(made: Schedule) -> bool:
    return any(program.is_stopped for program in made.programs)


def has_losses(made: Schedule) -> bool:
    return made.losses is not None


def has_acts(made: Schedule) -> bool:
    return any(program.act is not None for program in made.programs)


def has_resync(made: Schedule) -> bool:
    return any(p.act is not None and p.act[0] == "resync" for p in made.programs)


# Of losses and of a resync, which few schedules have.
FOUND_LATER = {
    "a cell is taken back while others replace the ranks": 20_000,
    "a resync beside others' cells": 100_000,
}
# Where it takes one in hundreds: what a schedule that shows it has. Others are not carried out.
SHOWN_BY: dict[str, Callable[[Schedule], bool]] = {
    "queued cells hide a skip": lambda made: made.fault == "refused",
    "even counts are believed": lambda made: made.fault == "refused",
    "a stopped cell's programs are not compared": is_stopped,
    "an interrupt from elsewhere is a divergence": is_stopped,
    "strict: what threads launch is a cell's": lambda made: made.is_strict,
    "strict: what XLA refuses on one rank hangs all": lambda made: made.is_strict,
    "strict: what a rank skips meets its next cell": lambda made: made.is_strict,
    "what is compiled is announced to nobody": lambda made: made.is_tuned,
    "what is compiled is in no circle": lambda made: made.is_tuned,
    "strict: what waits for others was never compiled": lambda made: (
        made.is_tuned and made.is_strict
    ),
    "a survivor's value is taken for a dead rank's own": has_losses,
    "a cell is taken back while others replace the ranks": has_losses,
    "values come before it is known how a cell went": has_acts,
    "a resync beside others' cells": has_resync,
    "an error keeps a value from its name on one rank": lambda made: made.fault == "cut",
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_that_is_put_back_is_found(hole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in HOLES[hole]:
        monkeypatch.setattr(owner, name, value)
    shown_by = SHOWN_BY.get(hole, lambda made: True)
    made_within = schedules(0, FOUND_LATER.get(hole, FOUND_WITHIN))
    found = (made for made in made_within if shown_by(made) and run(made).broken)
    assert next(found, None) is not None


RARE: dict[str, tuple[Any, str, Any]] = {
    "a cell is taken back while the other notebook replaces the ranks": (
        Turns, "quiet", look_only,
    ),
    "a rank has run what waits elsewhere for a cell that is taken back": (
        restart, "_with_undone", alone,
    ),
    "nobody hears of what another notebook's cell has bound": (
        change_notices.ChangeNotices, "cell_ended", lambda *told: None,
    ),
    "nobody hears of what another notebook takes back": (
        change_notices.ChangeNotices, "spoil", lambda *told: None,
    ),
    "a cell that ends after its rank was saved has ended well": (
        change_notices.ChangeNotices, "hold", lambda *asked: None,
    ),
    "a stop is raised on some ranks before a name is bound": (
        Cell, "was_stopped_apart", property(lambda cell: False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("hole", RARE)
def test_a_hole_that_few_random_schedules_show_is_seen_in_the_one_that_was_found(
    hole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*RARE[hole])
    made = FOUND[hole]
    each = (replace(made, seed=made.seed + n) for n in range(OTHER_TIMES))
    assert any(run(one).broken for one in each)
