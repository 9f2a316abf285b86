"""Ranks that are all in one launch for long are told of, and never called hung."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.model.long_launches import LEAST_S, PROGRAMS, LongLaunches, UsualTimes

SEQ = 5
SITE = "/venv/lib/python3.11/site-packages"
CELL = ["/tmp/ipykernel_jaxcluster/3-aa.py", 5, "<module>", "print(float(y))", 3, False]
EXECUTE = ["/x/jaxcluster/engine/private/launches.py", 79, "execute_sharded", "", None, True]
LAUNCH = ["/x/jaxcluster/engine/journal.py", 296, "launch", "results.extend(...)", None, True]
WRAPPED = ["/x/jaxcluster/engine/private/launches.py", 228, "__call__", "", None, True]
CALLBACK = ["/tmp/ipykernel_jaxcluster/1-bb.py", 8, "hold", "time.sleep(0.1)", 1, False]
STRICT = ["/x/jaxcluster/engine/strict.py", 90, "wait", "store.get(key)", None, True]
VALUE = [f"{SITE}/jax/_src/array.py", 623, "_value", "self._copy()", None, True]
BLOCK = [f"{SITE}/jax/_src/api.py", 2492, "try_to_block", "x.block_until_ready()", None, True]
COMPILE = [f"{SITE}/jax/_src/compiler.py", 300, "backend_compile", "compile(...)", None, True]
SLEEP = [*CELL[:3], "time.sleep(60)", 3, False]
METHOD = [*CELL[:3], "y.block_until_ready()", 3, False]


def launch(seq: int, name: str = "jit(f)", cell_seq: int = SEQ) -> wire.Launch:
    return wire.Launch(seq, "0,1", name, hash(name), 3, 5, "", cell_seq)


def report(rank: int, *stack: list[Any], launches: int = 1, **more: Any) -> wire.RankReport:
    state = wire.RankState(rank, 9, "here", "running", seq=SEQ, cell=3, line=5, **more)
    return wire.RankReport(state, [CELL, *stack], [launch(n) for n in range(launches)])


def looks(
    *stack: list[Any], until: float = 60.0, other: wire.RankReport | None = None, **more: Any
) -> list[tuple[float, str]]:
    """When what is told, where two ranks stand there from second 1 on."""
    standing = LongLaunches(SEQ, [0, 1], 0.0)
    told = []
    for second in range(1, int(until) + 1):
        reports = {0: report(0, *stack, **more), 1: other or report(1, *stack, **more)}
        if notice := standing.look(reports, float(second)):
            told.append((second, notice))
    return told


@pytest.mark.parametrize("stack", [(EXECUTE, LAUNCH), (EXECUTE, LAUNCH, WRAPPED, CALLBACK)])
def test_ranks_in_one_launch_are_told_with_its_name_and_line(
    stack: tuple[list[Any], ...],
) -> None:
    told = looks(*stack, until=15)
    assert [at for at, _ in told] == [11, 12, 13, 14, 15]
    assert told[0][1] == (
        "Ranks 0, 1 have been in the same launch for 10 s, in lockstep: launch 1, jit(f), "
        "cell [3] line 5. It may just take long, or be in a loop that never ends."
    )


def test_how_long_they_have_been_in_it_begins_again_with_each_launch() -> None:
    standing, lasted = LongLaunches(SEQ, [0, 1], 0.0), []
    for second, launches in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2)):
        each = {r: report(r, EXECUTE, LAUNCH, launches=launches) for r in (0, 1)}
        standing.look(each, float(second))
        lasted.append(standing.lasted_s)
    assert lasted == [0, 1, 2, 0, 1]
    standing.look({**each, 1: report(1, SLEEP, launches=2)}, 6.0)
    assert standing.lasted_s == 0


@pytest.mark.parametrize("stack", [(VALUE,), (BLOCK,), (METHOD,)])
def test_ranks_that_wait_for_a_result_are_told_what_they_launched_last(
    stack: tuple[list[Any], ...],
) -> None:
    told = looks(*stack, until=11)
    assert [at for at, _ in told] == [11]
    assert told[0][1].startswith(
        "Ranks 0, 1 have waited 10 s for a result, in lockstep. All have launched the same last: "
        "launch 1, jit(f), cell [3] line 5."
    )


@pytest.mark.parametrize(
    "stack", [(), (SLEEP,), (COMPILE,), (EXECUTE, LAUNCH, STRICT), (VALUE, SLEEP)]
)
def test_ranks_that_compile_or_compute_or_agree_on_a_launch_are_not_in_it(
    stack: tuple[list[Any], ...],
) -> None:
    assert looks(*stack) == []


def test_nothing_is_told_while_one_rank_is_elsewhere_or_silent() -> None:
    assert looks(VALUE, other=report(1, SLEEP)) == []
    assert looks(VALUE, other=report(1, VALUE, launches=2)) == []
    assert looks(VALUE, other=report(1, VALUE, paused="debugger")) == []
    another = report(1, VALUE)
    assert looks(VALUE, other=replace(another, launches=[launch(0, "jit(g)")])) == []
    assert looks(VALUE, other=replace(another, announced=launch(1))) == []
    assert LongLaunches(SEQ, [0, 1], 0.0).look({0: report(0, VALUE)}, 60.0) == ""


def test_a_check_of_ours_is_not_told() -> None:
    own = [
        replace(report(rank, VALUE), launches=[launch(0, cell_seq=wire.OURS)]) for rank in (0, 1)
    ]
    standing = LongLaunches(SEQ, [0, 1], 0.0)
    assert [standing.look(dict(enumerate(own)), at) for at in (1.0, 60.0)] == ["", ""]


def test_a_cell_of_long_launches_gets_twenty_times_as_long() -> None:
    standing = LongLaunches(SEQ, [0, 1], 0.0)
    for second in range(1, 401):  # a launch each 10 s, ten of them, and then one that stays
        reports = {r: report(r, VALUE, launches=min(second // 10, 10) + 1) for r in (0, 1)}
        if told := standing.look(reports, float(second)):
            break
    assert second == 100 + 20 * 10
    assert "have waited 3 min" in told


def test_each_new_launch_begins_anew() -> None:
    standing = LongLaunches(SEQ, [0, 1], 0.0)
    for second in range(1, 200):
        launches = 1 + second // (LEAST_S - 1)
        reports = {r: report(r, VALUE, launches=int(launches)) for r in (0, 1)}
        assert standing.look(reports, float(second)) == ""


def told_after(stays: UsualTimes, lasts: float, seq: int, ends: bool = True) -> float | None:
    """When it is told of a cell of one launch that lasts so long, by seconds of its own."""
    standing = LongLaunches(seq, [0, 1], 0.0, stays)
    for second in range(int(lasts) + 1):
        each = {r: replace(report(r, VALUE), launches=[launch(seq, cell_seq=seq)]) for r in (0, 1)}
        each = {r: replace(one, state=replace(one.state, seq=seq)) for r, one in each.items()}
        if standing.look(each, float(second)):
            return float(second)
    if ends:
        standing.end()
    return None


def test_a_program_that_takes_long_in_each_cell_gets_twenty_times_as_long() -> None:
    stays = UsualTimes()
    assert [told_after(stays, 9, seq) for seq in (1, 2, 3)] == [None] * 3
    assert told_after(stays, 400, 4) == 20 * 9


@pytest.mark.parametrize("seed", range(3))
def test_a_night_of_random_programs_has_no_alarm_before_twenty_times_their_median(
    seed: int,
) -> None:
    """Each of 30 programs takes 1 ms to 60 s, give or take; all that is told is that late."""
    chance, stays, now, seq = random.Random(seed), UsualTimes(), 0.0, 0
    medians = [10 ** chance.uniform(-3, math.log10(60)) for _ in range(30)]
    taken: dict[str, list[float]] = {}
    alarms = 0
    while now < 8 * 3600:
        seq += 1
        standing, begun = LongLaunches(seq, [0, 1], now, stays), []
        look = now + chance.uniform(0.5, 1.5)
        for n in range(chance.choice([1, 1, 3, 30])):
            which = chance.randrange(len(medians))
            begun.append(launch(n, f"jit(f{which})", seq))
            lasts = medians[which] * math.exp(chance.gauss(0, 1))
            end = now + lasts
            while look < end:
                state = replace(report(0, VALUE).state, seq=seq)
                own = replace(report(0, VALUE), state=state, launches=begun[-64:])
                each = {r: replace(own, state=replace(state, rank=r)) for r in (0, 1)}
                if standing.look(each, look):
                    before = taken.get(begun[-1].name, [])
                    usual = statistics.median(before[-64:] or [0])
                    alarms += bool(before) and look - now < max(LEAST_S, 20 * (usual - 1))
                look += chance.uniform(0.8, 1.2)
            taken.setdefault(begun[-1].name, []).append(lasts)
            now = end
        standing.end()
    assert alarms == 0


def test_what_was_stopped_says_nothing_of_how_long_it_takes() -> None:
    stays = UsualTimes()
    assert told_after(stays, 9, 1, ends=False) is None
    assert told_after(stays, 400, 2) == 10


def test_the_median_counts_short_launches_too() -> None:
    stays = UsualTimes()
    standing = LongLaunches(SEQ, [0, 1], 0.0, stays)
    for second, launches in ((1, 1), (2, 1), (3, 1), (4, 6), (5, 6)):
        each = {r: report(r, VALUE, launches=launches) for r in (0, 1)}
        standing.look(each, float(second))
    assert sorted(stays._seconds[hash("jit(f)")]) == [0, 0, 0, 0, 3]
    standing.end()
    standing.end()  # by each rank's reply
    assert sorted(stays._seconds[hash("jit(f)")]) == [0, 0, 0, 0, 2, 3]


def test_what_is_kept_of_programs_is_bounded() -> None:
    stays = UsualTimes()
    for program in range(PROGRAMS + 5):
        for _ in range(100):
            stays.add(program, 1.0)
    assert (len(stays._seconds), len(stays._seconds[PROGRAMS])) == (PROGRAMS, 64)
    assert (stays.usual(4), stays.usual(5)) == (0.0, 1.0)


def test_a_rank_that_stays_in_a_launch_that_others_have_left_is_told() -> None:
    gone = wire.RankState(1, 9, "here", "idle", ended=SEQ, launches={"0,1": [1, 7]})
    other = wire.RankReport(gone, [], [launch(0)])
    told = looks(EXECUTE, LAUNCH, other=other, until=11)
    assert [at for at, _ in told] == [11]
    assert told[0][1] == (
        "Rank 0 has been for 10 s in launch 1, jit(f), cell [3] line 5, which rank 1 has made, "
        "too, and gone on. It may just take long. If the program has collectives in a branch or "
        "loop that ranks take differently, it never ends."
    )
    not_there = replace(other, state=replace(gone, launches={}))
    assert looks(EXECUTE, LAUNCH, other=not_there) == []
