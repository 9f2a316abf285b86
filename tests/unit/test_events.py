"""Whoever wants to know is told what changes, and how far a start has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from jaxcluster import wire
from jaxcluster.cluster import events, starting
from jaxcluster.cluster.starting import Starting
from jaxcluster.errors import CellInterrupted, EnginesMissing, LaunchError, PlanError
from jaxcluster.wire.link import Event


def test_watchers_are_told_of_cells_and_of_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(events, "watchers", [heard.append])
    events.tell()
    events.tell("a cell")
    assert heard == [None, "a cell"]


def test_news_of_a_start_end_with_it() -> None:
    heard: list[str] = []
    with events.going_on(heard.append) as say:
        say("starting 2 processes ...")
        assert events.progress == "starting 2 processes ..."
    assert (events.progress, heard) == ("", ["starting 2 processes ..."])


SPEC = wire.ClusterSpec("main", 2)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Start what fails so."""

    def fail(error: BaseException, is_cancelled: bool = False, allocation: Any = None) -> None:
        def run(self: Starting) -> None:
            assert events.course is self
            if is_cancelled:
                self.cancel()
            raise error

        monkeypatch.setattr(Starting, "run", run)
        with pytest.raises((type(error), CellInterrupted)):
            starting.start_world(SPEC, lambda line: None, allocation=allocation)

    return fail


def test_a_start_that_fails_is_kept_until_the_next_one(fail: Callable[..., None]) -> None:
    fail(LaunchError("No GPU.", "Try: --platform cpu"))
    assert events.course is not None
    assert events.course.failure == "No GPU.\nTry: --platform cpu"
    fail(KeyboardInterrupt())
    assert events.course is None


def test_a_start_that_is_cancelled_has_not_failed(fail: Callable[..., None]) -> None:
    fail(LaunchError("stopped"), is_cancelled=True)
    assert events.course is None


def test_a_restart_that_fails_is_told_elsewhere(fail: Callable[..., None]) -> None:
    fail(LaunchError("No GPU."), allocation=MagicMock())
    assert events.course is None


@pytest.mark.parametrize(
    ("is_", "told"),
    [
        ({"controller_died": "exit code 3"}, "controller ended (exit code 3).\nits log"),
        ({"coordinator_died": "killed", "dead": {0: wire.Death("too")}}, "The coordinator ended"),
        ({"dead": {1: wire.Death("exit code 7")}}, "Rank 1 died while the cluster started (exit"),
    ],
)
def test_a_start_ends_with_what_it_needs(is_: dict[str, Any], told: str) -> None:
    world = MagicMock(controller_died="", coordinator_died="", dead={})
    world.configure_mock(**is_)
    world.log_end.return_value = "its log"
    begun = Starting(SPEC, lambda line: None)
    begun.world = world
    with pytest.raises(LaunchError) as caught:
        begun._check()
    assert told in str(caught.value)


def test_what_this_machine_has_no_devices_for_is_refused_without_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "host_gpus", lambda environ: [])
    monkeypatch.setattr(starting, "claim", lambda spec: pytest.fail("it was begun"))
    with pytest.raises(PlanError, match="no GPU is visible"):
        starting.start_world(replace(SPEC, platform="cuda"), lambda line: None)
    assert events.course is not None
    assert "no GPU is visible" in events.course.failure
    events.course = None


def test_a_script_that_ends_on_one_rank_before_another_has_begun_did_start() -> None:
    died: Event[Any] = Event(0, "died", "1", wire.Death("exit code 3", 3))
    begun: Event[Any] = Event(1, "reply", "2", None)
    start, heard = Starting(SPEC, lambda line: None), [died, begun]
    world = MagicMock(controller_died="", coordinator_died="", dead={0: died.body})
    world.log_excerpt.return_value = ""
    world.link.gather = lambda *_, on_answer, **__: [on_answer(event) for event in heard]
    start.world, start._has_begun = world, True
    each = dict.fromkeys(range(2), wire.Script(["x.py"], "/x.py", "/"))
    start._ask(each, "did not begin the script")
    heard.pop()
    with pytest.raises(EnginesMissing, match=r"^Rank 1 did not begin the script within "):
        start._ask(each, "did not begin the script")
