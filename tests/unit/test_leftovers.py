"""Handlers of signals that cells leave behind raise in cells, and nowhere else."""

from __future__ import annotations

import builtins
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from jaxcluster.engine.leftovers import MOST, Leftovers, unwrapped


def late(number: int, frame: Any) -> None:
    raise TimeoutError(f"late {len(heard)}" if heard else "late")


heard: list[int] = []


@pytest.fixture(autouse=True)
def usr1() -> Iterator[None]:
    heard.clear()
    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


def raised() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.getsignal(signal.SIGUSR1)  # a moment for Python to call it


def test_what_they_raise_between_cells_is_told_once() -> None:
    between = Leftovers()
    between.take()
    between.take()
    raised()
    raised()
    told = "a handler of SIGUSR1, left behind by a cell, raised TimeoutError: late"
    assert between.take_told() == told
    assert between.take_told() == ""


def test_they_are_taken_whatever_the_cell_has_left_of_builtins() -> None:
    kept, between = builtins.len, Leftovers()
    try:
        builtins.len = lambda value: 0
        between.take()
    finally:
        builtins.len = kept
    assert unwrapped(signal.getsignal(signal.SIGUSR1)) is late
    assert signal.getsignal(signal.SIGUSR1) is not late


def test_in_a_cell_they_are_its_own() -> None:
    between = Leftovers()
    between.take()
    assert signal.getsignal(signal.SIGUSR1) is not late
    assert unwrapped(signal.getsignal(signal.SIGUSR1)) is late
    between.give_back()
    assert signal.getsignal(signal.SIGUSR1) is late
    with pytest.raises(TimeoutError):
        raised()


def test_one_that_was_set_between_cells_is_left() -> None:
    between = Leftovers()
    between.take()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    between.give_back()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_one_that_is_set_for_cells_between_them_raises_in_cells_alone() -> None:
    """As a restored checkpoint does."""
    between = Leftovers()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    between.put_between(signal.SIGUSR1, late)
    raised()
    assert "TimeoutError" in between.take_told()
    assert unwrapped(signal.getsignal(signal.SIGUSR1)) is late
    between.give_back()
    with pytest.raises(TimeoutError):
        raised()
    between.put_between(signal.SIGUSR1, signal.SIG_IGN)
    between.give_back()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_in_other_clients_code_they_raise_too() -> None:
    between = Leftovers()
    between.is_users = lambda frame: True
    between.take()
    with pytest.raises(TimeoutError):
        raised()
    between.give_back()


def test_a_timer_that_raises_for_ever_fills_nothing() -> None:
    between = Leftovers()
    between.take()
    for number in range(3 * MOST):
        heard.append(number)
        raised()
    between.give_back()
    assert between.take_told().count("late") == MOST


def test_an_error_that_can_not_be_shown_is_told_all_the_same() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    between = Leftovers()
    between.on_error(Odd())
    assert between.take_told()
