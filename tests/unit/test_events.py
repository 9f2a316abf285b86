"""A start that has failed is kept for the page, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster import wire
from jaxcluster.cluster import events, starting
from jaxcluster.cluster.starting import Starting
from jaxcluster.errors import CellInterrupted, LaunchError, PlanError

SPEC = wire.ClusterSpec("main", 2)


@pytest.mark.parametrize(
    ("error", "is_cancelled", "kept"),
    [
        (LaunchError("No GPU.", "Try: --platform cpu"), False, "No GPU.\nTry: --platform cpu"),
        (KeyboardInterrupt(), False, None),
        (LaunchError("stopped"), True, None),
    ],
    ids=["failed", "stopped", "cancelled"],
)
def test_a_start_that_fails_is_kept_and_one_that_is_stopped_is_not(
    error: BaseException, is_cancelled: bool, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Starting) -> None:
        assert events.course is self
        if is_cancelled:
            self.stopped.set()
        raise error

    monkeypatch.setattr(Starting, "run", run)
    monkeypatch.setattr(events, "course", None)
    with pytest.raises((type(error), CellInterrupted)):
        starting.start_world(SPEC, lambda line: None)
    assert (events.course and events.course.failure) == kept


def test_what_this_machine_has_no_devices_for_is_refused_without_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "course", None)
    monkeypatch.setattr(starting, "host_gpus", lambda environ: [])
    monkeypatch.setattr(starting, "claim", lambda spec: pytest.fail("it was begun"))
    with pytest.raises(PlanError, match="no GPU is visible"):
        starting.start_world(replace(SPEC, platform="cuda"), lambda line: None)
    assert events.course is not None and "no GPU is visible" in events.course.failure
