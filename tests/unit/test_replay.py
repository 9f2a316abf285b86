"""What a rank refuses to run, or to hand out, in place of a launch that it has missed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import lockstep, wire
from jaxcluster.engine import replay
from jaxcluster.engine.counted import Program
from jaxcluster.engine.replay import MovedOn, UnknownProgram, export_program, on_replay
from jaxcluster.lockstep import actions, events, replaying
from jaxcluster.lockstep.facts import Facts
from jaxcluster.wire.ops.lockstep import Replay


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was run in place of real launches."""
    found: list[Any] = []

    def run(journal: Any, fingerprints: Any, shipped: Any, timeout_s: float) -> int:
        found.append(fingerprints)
        return len(fingerprints)

    monkeypatch.setattr(replay, "run_programs", run)
    return found


def request(**body: Any) -> Any:
    return SimpleNamespace(body=Replay([7], **body), buffers=[])


def test_a_rank_that_has_moved_on_runs_nothing_in_place_of_its_launches(ran: list[Any]) -> None:
    """Else it would run a program once more, and be ahead of the others permanently."""
    journal: Any = SimpleNamespace(launches=lambda: {"0,1": [5, 55]})
    with pytest.raises(MovedOn):
        on_replay(journal, request(counts={"0,1": [4, 44]}))
    with pytest.raises(MovedOn):
        on_replay(journal, request(counts={"0,1": [5, 54]}))
    assert ran == []
    assert on_replay(journal, request(counts={"0,1": [5, 55]})).ran == 1
    assert ran == [[7]]


def test_a_program_that_came_as_bytes_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the same when it is exported once more: some devices then wait for ever."""
    own = Program("f", 7, "0,1", "", object())
    shipped = Program("g", 8, "0,1", "", object(), shipped=True)
    journal: Any = SimpleNamespace(program={7: own, 8: shipped}.get)
    monkeypatch.setattr(replay, "_refuse_unreplayable", lambda program: None)
    monkeypatch.setattr(replay.programs, "export_program", lambda executable: b"bytes")
    assert export_program(journal, 7) == b"bytes"
    for fingerprint in (8, 9):
        with pytest.raises(UnknownProgram):
            export_program(journal, fingerprint)


def test_a_notebook_gives_a_replay_up_before_a_rank_does() -> None:
    """Else a rank that runs a program with zeros for ever seems to have run it."""
    assert Replay([]).timeout_s > replaying.SETTLE_S


def brought_back(announced: wire.Launch | None) -> list[Any]:
    """What is done with two idle ranks; one of them has a thread that announces this."""
    core = replaying.Replaying(7)
    core.missing = ("0,1", 1)
    states = [wire.RankState(r, 9, "here", "idle", launches={"0,1": [1, 5]}) for r in (0, 1)]
    reports = {r: wire.RankReport(states[r], [], [], announced=announced) for r in (0, 1)[:1]}
    reports[1] = wire.RankReport(states[1], [], [])
    facts, done = Facts(100.0, (0, 1)), []
    answers = {
        actions.LookAround: lambda _: facts,
        actions.Ask: lambda it: events.Looked(facts.now, it, reports, facts),
        replaying.Collect: lambda _: [],
        replaying.Verify: lambda _: replaying.Verified("", {r: {"0,1": [1, 5]} for r in (0, 1)}),
        actions.CountAnew: lambda _: True,
    }

    def do(action: Any) -> Any:
        done.append(action)
        return answers[type(action)](action)

    assert lockstep.carry(core.bring_back(), do) == "replayed"
    return [one for one in done if not isinstance(one, actions.Ask | actions.LookAround)][1:]


def test_no_thread_announces_what_was_skipped_once_the_ranks_are_back() -> None:
    """In strict mode it would meet what the next cell launches on the others."""
    waits = wire.Launch(1, "0,1", "f", 3)
    assert brought_back(waits) == [actions.CountAnew(1, {"0,1": 1})]
    for other in (None, wire.Launch(1, "0,1,2", "f", 3)):
        assert [type(one) for one in brought_back(other)] == [replaying.Verify]
