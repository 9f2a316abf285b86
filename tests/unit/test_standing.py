"""Ranks that are all in one launch for long are told of, and never called hung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.model.standing import LEAST_S, Standing

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
    standing = Standing(SEQ, [0, 1], 0.0)
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
    standing, lasted = Standing(SEQ, [0, 1], 0.0), []
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
    assert Standing(SEQ, [0, 1], 0.0).look({0: report(0, VALUE)}, 60.0) == ""


def test_a_check_of_ours_is_not_told() -> None:
    own = [
        replace(report(rank, VALUE), launches=[launch(0, cell_seq=wire.OURS)]) for rank in (0, 1)
    ]
    standing = Standing(SEQ, [0, 1], 0.0)
    assert [standing.look(dict(enumerate(own)), at) for at in (1.0, 60.0)] == ["", ""]


def test_a_cell_of_long_launches_gets_twenty_times_as_long() -> None:
    standing = Standing(SEQ, [0, 1], 0.0)
    for second in range(1, 401):  # a launch each 10 s, ten of them, and then one that stays
        reports = {r: report(r, VALUE, launches=min(second // 10, 10) + 1) for r in (0, 1)}
        if told := standing.look(reports, float(second)):
            break
    assert second == 100 + 20 * 10
    assert "have waited 3 min" in told


def test_each_new_launch_begins_anew() -> None:
    standing = Standing(SEQ, [0, 1], 0.0)
    for second in range(1, 200):
        launches = 1 + second // (LEAST_S - 1)
        reports = {r: report(r, VALUE, launches=int(launches)) for r in (0, 1)}
        assert standing.look(reports, float(second)) == ""
