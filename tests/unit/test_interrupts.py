"""Where in a cell's course a KeyboardInterrupt may be raised."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from jaxcluster.engine import interrupts

Found = list[bool | None]


def looks(found: Found) -> None:
    found.append(interrupts.is_inside(sys._getframe()))


def run(call: Callable[..., None], *args: object) -> None:
    call(*args)


def render(call: Callable[..., None], *args: object) -> None:
    call(*args)


def post(call: Callable[..., None], *args: object) -> None:
    call(*args)


@pytest.mark.parametrize(
    ("frames", "may_be_raised"),
    [((run,), True), ((run, run), True), ((), None), ((run, render), None), ((run, post), False)],
)
def test_it_is_raised_in_a_cells_code_and_neither_around_it_nor_in_an_errors_rendering(
    monkeypatch: pytest.MonkeyPatch,
    frames: tuple[Callable[..., None], ...],
    may_be_raised: bool | None,
) -> None:
    monkeypatch.setattr(interrupts, "RUNS", {run.__code__})
    monkeypatch.setattr(interrupts, "RENDERS", {render.__code__})
    monkeypatch.setattr(interrupts, "WHOLE", {post.__code__})
    found: Found = []

    async def cell() -> None:
        (*frames, looks)[0](*frames[1:], *([looks] if frames else []), found)

    asyncio.run(interrupts.wait_for(cell()))
    run(looks, found)  # of no cell
    assert found == [may_be_raised, False]
