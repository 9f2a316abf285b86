"""Deadlines of tests: longer where the machine is slow, and no longer than that."""

from __future__ import annotations

import pace
import pytest
from pace import MOST, Deadline, slowness


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("slow", "over_at"), [(1.0, 10.0), (2.5, 25.0)])
def test_a_deadline_is_moved_out_as_much_as_the_machine_is_slow(
    slow: float, over_at: float
) -> None:
    clock, probes = Clock(), [slow, 99.0]
    deadline = Deadline(10.0, lambda: probes.pop(0), clock)
    clock.now += 9.9
    assert not deadline.is_over and len(probes) == 2  # nobody asks before it has passed
    clock.now = 100.0 + over_at - 0.1
    assert not deadline.is_over
    clock.now = 100.0 + over_at + 0.1
    assert deadline.is_over and deadline.is_over
    assert len(probes) == 1  # once, so that a test that hangs comes to its end
    assert str(deadline).startswith("10 s") and ("times 2.5" in str(deadline)) is (slow > 1)


def test_a_machine_is_as_slow_as_its_work_takes_or_as_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(pace.os.sched_getaffinity(0))
    for work, load, found in ((0.5, 0.0, 1.0), (2.0, 0.1, 2.0), (0.5, 1.5, 1.5), (50.0, 0.0, MOST)):
        monkeypatch.setattr(pace, "_work_s", lambda work=work: work * pace.REFERENCE_S)
        monkeypatch.setattr(pace.os, "getloadavg", lambda load=load: (load * cores, 0.0, 0.0))
        assert slowness() == pytest.approx(found)


def test_this_machine_can_be_probed() -> None:
    assert 1.0 <= slowness() <= MOST
