"""What a rank refuses to run, or to hand out, in place of a launch that it has missed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.engine import replay
from jaxcluster.engine.counted import Program
from jaxcluster.engine.replay import MovedOn, UnknownProgram, export_program, on_replay
from jaxcluster.lockstep import replaying
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
