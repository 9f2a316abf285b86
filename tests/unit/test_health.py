"""When a cell is over, and who is interrupted when: told event by event, with made-up clocks."""

from __future__ import annotations

import pytest

from jaxcluster.model.health import (
    ANSWER_S,
    DEATH_GRACE_S,
    GRACE_S,
    HOPELESS_ANSWER_S,
    LEAVING_S,
    LOOK_AGAIN_S,
    POLL_S,
    SAY_S,
    CellWatch,
    Diagnosed,
    Died,
    Finish,
    Interrupt,
    Leaving,
    Paused,
    Poll,
    Replied,
    SayUnanswered,
    StopPressed,
    Suspected,
    Tick,
)

T0 = 1000.0


def watch(n: int = 4, timeout_s: float | None = None) -> CellWatch:
    return CellWatch(range(n), T0, timeout_s)


def test_a_cell_is_over_when_all_its_ranks_have_ended_it() -> None:
    w = watch(3)
    assert w.feed(Replied(1, "ok"), T0) == []
    assert w.feed(Replied(0, "ok"), T0) == []
    assert not w.finished
    assert w.feed(Replied(2, "ok"), T0) == [Finish()]
    assert w.finished
    assert w.why == ""


def test_only_the_ranks_that_run_it_are_waited_for() -> None:
    w = CellWatch([1, 3], T0)
    assert w.open_ranks == (1, 3)
    w.feed(Replied(3, "ok"), T0)
    assert w.feed(Replied(1, "ok"), T0) == [Finish()]


def test_time_alone_ends_no_cell() -> None:
    w = watch()
    for hours in range(1, 50):
        made = w.feed(Tick(), T0 + 3600 * hours)
        assert all(isinstance(m, Poll) for m in made)
    assert not w.finished


def test_after_an_error_the_others_get_a_grace_period_and_are_interrupted_then() -> None:
    w = watch()
    assert w.feed(Replied(2, "error"), T0) == []
    assert w.deadline() is not None
    before = [m for m in w.feed(Tick(), T0 + GRACE_S - 0.01) if isinstance(m, Interrupt)]
    assert before == []
    assert w.feed(Tick(), T0 + GRACE_S) == [Interrupt((0, 1, 3), "error")]
    assert w.why == "error"


def test_who_ends_within_the_grace_period_is_not_interrupted() -> None:
    w = watch(3)
    w.feed(Replied(0, "error"), T0)
    w.feed(Replied(1, "ok"), T0 + 1)
    assert w.feed(Replied(2, "error"), T0 + 1.5) == [Finish()]
    assert w.why == ""


def test_the_grace_period_runs_from_the_first_error() -> None:
    w = watch()
    w.feed(Replied(0, "error"), T0)
    w.feed(Replied(1, "error"), T0 + GRACE_S - 0.1)
    assert Interrupt((2, 3), "error") in w.feed(Tick(), T0 + GRACE_S)


def test_a_rank_that_refuses_a_cell_has_failed() -> None:
    w = watch(2)
    w.feed(Replied(0, "refused"), T0)
    assert w.feed(Tick(), T0 + GRACE_S) == [Interrupt((1,), "error")]


def test_after_a_death_the_others_get_less_time_than_after_an_error() -> None:
    w = watch(3)
    w.feed(Died(1), T0)
    assert w.deadline() == T0 + DEATH_GRACE_S < T0 + GRACE_S
    assert w.feed(Tick(), T0 + DEATH_GRACE_S - 0.01) == []
    assert w.feed(Tick(), T0 + DEATH_GRACE_S) == [Interrupt((0, 2), "death")]
    assert w.answer_s == HOPELESS_ANSWER_S < ANSWER_S


def test_a_death_shortens_the_time_that_an_error_gave_the_others() -> None:
    w = watch(3)
    w.feed(Replied(0, "error"), T0)
    w.feed(Died(1), T0 + 0.1)
    assert w.feed(Tick(), T0 + DEATH_GRACE_S) == [Interrupt((2,), "error")]


def test_a_death_counts_as_an_error() -> None:
    w = watch(3)
    assert w.feed(Died(1), T0) == []
    assert w.feed(Tick(), T0 + GRACE_S) == [Interrupt((0, 2), "death")]
    w.feed(Replied(0, "interrupted"), T0 + GRACE_S)
    assert w.feed(Replied(2, "interrupted"), T0 + GRACE_S) == [Finish()]


def test_the_last_rank_may_end_a_cell_by_dying() -> None:
    w = watch(2)
    w.feed(Replied(0, "ok"), T0)
    assert w.feed(Died(1), T0) == [Finish()]


def test_a_timeout_interrupts_those_that_are_still_in_the_cell() -> None:
    w = watch(3, timeout_s=10)
    w.feed(Replied(1, "ok"), T0 + 1)
    assert not any(isinstance(m, Interrupt) for m in w.feed(Tick(), T0 + 9.9))
    assert w.feed(Tick(), T0 + 10) == [Interrupt((0, 2), "timeout")]
    assert (w.why, w.interrupted) == ("timeout", (0, 2))


@pytest.mark.parametrize("timeout_s", [0.01, 0.3, 1.5, 2.999])
def test_a_timeout_is_kept_to_the_moment(timeout_s: float) -> None:
    """It is not looked at with the poll alone, each second."""
    w = watch(2, timeout_s=timeout_s)
    now = T0
    while (deadline := w.deadline()) is not None and deadline < T0 + timeout_s:
        assert w.feed(Tick(), deadline) == [Poll()]
        now = deadline
    assert w.deadline() == T0 + timeout_s
    assert not any(isinstance(m, Interrupt) for m in w.feed(Tick(), max(now, T0)))
    assert w.feed(Tick(), T0 + timeout_s) == [Interrupt((0, 1), "timeout")]


def test_what_comes_during_a_long_poll_is_taken_in_before_the_next() -> None:
    """One that waits a second for a silent rank would else be followed by the next at once."""
    w = watch(2)
    assert w.feed(Tick(), T0 + 1) == [Poll()]
    w.polled(T0 + 2.1)
    assert w.feed(Tick(), T0 + 2.1) == []
    assert w.feed(Tick(), w.deadline() or 0.0) == [Poll()]
    w.polled(T0 + 2.5)  # a short one is followed as ever
    assert w.deadline() == T0 + 2.1 + LOOK_AGAIN_S + POLL_S


def test_the_stop_button_interrupts_at_once() -> None:
    w = watch(3)
    w.feed(Replied(0, "ok"), T0)
    assert w.feed(StopPressed(), T0 + 0.5) == [Interrupt((1, 2), "stop")]
    assert w.why == "stop"


def test_who_has_not_answered_an_interrupt_is_told_soon_and_once() -> None:
    w = watch(3)
    w.feed(StopPressed(), T0)
    w.feed(Replied(0, "interrupted"), T0 + 0.1)
    assert w.deadline() == T0 + SAY_S < T0 + 1
    assert w.feed(Tick(), T0 + SAY_S) == [SayUnanswered((1, 2))]
    assert w.deadline() == T0 + ANSWER_S
    assert w.feed(Tick(), T0 + 1) == []


def test_of_what_nobody_pressed_no_word_is_said() -> None:
    w = watch(2)
    w.feed(Diagnosed(), T0)
    assert w.deadline() == T0 + ANSWER_S


def test_a_rank_that_renders_its_error_is_not_given_up() -> None:
    w = watch(3)
    w.feed(Replied(0, "error"), T0)
    assert w.feed(Tick(), T0 + GRACE_S)[-1] == Interrupt((1, 2), "error")
    at = T0 + GRACE_S
    assert w.feed(Leaving(1), at) == []
    w.feed(Replied(2, "interrupted"), at + 0.1)
    w.feed(Tick(), at + SAY_S)
    assert w.feed(Tick(), at + ANSWER_S) == []
    assert w.deadline() == at + LEAVING_S
    assert w.feed(Replied(1, "error"), at + ANSWER_S + 1) == [Finish()]


def test_a_rank_that_renders_for_ever_is_given_up_after_all() -> None:
    w = watch(1)
    w.feed(StopPressed(), T0)
    w.feed(Leaving(0), T0)
    w.feed(Tick(), T0 + SAY_S)
    assert w.feed(Tick(), T0 + LEAVING_S) == [Finish((0,))]


@pytest.mark.parametrize(("releasable", "answer_s"), [(True, ANSWER_S), (False, HOPELESS_ANSWER_S)])
def test_ranks_that_nothing_can_release_are_not_waited_for(
    releasable: bool, answer_s: float
) -> None:
    w = watch(2)
    w.feed(Diagnosed(releasable), T0 + 1)
    w.feed(Tick(), T0 + 1 + SAY_S)
    assert w.deadline() == T0 + 1 + answer_s
    assert w.feed(Tick(), T0 + 1 + answer_s) == [Finish((0, 1))]


def test_interrupted_ranks_are_waited_for_but_not_for_ever() -> None:
    w = watch(3)
    w.feed(StopPressed(), T0)
    w.feed(Tick(), T0 + SAY_S)
    assert w.deadline() == T0 + ANSWER_S
    assert w.feed(Replied(1, "interrupted"), T0 + 0.5) == []
    assert w.feed(Tick(), T0 + ANSWER_S - 0.01) == []
    assert w.feed(Tick(), T0 + ANSWER_S) == [Finish((0, 2))]


def test_interrupted_ranks_that_answer_end_the_cell() -> None:
    w = watch(2)
    w.feed(StopPressed(), T0)
    w.feed(Replied(0, "interrupted"), T0 + 0.1)
    assert w.feed(Replied(1, "interrupted"), T0 + 0.2) == [Finish()]


def test_the_stop_button_pressed_twice_leaves_at_once() -> None:
    w = watch(2)
    w.feed(StopPressed(), T0)
    assert w.feed(StopPressed(), T0 + 0.3) == [Finish((0, 1))]


def test_nobody_is_interrupted_twice() -> None:
    w = watch(2, timeout_s=1)
    assert w.feed(StopPressed(), T0 + 0.5) == [Interrupt((0, 1), "stop")]
    assert w.feed(Tick(), T0 + 1.5) == [SayUnanswered((0, 1))]
    assert w.feed(Replied(0, "error"), T0 + 1.6) == []


def test_a_certain_hang_is_interrupted_at_once() -> None:
    w = watch(2)
    w.feed(Replied(0, "ok"), T0)
    assert w.feed(Diagnosed(), T0 + 1) == [Interrupt((1,), "hang")]


def test_a_suspicion_is_looked_at_again_soon() -> None:
    w = watch(2)
    w.feed(Replied(0, "ok"), T0)
    assert w.feed(Tick(), T0 + 1) == [Poll()]
    w.feed(Suspected(), T0 + 1)
    assert w.deadline() == T0 + 1 + LOOK_AGAIN_S
    assert w.feed(Tick(), T0 + 1 + LOOK_AGAIN_S) == [Poll()]
    assert w.deadline() == T0 + 2 + LOOK_AGAIN_S


def test_nothing_happens_after_the_end() -> None:
    w = watch(1)
    w.feed(Replied(0, "ok"), T0)
    for event in (StopPressed(), Tick(), Died(0), Replied(0, "error"), Diagnosed()):
        assert w.feed(event, T0 + 100) == []


@pytest.mark.parametrize("timeout_s", [None, 0.5, 5.0, 100.0])
@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("pressed", [False, True])
def test_whoever_waits_until_the_deadline_misses_nothing(
    timeout_s: float | None, failed: bool, pressed: bool
) -> None:
    """At its deadline a watch always has something to do, or sets a later one."""
    w = watch(2, timeout_s)
    now = T0
    if failed:
        w.feed(Replied(0, "error"), now)
    if pressed:
        w.feed(StopPressed(), now)
    for _ in range(300):
        deadline = w.deadline()
        if w.finished or deadline is None:
            break
        assert deadline >= now
        now = deadline
        made = w.feed(Tick(), now)
        assert made, f"nothing to do at its deadline {now - T0:g}"
    if failed or pressed or timeout_s is not None:
        assert w.finished


def test_while_a_rank_is_held_neither_time_nor_an_error_ends_the_cell() -> None:
    w = watch(timeout_s=10)
    w.feed(Paused(frozenset({0})), T0 + 4)
    w.feed(Replied(2, "error"), T0 + 5)
    for later in (20, 3600, 80000):
        assert all(isinstance(m, Poll) for m in w.feed(Tick(), T0 + later))
    assert w.feed(Paused(), T0 + 90000) == [Poll()]
    assert w.feed(Tick(), T0 + 90000 + GRACE_S - 0.1) in ([], [Poll()])
    assert w.feed(Tick(), T0 + 90000 + GRACE_S) == [Interrupt((0, 1, 3), "error")]


def test_a_cell_has_what_was_left_of_its_time_when_the_rank_was_held() -> None:
    w = watch(timeout_s=10)
    w.feed(Paused(frozenset({0, 1})), T0 + 4)
    w.feed(Paused(frozenset({1})), T0 + 50)
    w.feed(Paused(), T0 + 100)
    assert w.feed(Tick(), T0 + 105.9) in ([], [Poll()])
    assert w.feed(Tick(), T0 + 106) == [Interrupt((0, 1, 2, 3), "timeout")]


def test_a_rank_that_ends_the_cell_or_dies_is_held_no_longer() -> None:
    w = watch(2, timeout_s=10)
    w.feed(Paused(frozenset({0})), T0 + 1)
    w.feed(Replied(0, "ok"), T0 + 2)
    assert not w.paused
    assert w.feed(Tick(), T0 + 11) == [Interrupt((1,), "timeout")]


def test_a_death_and_the_stop_button_end_a_cell_whose_rank_is_held() -> None:
    w = watch(3)
    w.feed(Paused(frozenset({0})), T0)
    w.feed(Replied(2, "error"), T0 + 1)
    w.feed(Died(1), T0 + 60)
    assert w.deadline() is not None
    assert w.feed(Tick(), T0 + 60 + DEATH_GRACE_S) == [Interrupt((0,), "death")]
    w = watch(2)
    w.feed(Paused(frozenset({0, 1})), T0)
    assert w.feed(StopPressed(), T0 + 1) == [Interrupt((0, 1), "stop")]
    assert w.feed(Tick(), T0 + 1 + ANSWER_S)[-1:] == [Finish((0, 1))]
