"""An interrupt that comes as a launch returns is raised once its results have their names."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from jaxcluster.engine.after_binding import AfterBinding

CALL = "signal.raise_signal(signal.SIGUSR1)"  # a call of C, whose handler stands where it returns


class Stopped:
    """Runs code in which a signal comes, and knows whether the interrupt was put off."""

    def __init__(self) -> None:
        self.binding = AfterBinding()
        self.put_off: bool | None = None
        self.before = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        assert frame is not None
        self.put_off = self.binding.begin(frame, self.note)
        if not self.put_off:
            raise KeyboardInterrupt

    def note(self, frame: FrameType) -> None:
        self.before = True

    def run(self, source: str) -> dict[str, Any]:
        names: dict[str, Any] = {"signal": signal}
        with pytest.raises(KeyboardInterrupt):
            exec(compile(source, "cell", "exec"), names)
        assert sys.gettrace() is None
        assert not self.binding.waits
        return names


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    before, one = sys.gettrace(), Stopped()
    sys.settrace(None)
    handler = signal.signal(signal.SIGUSR1, one.handle)
    yield one
    signal.signal(signal.SIGUSR1, handler)
    sys.settrace(before)


@pytest.mark.parametrize(
    "source",
    [
        f"value = {CALL}\nafter = 1",
        f"value, other = {CALL}, 1\nafter = 1",
        f"while True: value = {CALL}",
        f"def call():\n    return {CALL}\nvalue = call()\nafter = 1",
        f"for _ in range(2):\n    value = {CALL}\nafter = 1",
        f"import contextlib\nwith contextlib.nullcontext():\n    value = {CALL}\nafter = 1",
        f"try:\n    value = {CALL}\n    after = 1\nfinally:\n    done = 1",
    ],
)
def test_what_is_returned_is_bound_first_and_nothing_else_is_run(
    stopped: Stopped, source: str
) -> None:
    names = stopped.run(source)
    assert "value" in names
    assert "after" not in names
    assert stopped.put_off
    assert stopped.before


def test_whoever_catches_an_interrupt_of_that_line_catches_it(stopped: Stopped) -> None:
    source = f"try:\n    value = {CALL}\nexcept KeyboardInterrupt:\n    caught = 1\n    raise"
    names = stopped.run(source + "\nafter = 1")
    assert stopped.put_off is False
    assert "caught" in names


def test_a_loop_in_a_try_is_stopped_inside_of_it(stopped: Stopped) -> None:
    source = f"for _ in range(2):\n        value = {CALL}\nexcept KeyboardInterrupt:\n    raise"
    assert "value" in stopped.run(f"try:\n    {source}")
    assert stopped.put_off


@pytest.mark.parametrize(
    "source",
    [
        f"value = list({CALL} for _ in range(1))",
        f"value = str({CALL})",
        f"def call():\n    return {CALL}\nvalue = str(call())",
    ],
)
def test_what_gets_no_name_at_once_is_not_waited_for(stopped: Stopped, source: str) -> None:
    assert "value" not in stopped.run(source)


def test_a_debuggers_trace_stays(stopped: Stopped) -> None:
    def trace(frame: FrameType, event: str, argument: Any) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        exec(f"import sys\nsys.settrace(trace)\n{CALL}", {"signal": signal, "trace": trace})
    assert sys.gettrace() is trace
    sys.settrace(None)
    assert stopped.put_off is False
