"""One cell, event by event, with made-up clocks: what it becomes, and what is to be done."""

from __future__ import annotations

import dataclasses

import pytest

from jaxcluster import wire
from jaxcluster.lockstep import actions, events, states
from jaxcluster.lockstep.cell import (
    DEATH_NOTICE_AFTER_S,
    NOTICE_AFTER_S,
    REPLAY_AFTER_S,
    SCRIPT_ANSWER_S,
    SCRIPT_STOP_S,
    STILL_WORKING_S,
    SUSPECTED_S,
    Cell,
)
from jaxcluster.lockstep.facts import Facts
from jaxcluster.lockstep.polls import FOREIGN_S
from jaxcluster.lockstep.states import Course, Impossible, State
from jaxcluster.model import deadlock, findings, notices
from jaxcluster.model.health import ANSWER_S, GRACE_S, HOPELESS_ANSWER_S, POLL_S
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.progress import Line

T0 = 1000.0
SEQ = 7


def cell(n: int = 2, **more: object) -> Cell:
    record = CellRecord(SEQ, 3, "y = f(x)", list(range(n)))
    return Cell(record, T0, **more)  # type: ignore[arg-type]


def reply(
    rank: int, status: str = "ok", now: float = T0, ename: str = "ValueError"
) -> events.Event:
    error = wire.ErrorInfo(ename, "no", []) if status != "ok" else None
    return events.Replied(now, wire.CellReply(rank, SEQ, status, 0.1, error))


def running(rank: int, **more: object) -> wire.RankReport:
    state = wire.RankState(rank, 9, "here", "running", seq=SEQ, cell=3, line=1, **more)  # type: ignore[arg-type]
    return wire.RankReport(state, [], [])


def polled(now: float, *reports: wire.RankReport) -> events.Looked:
    by_rank = {report.state.rank: report for report in reports}
    return events.Looked(now, actions.Ask("poll"), by_rank, Facts(now, (0, 1)))


# ------------------------------------------------------------------------------------ its states


def test_each_state_follows_those_that_it_may_follow_alone() -> None:
    ways = {was: {now for now in State if _may(was, now)} for was in State}
    assert ways[State.RUNNING] == {State.LEAVING, State.ENDED}
    assert ways[State.LEAVING] == {State.ENDED}
    assert State.RUNNING not in set().union(*ways.values())
    assert ways[State.DIVERGED] == {State.SETTLED}
    assert State.SETTLED not in ways[State.RUNNING] | ways[State.LEAVING]


def _may(was: State, now: State) -> bool:
    return now in states._MAY_FOLLOW[was]


def test_a_forbidden_step_raises_and_is_not_taken() -> None:
    course = Course(T0)
    with pytest.raises(Impossible, match=r"settled can't follow running.*0\.000 s: running"):
        course.become(State.SETTLED, T0 + 1, "so it seems")
    assert course.state is State.RUNNING
    assert [state for _, state, _ in course.story] == [State.RUNNING]


def test_a_story_whose_time_goes_back_is_impossible() -> None:
    course = Course(T0)
    with pytest.raises(Impossible, match="ended came before running"):
        course.become(State.ENDED, T0 - 1, "so it seems")


def test_a_step_without_a_reason_is_impossible() -> None:
    """It would be told as one: "since ."."""
    with pytest.raises(Impossible, match="nothing says why it is ended"):
        Course(T0).become(State.ENDED, T0 + 1, "")


def test_a_story_is_looked_at_whole_each_time() -> None:
    course = Course(T0)
    course.story = ((T0, State.RUNNING, ""), (T0, State.DIVERGED, "a step that nobody took"))
    with pytest.raises(Impossible, match="diverged can't follow running"):
        course.become(State.SETTLED, T0, "so it seems")


def test_a_story_begins_where_the_cell_was_sent() -> None:
    with pytest.raises(Impossible, match="never sent"):
        states.check(((T0, State.ENDED, ""),))


# ------------------------------------------------------------------------------- what comes of it


def test_a_cell_has_ended_when_all_its_ranks_have() -> None:
    it = cell()
    assert it.feed(reply(0)) == []
    assert it.course.state is State.RUNNING
    assert it.feed(reply(1, now=T0 + 1)) == []
    assert it.course.state is State.ENDED
    assert it.record.ok and it.is_complete


def test_stop_interrupts_its_ranks_and_prepares_to_bring_them_back() -> None:
    it = cell()
    todo = it.feed(events.Stopped(T0 + 1))
    assert todo == [
        actions.WatchSilent(frozenset({0, 1})),
        actions.Interrupt((0, 1), spare=False),
        actions.Prepare(),
        actions.Changed(),
    ]
    assert it.course.state is State.LEAVING
    assert it.deadline() == T0 + 1 + REPLAY_AFTER_S
    assert actions.StepReplay() in it.feed(events.Tick(T0 + 1 + REPLAY_AFTER_S))


def test_a_second_stop_waits_for_nobody() -> None:
    it = cell()
    it.feed(events.Stopped(T0 + 1))
    it.feed(events.Stopped(T0 + 1.1))
    assert it.course.state is State.ENDED
    assert it.left_early and it.silent == (0, 1)


def test_who_does_not_leave_in_time_is_given_up() -> None:
    it = cell()
    it.feed(events.Stopped(T0))
    it.feed(reply(0, "interrupted", T0 + 1))
    it.feed(events.Tick(T0 + ANSWER_S))
    assert it.silent == (1,)
    assert [why for _, _, why in it.course.story] == ["sent", "stop", "gave up on rank 1"]


def test_a_replay_that_is_stuck_shortens_the_wait() -> None:
    it = cell()
    it.feed(events.Stopped(T0))
    it.feed(events.Stepped(T0 + 0.5, "they wait for the dead", 0))
    assert it.watch.answer_s < ANSWER_S


def test_ranks_that_wait_for_each_other_are_made_to_launch_nothing_more() -> None:
    it = cell()
    it.polls.report = findings.Report(
        "circle", "0,1", 0, (0, 1), (), ("",), hopeless="they wait for each other"
    )
    it.feed(events.Stopped(T0))
    assert actions.StepReplay() not in it.feed(events.Tick(T0 + REPLAY_AFTER_S))


def test_nothing_is_expected_of_ranks_that_wait_for_a_dead_one() -> None:
    for dead, answer_s in ({}, ANSWER_S), ({1: wire.Death("gone")}, HOPELESS_ANSWER_S):
        it = cell()
        it.polls.report = findings.Report("missing", "0,1", 0, (1,), (0,), ("",))
        facts = Facts(T0 + 1, (0, 1), dead)
        it.feed(events.Looked(T0 + 1, actions.Ask("poll"), {0: running(0)}, facts))
        assert it.course.state is State.LEAVING
        assert it.watch.answer_s == answer_s


def test_before_ranks_are_interrupted_after_an_error_it_is_looked_why() -> None:
    it = cell()
    it.feed(reply(0, "error"))
    todo = it.feed(events.Tick(T0 + GRACE_S))
    kinds = [type(one) for one in todo]
    assert actions.Ask("last") in todo
    assert kinds.index(actions.Ask) < kinds.index(actions.Interrupt)


def test_where_its_time_is_up_its_places_are_asked_for_first() -> None:
    it = cell(timeout_s=1.0)
    asked, *rest = it.feed(events.Tick(T0 + 1.0))
    assert asked == actions.Ask("places", (0, 1))
    assert actions.Interrupt((0, 1), spare=False) in rest
    assert isinstance(asked, actions.Ask)
    reports = {0: running(0), 1: running(1)}
    assert it.feed(events.Looked(T0 + 1.1, asked, reports, Facts(T0 + 1.1))) == []
    assert it.places == ["Ranks 0, 1 were in f at cell [3] line 1."]


def test_an_interrupt_of_somebody_elses_that_no_code_hears_is_one_of_the_stop_button() -> None:
    it = cell()
    for stops in (0.5, 0.5), (2.5, 0.0):  # one of them has heard it, and goes on
        assert it.feed(polled(T0 + 2, *(running(r, stop_waits_s=stops[r]) for r in range(2)))) != []
        assert it.course.state is State.RUNNING
    todo = it.feed(polled(T0 + 4, *(running(r, stop_waits_s=2.5) for r in range(2))))
    assert actions.Interrupt((0, 1), spare=False) in todo
    assert it.watch.why == "stop"
    todo = it.feed(events.Tick(T0 + 4 + ANSWER_S))
    assert it.silent == (0, 1)


def test_one_of_another_cell_says_nothing_of_this() -> None:
    it = cell()
    other = dataclasses.replace(running(0, stop_waits_s=9.0).state, seq=SEQ - 1)
    it.feed(polled(T0 + 2, wire.RankReport(other, [], []), running(1, stop_waits_s=9.0)))
    assert it.course.state is State.RUNNING


def in_one_launch(rank: int) -> wire.RankReport:
    within = ["/x/jaxcluster/engine/journal.py", 90, "launch", "", None, True]
    launch = wire.Launch(0, "0,1", "jit(f)", 4, 3, 1, "", SEQ)
    return dataclasses.replace(running(rank), stack=[within], launches=[launch])


def test_a_cell_ends_when_all_its_ranks_have_been_in_one_launch_for_so_long() -> None:
    it, endless = cell(stall_s=30.0), cell()
    for second in range(1, 33):
        look = polled(T0 + second, in_one_launch(0), in_one_launch(1))
        todo = it.feed(look)
        stopped = actions.Interrupt((0, 1), spare=False) in todo
        assert stopped is (second == 31)
        assert not any(isinstance(one, actions.Interrupt) for one in endless.feed(look))
    assert (it.watch.why, it.stalled_s) == ("timeout", 30.0)
    going_on = cell(stall_s=3.0)
    for second in range(1, 20):  # one of them is elsewhere now and then
        other = in_one_launch(1) if second % 3 else running(1)
        going_on.feed(polled(T0 + second, in_one_launch(0), other))
    assert not going_on.watch.why


def test_an_error_is_told_early_where_others_still_run() -> None:
    it = cell()
    it.feed(reply(0, "error"))
    (notice,) = it.feed(events.Tick(T0 + NOTICE_AFTER_S))
    assert isinstance(notice, actions.Notice)
    assert notice.text.startswith("Rank 0 raised ValueError: no (cell [3]).")
    assert it.feed(events.Tick(T0 + NOTICE_AFTER_S + 0.1)) == []


def test_what_became_of_another_notebooks_cell_is_said_also_where_no_notice_is_shown() -> None:
    notices_of = cell().feed(events.TookBack(T0, ("A cell is undone.", "One is not.")))
    assert [type(one.text) for one in notices_of] == [notices.Warned] * 2
    assert [str(one.text) for one in notices_of] == ["A cell is undone.\n", "One is not.\n"]


def test_an_error_that_came_of_a_death_is_not_told_before_it() -> None:
    it = cell(3)
    it.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    it.feed(reply(0, "error"))
    todo = it.feed(events.Tick(T0 + NOTICE_AFTER_S))
    assert not any(isinstance(one, actions.Notice) for one in todo)


def test_an_error_that_all_share_is_not_told_early() -> None:
    it = cell()
    it.feed(reply(0, "error"))
    it.feed(reply(1, "error"))
    assert it.feed(events.Tick(T0 + NOTICE_AFTER_S)) == []


def test_a_death_is_told_once_where_others_are_waited_for_long() -> None:
    it = cell()
    it.feed(events.Died(T0, 1, "killed by SIGKILL", -9))
    late = T0 + DEATH_NOTICE_AFTER_S
    it.watch.answer_s = 60.0
    told = [one for one in it.feed(events.Tick(late)) if isinstance(one, actions.Notice)]
    assert [one.text.partition(".")[0] for one in told] == ["Rank 1 died"]
    again = it.feed(events.Tick(late + 1))
    assert not any(isinstance(one, actions.Notice) for one in again)
    assert it.was_aborted({})


def ended(rank: int, status: str, own: dict[str, int], *given_up: str) -> events.Event:
    counts = {processes: [count, 5] for processes, count in own.items()}
    told = wire.CellReply(rank, SEQ, status, 0.1, own=counts, given_up=[*given_up])
    return events.Replied(T0, told)


@pytest.mark.parametrize(
    ("second", "is_found"),
    [
        (ended(1, "ok", {"0,1": 1}), True),
        (ended(1, "ok", {"0,1": 2}), False),  # it has made it
        (ended(1, "ok", {"0,1": 1}, "0,1"), False),  # its code has heard the stop, there too
        (ended(1, "interrupted", {"0,1": 1}), False),  # it would have come to it
        (ended(1, "error", {"0,1": 1}), False),  # its error says why
        (ended(1, "interrupted", {}, "0,1,2"), True),  # they would wait for each other
        (ended(1, "interrupted", {}, "1,2"), False),  # ... and here not
    ],
)
def test_who_did_not_come_to_what_stopped_ranks_had_announced_is_found(
    second: events.Event, is_found: bool
) -> None:
    for status in ("interrupted", "ok"):
        it = cell()
        it.feed(events.Stopped(T0))
        it.feed(ended(0, status, {"0,1": 1}, "0,1"))
        it.feed(second)
        found = it.polls.find_given_up()
        assert bool(found) == it.was_aborted({}) == is_found
        if is_found:
            assert it.polls.report is not None and it.polls.report.cell_seq == SEQ


def test_who_quits_a_debugger_or_was_stopped_by_others_stops_the_cell() -> None:
    assert actions.PressStop() in cell().feed(reply(0, "error", ename="BdbQuit"))
    assert actions.PressStop() in cell().feed(reply(0, "interrupted"))
    it = cell()
    it.feed(events.Stopped(T0))
    assert actions.PressStop() not in it.feed(reply(0, "interrupted"))


def test_ranks_that_a_person_holds_are_not_interrupted() -> None:
    it = cell(timeout_s=1.0)
    it.feed(events.Held(T0 + 0.5, 0, "debugger"))
    assert it.watch.paused == {0} and it.record.held == {0}
    todo = it.feed(events.Tick(T0 + 2.0))
    assert not any(isinstance(one, actions.Interrupt) for one in todo)


def test_a_look_without_a_finding_changes_nothing() -> None:
    it = cell()
    assert it.feed(events.Tick(T0 + POLL_S)) == [actions.Ask("poll")]
    assert it.feed(polled(T0 + POLL_S, running(0), running(1))) == [
        actions.WatchSilent(frozenset())
    ]
    assert it.course.state is State.RUNNING


def test_where_ranks_say_nothing_the_next_look_does_not_wait_as_long() -> None:
    it = cell()
    assert actions.WatchSilent(frozenset({1})) in it.feed(polled(T0 + 1, running(0)))
    assert it.feed(events.Tick(T0 + 3)) == [actions.Ask("poll", timeout_s=actions.SHORT_S)]


def test_who_still_works_is_told_in_one_line_that_goes_on_and_is_gone_at_the_end() -> None:
    it = cell()
    it.feed(reply(0))
    late = T0 + STILL_WORKING_S
    *_, ask = it.feed(polled(late, running(1)))
    assert ask == actions.ExplainSilent(())
    told = "Rank 1 still works at cell [3] line 1 ({} s); rank 0 has ended the cell."
    assert it.feed(events.Explained(late, ())) == [status(told.format(5), for_logs=True)]
    assert actions.ExplainSilent(()) in it.feed(polled(late + 1, running(1)))
    assert it.feed(events.Explained(late + 1, ())) == [status(told.format(6))]
    it.feed(polled(late + 11, running(1)))
    assert it.feed(events.Explained(late + 11, ())) == [status(told.format(16), for_logs=True)]
    assert status("") in it.feed(reply(1, now=late + 12))


def status(text: str, for_logs: bool = False) -> actions.Status:
    return actions.Status(Line(text, for_logs))


def test_what_is_not_true_any_more_is_taken_away_and_told_of_when_it_is_so_again() -> None:
    it = cell()
    late = T0 + STILL_WORKING_S
    it.feed(polled(late, running(0)))
    (shown,) = it.feed(events.Explained(late, ("Rank 1 sleeps.",)))
    assert shown == status("Rank 1 sleeps.", for_logs=True)
    it.feed(polled(late + 1, running(0), running(1)))
    assert it.feed(events.Explained(late + 1, ())) == [status("")]
    it.feed(polled(late + 2, running(0), running(1)))
    assert it.feed(events.Explained(late + 2, ())) == []


def sits(rank: int, launches: int = 1) -> wire.RankReport:
    """Rank 0 reads a result that it waits for; others are in Python."""
    state = wire.RankState(
        rank, 9, "here", "running", seq=SEQ, cell=3, line=6 - rank, launches={"0,1": [launches, 5]}
    )
    stack = [["/x/jax/_src/array.py", 1, "_value", "", None, True]] if rank == 0 else []
    made = [wire.Launch(n, "0,1", "jit(f)", 5, 3, 6, "", SEQ) for n in range(launches)]
    return wire.RankReport(state, stack, made)


def test_who_waited_for_whom_remains_of_a_cell_that_has_done_what_it_was_to() -> None:
    for end, is_told in (("ok", True), ("error", False)):
        it = cell()
        for second in range(1, 9):
            now = T0 + second
            shown = it.feed(polled(now, sits(0), sits(1, 0)))
            assert (actions.ExplainSilent(()) in shown) == (second >= STILL_WORKING_S)
            if second >= STILL_WORKING_S:
                (line,) = it.feed(events.Explained(now, ()))
                assert isinstance(line, actions.Status) and line.line.text == (
                    f"Rank 0 has waited {second - 1} s for rank 1, which still runs cell [3] line 5"
                    " (launch 1, jit(f))."
                )
        it.feed(polled(T0 + 9, sits(0, 2), sits(1, 2)))
        it.feed(reply(0, now=T0 + 9.5))
        it.feed(reply(1, end, now=T0 + 9.5))
        told = "Rank 0 waited 8 s for rank 1, cell [3] line 5.\n"
        assert it.remains == (told if is_told else "")


def test_a_wait_that_no_line_has_told_of_leaves_nothing() -> None:
    it = cell()
    for second in range(1, 4):
        it.feed(polled(T0 + second, sits(0), sits(1, 0)))
    it.feed(reply(0, now=T0 + 4))
    it.feed(reply(1, now=T0 + 4))
    assert it.remains == ""


def test_who_seems_to_wait_in_a_circle_is_told_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    it = cell()
    lines = ["Ranks wait for each other:", "  Rank 0 waits for rank 1."]
    monkeypatch.setattr(deadlock, "find", lambda reports: (None, lines))
    soon = T0 + SUSPECTED_S
    assert actions.ExplainSilent(()) in it.feed(polled(soon, running(0), running(1)))
    (notice,) = it.feed(events.Explained(soon, ()))
    told = "Ranks wait for each other: Rank 0 waits for rank 1."
    assert notice == status(told, for_logs=True)
    lines.clear()
    it.feed(polled(soon + 1, running(0), running(1)))
    assert it.feed(events.Explained(soon + 1, ())) in ([], [status("")])


def test_who_debugs_the_cell_is_not_told_whom_it_waits_for() -> None:
    it = cell()
    it.feed(reply(0))
    held = running(1, paused="debugger")
    assert actions.ExplainSilent(()) not in it.feed(polled(T0 + 60, held))


# -------------------------------------------------------------------------------------- scripts


def test_a_scripts_ranks_are_given_longer_to_write_what_they_must() -> None:
    it = cell(is_last=True)
    assert it.watch.answer_s == SCRIPT_ANSWER_S
    todo = it.feed(events.Stopped(T0))
    assert it.watch.answer_s == SCRIPT_STOP_S
    assert actions.Prepare() not in todo
    it.feed(events.Tick(T0 + 10))
    assert it.ran is None  # what a replay gives them might be written to a file


def test_os_exit_0_is_a_scripts_own_end() -> None:
    it = cell(is_last=True)
    it.feed(events.Died(T0, 0, "ended with 0", 0))
    it.feed(reply(1))
    assert it.course.state is State.ENDED and it.record.ok
    assert not it.was_aborted({})


@pytest.mark.parametrize("lives", [False, True])
@pytest.mark.parametrize("is_cut_short", [False, True])
def test_what_a_notebook_that_is_gone_has_left_is_taken_back_unless_a_thread_may_explain_it(
    lives: bool, is_cut_short: bool
) -> None:
    """None explains a cell of which ranks were cut short."""
    waiting = cell()
    threads = ["thread 'loader'"] if lives else []
    reports = [
        wire.RankReport(
            wire.RankState(
                rank, 9, "here", "idle", ended=SEQ - 1, taken=SEQ, queued=1, background=threads,
                gate=[SEQ - 1, 0, 1], is_cut_short=is_cut_short,
            ),
            [],
            [],
        )
        for rank in (0, 1)
    ]  # fmt: skip
    waiting.feed(polled(T0 + 1, *reports))
    todo = waiting.feed(polled(T0 + 1 + FOREIGN_S, *reports))
    assert actions.OpenGates(frozenset({SEQ - 1})) in todo
    took = [action for action in todo if isinstance(action, actions.TakeBackOthers)]
    assert took == ([] if lives and not is_cut_short else [actions.TakeBackOthers({6: None})])
