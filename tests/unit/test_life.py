"""The states of a cluster's life."""

from __future__ import annotations

import itertools

import pytest

from jaxcluster.model.life import MOST_TOLD, Life, State


def life_at(*steps: State) -> Life:
    life = Life()
    for step in steps:
        life.become(step)
    return life


def test_a_restart_passes_through_its_states() -> None:
    life = life_at(State.RESTARTING, State.REPLACING, State.RESTARTING, State.RUNNING)
    assert life.state is State.RUNNING and life.has_processes


def test_a_restart_that_fails_leaves_it_without_processes_and_says_why() -> None:
    life = life_at(State.RESTARTING, State.REPLACING)
    assert not life.has_processes
    life.become(State.DOWN, "new ones did not start")
    assert (life.state, life.why) == (State.DOWN, "new ones did not start")


@pytest.mark.parametrize("last", [State.STOPPED, State.LEFT])
def test_nothing_follows_the_end(last: State) -> None:
    for state in set(State) - {last}:
        with pytest.raises(RuntimeError, match=f"can't become {state.value}"):
            life_at(last).become(state)


def test_a_step_that_can_not_be_taken_tells_the_story() -> None:
    life = life_at(State.RESTARTING, State.REPLACING)
    life.become(State.DOWN, "their start was stopped")
    with pytest.raises(RuntimeError) as caught:
        life.become(State.RUNNING)
    assert str(caught.value) == (
        "a cluster can't become running after: running -> restarting -> replacing -> "
        "down (their start was stopped)"
    )
    assert life.state is State.DOWN


def test_a_step_is_taken_only_from_the_states_that_are_named() -> None:
    life = life_at(State.ENDING)
    assert not life.become(State.RUNNING, only={State.RESTARTING})
    assert life.state is State.ENDING
    assert life.become(State.STOPPED, only=set(State) - {State.LEFT})


def test_the_same_state_again_only_renews_the_reason() -> None:
    life = life_at(State.STOPPED)
    assert life.become(State.STOPPED, "twice")
    assert life.why == "twice"


def test_every_state_can_end() -> None:
    """However it got there, ``stop`` must find a way; what was left has ended here."""
    for path in itertools.permutations(State, 3):
        life = Life()
        try:
            for step in path:
                life.become(step)
        except RuntimeError:
            continue
        if life.state is not State.LEFT:
            life.become(State.STOPPED)


def test_the_story_is_bounded() -> None:
    life = Life()
    for _ in range(MOST_TOLD):
        life.become(State.RESTARTING)
        life.become(State.RUNNING)
    assert len(life.story) == MOST_TOLD
