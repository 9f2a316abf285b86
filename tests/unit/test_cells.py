"""In which order a rank takes the cells that come, and those that are interrupted before."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.engine import cell_queue, cells, interrupts, usercode
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.control import ControlChannel
from jaxcluster.engine.journal import LAUNCHING, Journal
from jaxcluster.engine.running import Running


class FakeControl:
    """Collects what the main thread is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def call_main(self, job: Callable[[], None]) -> None:
        _, cell = job.args  # type: ignore[attr-defined]
        self.given.append(cell.seq)


class FakeRequest:
    def __init__(self, seq: int, after: int) -> None:
        self.body = wire.CellRequest(seq, "pass", seq, [0], [0], after=after)
        self.replies: list[Any] = []

    def reply(self, body: Any) -> None:
        self.replies.append(body)


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def runner(control: FakeControl) -> CellRunner:
    return CellRunner(0, control, Journal(), "/nowhere/rank-0.log")  # type: ignore[arg-type]


def send(runner: CellRunner, seq: int, after: int) -> FakeRequest:
    request = FakeRequest(seq, after)
    runner.queue.on_cell(request)  # type: ignore[arg-type]
    return request


def test_cells_in_order_are_taken_at_once(runner: CellRunner, control: FakeControl) -> None:
    for seq, after in ((1, 0), (2, 1), (5, 2)):  # 3 and 4 were for other ranks
        send(runner, seq, after)
    assert control.given == [1, 2, 5]


def test_a_cell_waits_for_the_one_before_it_of_another_notebook(
    runner: CellRunner, control: FakeControl
) -> None:
    send(runner, 1, 0)
    send(runner, 4, 3)
    send(runner, 3, 2)
    assert control.given == [1]
    send(runner, 2, 1)
    assert control.given == [1, 2, 3, 4]


def test_a_cell_whose_predecessor_never_comes_is_run_after_a_while(
    runner: CellRunner, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_queue, "HOLD_S", 0.05)
    send(runner, 1, 0)
    send(runner, 3, 2)
    assert control.given == [1]
    until(lambda: control.given == [1, 3], "cell 3 is taken", 20)
    send(runner, 4, 3)
    assert control.given == [1, 3, 4]


def test_the_first_cells_of_two_notebooks_wait_for_each_other_as_long_as_others(
    runner: CellRunner, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_queue, "HOLD_S", 1000.0)
    send(runner, 2, 1)
    time.sleep(0.3)  # a busy machine is as late
    assert control.given == []
    send(runner, 1, 0)
    assert control.given == [1, 2]


def test_a_cell_that_comes_after_one_behind_it_has_begun_is_not_run(
    runner: CellRunner, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks run them in another order, and would meet its launches with the later one's."""
    monkeypatch.setattr(cell_queue, "HOLD_S", 0.05)
    send(runner, 2, 1)
    until(lambda: control.given == [2], "cell 2 is taken", 20)
    late = send(runner, 1, 0)
    (reply,) = late.replies
    assert reply.error is not None
    assert (reply.status, reply.error.ename) == ("error", wire.TOO_LATE)
    assert control.given == [2, 1]  # its end is noted in its turn, so that others hear of it
    assert not runner.queue.waits(1)
    assert runner.queue.waits(2)


def test_a_waiting_cell_is_counted_and_can_be_interrupted(
    runner: CellRunner, control: FakeControl
) -> None:
    requests = [send(runner, 1, 0), send(runner, 2, 1)]
    assert len(runner.queue) == 2
    assert runner.interrupts.interrupt(2) is False  # it does not run
    assert requests[1].replies == [wire.CellReply(0, 2, "interrupted", 0.0)]
    assert requests[0].replies == []
    assert len(runner.queue) == 1
    assert runner.interrupts.interrupt(2) is False
    assert len(requests[1].replies) == 1


def test_an_interrupt_of_nothing_does_nothing(runner: CellRunner) -> None:
    assert runner.interrupts.interrupt(None) is False
    assert runner.interrupts.interrupt(7) is False


def test_cells_from_many_threads_are_all_taken_in_order(
    runner: CellRunner, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_queue, "HOLD_S", 1000.0)
    threads = [
        threading.Thread(target=lambda k=k: [send(runner, n, n - 1) for n in range(1 + k, 101, 4)])
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert control.given == list(range(1, 101))


def test_a_handler_that_raises_in_our_code_costs_no_word_of_what_was_before(
    runner: CellRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the cell's own from there on, and a timer may come at any moment."""

    async def run(running: Running) -> wire.CellReply:
        running.between = "told"
        runner.leftovers.give_back()
        raise TimeoutError("late")

    async def opened(*_: object) -> None: ...

    monkeypatch.setattr(runner, "_run", run)
    monkeypatch.setattr(runner, "_wait_at_gate", opened)
    request: Any = send(runner, 1, 0)
    request.ident = b"notebook"
    before = signal.signal(signal.SIGUSR2, raise_late)
    try:
        with asyncio.Runner() as loop:
            runner._lock = asyncio.Lock()
            loop.run(runner._run_in_turn(request, request.body))
        assert signal.getsignal(signal.SIGUSR2) is not raise_late  # between cells
    finally:
        signal.signal(signal.SIGUSR2, before)
    (reply,) = request.replies
    assert (reply.between, reply.status) == ("told", "error")


def raise_late(*_: object) -> None:
    raise TimeoutError("late")


def handler_of_the_first_signal(runner: CellRunner, calls: int) -> None:
    if calls:  # what a handler calls, however deep
        handler_of_the_first_signal(runner, calls - 1)
    else:
        runner.interrupts.on_sigint(signal.SIGINT, sys._getframe())


def run_code(runner: CellRunner, calls: int) -> None:
    """As IPython's: what it calls is the cell."""
    handler_of_the_first_signal(runner, calls)


@pytest.fixture
def running(runner: CellRunner, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr(usercode, "RUNS", {run_code.__code__})
    made = Running(None, None, 0.0, shown=False)  # type: ignore[arg-type]
    runner.current = made
    return made


def test_an_interrupt_inside_the_handler_of_an_earlier_one_does_not_break_off_a_launch(
    runner: CellRunner, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch() -> None:
        handler_of_the_first_signal(runner, 20)

    with pytest.raises(KeyboardInterrupt):
        usercode.call(run_code, runner, 20)
    monkeypatch.setattr("jaxcluster.engine.journal.LAUNCHING", LAUNCHING | {launch.__code__})
    usercode.call(launch)
    assert runner.journal.interrupted
    with pytest.raises(KeyboardInterrupt):
        runner.journal.raise_if_interrupted()


def test_an_interrupt_is_raised_in_the_users_code_alone(
    runner: CellRunner, running: Running
) -> None:
    handler_of_the_first_signal(runner, 3)  # between our own lines
    assert runner.interrupts._retries.get(0)()  # it comes again
    assert not running.interrupted
    usercode.call(handler_of_the_first_signal, runner, 3)  # in IPython's own steps
    assert not running.interrupted
    with pytest.raises(KeyboardInterrupt):
        usercode.call(run_code, runner, 3)
    assert running.interrupted
    running.over = True
    usercode.call(run_code, runner, 3)  # nothing is left to be broken off


def test_a_hook_that_does_not_end_is_broken_off_after_a_while(
    runner: CellRunner, running: Running
) -> None:
    usercode.call(handler_of_the_first_signal, runner, 3)
    running.unheard_since -= interrupts.PATIENCE_S + 1
    with pytest.raises(KeyboardInterrupt):
        usercode.call(handler_of_the_first_signal, runner, 3)


def test_no_interrupt_leaves_the_control_channels_lock_behind(
    runner: CellRunner, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post() -> None:
        run_code(runner, 2)

    monkeypatch.setattr(usercode, "WHOLE", usercode.WHOLE | {post.__code__})
    usercode.call(post)
    assert running.unheard
    assert {ControlChannel.post.__code__, ControlChannel._stream_text.__code__} <= usercode.WHOLE


def test_the_rendering_of_an_error_is_not_broken_off_for_a_while(
    runner: CellRunner, running: Running
) -> None:
    running.has_left, running.left_at = True, time.monotonic()
    usercode.call(run_code, runner, 2)
    assert running.unheard
    running.left_at -= interrupts.RENDER_S
    with pytest.raises(KeyboardInterrupt):
        usercode.call(run_code, runner, 2)


@pytest.mark.parametrize(
    ("ename", "evalue", "is_stop"),
    [
        ("KeyboardInterrupt", "", True),
        ("CancelledError", "", True),
        (
            "JaxRuntimeError",
            "INTERNAL: CpuCallback error calling callback: KeyboardInterrupt",
            True,
        ),
        ("JaxRuntimeError", "INTERNAL: CpuCallback error calling callback: ValueError", False),
        ("ValueError", "KeyboardInterrupt", False),
    ],
)
def test_a_stop_is_known_by_what_it_has_raised(ename: str, evalue: str, is_stop: bool) -> None:
    assert cells._is_of_a_stop(wire.ErrorInfo(ename, evalue, [])) is is_stop
