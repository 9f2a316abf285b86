"""Whoever wants to know is told what changes, and how far a start has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import events, starting
from jaxcluster.cluster.starting import Starting
from jaxcluster.errors import CellInterrupted, LaunchError, PlanError

SPEC = wire.ClusterSpec("main", 2)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Start what fails so."""

    def fail(error: BaseException, is_cancelled: bool = False, allocation: Any = None) -> None:
        def run(self: Starting) -> None:
            assert events.course is self
            if is_cancelled:
                self.stopped.set()
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
