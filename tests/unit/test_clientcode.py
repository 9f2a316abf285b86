"""Where an interrupt of what ipyparallel's clients run may be raised, and what else it does."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from jaxcluster.engine.clientcode import ClientCode


class Runner:
    """As much of a CellRunner as an interrupt needs; ``again`` is what would be sent again."""

    def __init__(self) -> None:
        self.cell_code: object = None
        self.again: list[Callable[[], bool]] = []
        self.on_idle_sigint: Callable[[FrameType | None], None] = lambda frame: None
        self.interrupts = types.SimpleNamespace(signal_again=self.again.append)

    def in_a_cell(self, frame: FrameType | None) -> bool:
        return frame is not None and frame.f_code is self.cell_code


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def kernel(runner: Runner) -> Any:
    kernel = types.SimpleNamespace()
    ClientCode(runner).attach(kernel)  # type: ignore[arg-type]
    return kernel


def cell(runner: Runner) -> None:
    """Stands for a client's cell: SIGINT comes in it."""
    runner.cell_code = sys._getframe().f_code
    runner.on_idle_sigint(sys._getframe())


def test_an_idle_rank_takes_no_notice(runner: Runner, kernel: Any) -> None:
    cell(runner)
    assert runner.again == []


def test_a_clients_cell_is_interrupted_where_it_is(runner: Runner, kernel: Any) -> None:
    kernel.pre_handler_hook()
    with pytest.raises(KeyboardInterrupt):
        cell(runner)
    kernel.post_handler_hook()
    cell(runner)  # over


def test_ipykernels_own_code_is_not_interrupted_but_what_follows_it(
    runner: Runner, kernel: Any
) -> None:
    kernel.pre_handler_hook()
    runner.on_idle_sigint(sys._getframe())
    (again,) = runner.again
    assert again()
    with pytest.raises(KeyboardInterrupt):  # the signal that is sent again
        cell(runner)


def test_an_interrupt_is_not_for_the_request_after(runner: Runner, kernel: Any) -> None:
    kernel.pre_handler_hook()
    runner.on_idle_sigint(sys._getframe())
    kernel.post_handler_hook()
    assert not runner.again[0]()
    kernel.pre_handler_hook()
    assert not runner.again[0]()
