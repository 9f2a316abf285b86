"""Deadlines of tests: longer where the machine is slow, and no longer than that."""

from __future__ import annotations

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


def test_this_machine_can_be_probed() -> None:
    assert 1.0 <= slowness() <= MOST
