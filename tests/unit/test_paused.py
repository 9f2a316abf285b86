"""Ranks that a person holds: in a debugger, or by a question."""

from __future__ import annotations

from jaxcluster.engine.questions import DEBUGGER, INPUT, Paused


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
