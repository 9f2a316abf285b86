"""Ranks that a person holds: in a debugger, or by a question."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.engine.questions import DEBUGGER, INPUT, Paused
from jaxcluster.model import paused


def test_a_rank_says_when_it_is_held_and_when_it_goes_on_and_each_once() -> None:
    told: list[str] = []
    held = Paused(told.append)
    with held.by(DEBUGGER):
        assert held.kind == DEBUGGER
        with held.by(INPUT):  # the debugger's own prompt
            assert held.kind == DEBUGGER
    assert held.kind == ""
    assert told == [DEBUGGER, ""]


def test_a_cell_that_is_over_holds_nobody() -> None:
    told: list[str] = []
    held = Paused(told.append)
    with held.by(DEBUGGER):
        held.end_all()
        assert held.kind == ""
    with held.by(DEBUGGER):
        pass
    assert told == [DEBUGGER, DEBUGGER, ""]


def state(rank: int, kind: str) -> wire.RankState:
    return wire.RankState(rank, 1, "h1", "running", cell=3, line=2, paused=kind)


def test_it_is_said_who_is_waited_for_and_why() -> None:
    states = {0: state(0, "debugger"), 1: state(1, ""), 2: state(2, "input")}
    assert paused.kinds(states.values()) == {0: "debugger", 2: "input"}
    assert paused.tell({r: s for r, s in states.items() if s.paused}) == [
        "Rank 0 is in the debugger, in cell [3] line 2 of another notebook.",
        "Rank 2 waits for an answer to input(), in cell [3] line 2 of another notebook.",
        "Waiting for them.",
    ]
    assert paused.tell({rank: state(rank, "debugger") for rank in range(256)}) == [
        "Ranks 0-255 are in the debugger, in cell [3] line 2 of another notebook.",
        "Waiting for them.",
    ]
    assert paused.tell({}) == []
