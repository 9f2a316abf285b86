"""Whoever wants to know is told what changes, and how far a start has come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster import wire
from jaxcluster.cluster import events, starting
from jaxcluster.errors import LaunchError, PlanError


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


def test_a_start_that_fails_is_kept_until_the_next_one() -> None:
    with pytest.raises(LaunchError), events.starting(SPEC) as course:
        assert events.course is course
        course.step(1, "up")
        raise LaunchError("No GPU.", "Try: --platform cpu")
    assert events.course is course
    assert course.failure == "No GPU.\nTry: --platform cpu"
    with events.starting(SPEC):
        pass
    assert events.course is None


@pytest.mark.parametrize("error", [LaunchError("stopped"), KeyboardInterrupt()])
def test_a_start_that_is_cancelled_or_stopped_has_not_failed(error: BaseException) -> None:
    ended = []
    with pytest.raises(type(error)), events.starting(SPEC) as course:
        course.end = lambda: ended.append(1)
        if isinstance(error, LaunchError):
            course.cancel()
            assert ended == [1]
        raise error
    assert events.course is None


def test_a_restart_that_fails_is_told_elsewhere() -> None:
    with pytest.raises(LaunchError), events.starting(SPEC, is_restart=True):
        raise LaunchError("No GPU.")
    assert events.course is None


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
