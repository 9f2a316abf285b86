"""The order of programs of sets of processes that overlap."""

from __future__ import annotations

import dataclasses

import pytest
from journals import launched

from jaxcluster import wire
from jaxcluster.engine.counted import Program
from jaxcluster.engine.journal import Journal
from jaxcluster.model import diagnose, findings, lockstep
from jaxcluster.model.skipped import to_replay

ALL, PAIR, TWO, OTHERS = "0,1,2,3", "0,1", "1,2", "2,3"


def program(processes: str, fingerprint: int) -> Program:
    return Program("jit_f", fingerprint, processes, "", None)


SUM, PART, BOTH, REST = program(ALL, 5), program(PAIR, 6), program(TWO, 7), program(OTHERS, 8)


def report(rank: int, *programs: Program, taken_back: bool = False) -> wire.RankReport:
    journal = Journal()
    for one in programs:
        launched(journal, one)
    if taken_back:
        with pytest.raises(ZeroDivisionError):
            journal.launch(PART, lambda error: True, lambda: 1 // 0)
    state = wire.RankState(rank, 100 + rank, "here", "idle", launches=journal.launches())
    return wire.RankReport(state, [], journal.tail(99))


def found(*reports: wire.RankReport) -> findings.Report | findings.Suspicion | None:
    named = {r.state.rank: r for r in reports}
    return diagnose.diagnose(named, named, "", 1)


def in_lockstep(*reports: wire.RankReport) -> bool:
    return lockstep.in_lockstep({r.state.rank: r.state.launches for r in reports})


def test_one_order_is_in_lockstep() -> None:
    first = report(0, SUM, PART, SUM), report(1, SUM, PART, SUM), report(2, SUM, SUM)
    assert in_lockstep(*first)
    assert found(*first) is None


def test_another_order_on_one_rank_is_found_and_told() -> None:
    reports = report(0, SUM, PART), report(1, PART, SUM), report(2, SUM), report(3, SUM)
    assert not in_lockstep(*reports)
    told = found(*reports)
    assert isinstance(told, findings.Report)
    assert told.kind == "mismatch"
    assert str(told).startswith(
        "The ranks launched programs of ranks 0, 1 and of ranks 0-3 in diff"
    )
    assert "rank 0: first jit_f" in str(told)
    assert "rank 1: first jit_f" in str(told)


def test_another_order_later_on_is_found_too() -> None:
    same = (SUM, PART, SUM)
    assert not in_lockstep(report(0, *same, PART, SUM), report(1, *same, SUM, PART))
    assert not in_lockstep(report(0, SUM, SUM, PART), report(1, SUM, PART, SUM))


def test_a_member_that_says_nothing_is_left_out() -> None:
    three = program("0,1,2", 9)
    reports = report(0, SUM, three), report(1, three, SUM)
    counts = {r.state.rank: r.state.launches for r in reports}
    (pair,) = (one for one in counts[0] if wire.CROSSING in one)
    assert lockstep.members(pair) == (0, 1, 2)
    assert lockstep.crossed(counts, pair)


def test_it_can_not_be_replayed() -> None:
    reports = {0: report(0, SUM, PART), 1: report(1, PART, SUM)}
    counts = {rank: one.state.launches for rank, one in reports.items()}
    assert to_replay(counts, {rank: one.launches for rank, one in reports.items()}) is None


def test_a_rank_that_lacks_one_has_skipped_it_and_nothing_else() -> None:
    reports = {0: report(0, SUM, PART), 1: report(1, SUM), 2: report(2, SUM), 3: report(3, SUM)}
    counts = {rank: one.state.launches for rank, one in reports.items()}
    todo = to_replay(counts, {rank: one.launches for rank, one in reports.items()})
    assert todo is not None
    assert [(e.processes, e.fingerprint) for e in todo[1]] == [(PAIR, 6)]


def test_sets_that_share_one_process_or_none_have_no_order() -> None:
    assert in_lockstep(report(1, PART, BOTH), report(0, PART), report(2, BOTH))
    assert list(report(1, PART, BOTH).state.launches) == [PAIR, TWO]
    assert list(report(0, PART, REST).state.launches) == [PAIR, OTHERS]


def test_a_launch_that_is_taken_back_leaves_no_trace() -> None:
    assert in_lockstep(report(0, SUM, PART, SUM, taken_back=True), report(1, SUM, PART, SUM))


def test_a_new_count_forgets_the_order() -> None:
    journal = Journal()
    for one in (SUM, PART):
        launched(journal, one)
    journal.restart()
    assert journal.launches() == {}


def test_members_of_a_pair_are_in_both_sets() -> None:
    assert lockstep.members(wire.crossing("0,1,2", "1,2,13")) == (1, 2)
    assert lockstep.members("1,12") == (1, 12)


def test_a_launch_that_is_announced_crosses_other_sets_as_one_that_is_made() -> None:
    """In strict mode one rank may have launched already what another waits to launch."""
    for before in ([PART], [PART, SUM, PART], [SUM, PART]):
        made, waits = report(0, *before, SUM), report(1, *before)
        seq = waits.state.launches.get(ALL, [0])[0]
        announced = wire.Launch(seq, ALL, SUM.name, SUM.fingerprint)
        waits = dataclasses.replace(waits, announced=announced)
        assert lockstep.with_announced({1: waits})[1].state.launches == made.state.launches
        assert found(made, waits) is None


def test_launches_are_made_by_all_up_to_the_rank_that_has_made_fewest() -> None:
    """What a thread has launched on one rank alone is to be met yet."""
    reports = report(0, PART, PART, PART, SUM), report(1, PART, PART, SUM), report(2, SUM)
    counts = {r.state.rank: r.state.launches for r in reports}
    assert lockstep.made_by_all(counts) == {PAIR: 2}  # rank 3 of the other set says nothing
    assert lockstep.made_by_all({**counts, 3: {}}) == {PAIR: 2, ALL: 0}
