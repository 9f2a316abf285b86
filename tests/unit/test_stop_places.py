"""Where a rank was stopped, as its reply says: enough to know whether others stood there, too."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
from journals import launched

from jaxcluster.engine.counted import Program
from jaxcluster.engine.interrupts import Interrupts
from jaxcluster.engine.journal import Journal, outward

CELL, OWN, INSTALLED = "<cell 3>", "/home/me/train.py", "/x/site-packages/lib/loop.py"
STDLIB = asyncio.__file__


def frames_of(*files: str) -> list[FrameType]:
    """The frames of functions in these files, of which each has called the one before it."""
    inner: Any = sys._getframe
    for file in files:
        space: dict[str, Any] = {"inner": inner}
        exec(compile("def call():\n    return inner()\n", file, "exec"), space)
        inner = space["call"]
    found = [*outward(inner())]
    return found[: len(files)]


class Places(Journal):
    """A journal that has launched last in this file, or nowhere."""

    def __init__(self, launched_in: str | None = None) -> None:
        super().__init__(8)
        self.cell_numbers = {CELL: 3}
        code = frames_of(launched_in)[0].f_code if launched_in else None
        self.last = None if code is None else (None, 0, code, 0)

    def _last_place(self) -> Any:
        return self.last


@pytest.mark.parametrize(
    ("launched_in", "told"),
    [
        (None, ["train.py", "3"]),
        (OWN, ["train.py", "3"]),
        (INSTALLED, ["loop.py", "train.py", "3"]),  # its loop may have the results
    ],
)
def test_lines_of_cells_and_of_the_users_files_tell_where_a_rank_was_stopped(
    launched_in: str | None, told: list[str]
) -> None:
    places = [(f.f_code, f.f_lineno, f.f_lasti) for f in frames_of(STDLIB, INSTALLED, OWN, CELL)]
    place = Places(launched_in).stands_at(places)
    assert [one.rpartition("/")[2].partition(":")[0] for one in place.split("/")] == told
    assert place.split("/")[-1] == f"3:2:{places[-1][2]}"


class Stops(Interrupts):
    """Of a cell; ``places``: what the journal says of each."""

    def __init__(self, *places: str, holds: bool = False) -> None:
        left = iter(places)
        self.asked: list[list[str]] = []

        def stands_at(places: Iterable[tuple[CodeType, int, int]]) -> str:
            self.asked.append([code.co_name for code, *_ in places])
            return next(left)

        journal = SimpleNamespace(stands_at=stands_at, may_hold_results=lambda frame: holds)
        super().__init__(SimpleNamespace(journal=journal))  # type: ignore[arg-type]
        self.running: Any = SimpleNamespace(task=None, stopped_at=None, stop_waits_since=0.0)

    def raised(self, frame: FrameType | None = None) -> Any:
        self._note_stop(self.running, frame or sys._getframe())
        return self.running.stopped_at


def test_where_a_stop_is_raised_tells_while_results_have_names_and_for_one_stop_alone() -> None:
    assert Stops("3:1:20").raised() == "3:1:20"
    assert Stops("3:1:20", holds=True).raised() == ""
    twice = Stops("3:1:20", "3:9:90")
    assert [twice.raised(), twice.raised()] == ["3:1:20", ""]


def test_a_stop_waits_until_it_is_raised() -> None:
    stops = Stops("3:1:20")
    stops.running.stop_waits_since = 7.0
    stops.raised()
    assert stops.running.stop_waits_since == 0.0
    # The journal has raised it when its launch was made: it does not come again.
    stops.running.stop_waits_since, stops.running.unheard = 7.0, False
    journal = SimpleNamespace(interrupted=False)
    stops._runner = SimpleNamespace(current=stops.running, journal=journal)  # type: ignore[assignment]
    assert not stops._is_to_be_raised(stops.running)
    assert stops.running.stop_waits_since == 0.0


async def _inner() -> None:
    await asyncio.sleep(100)


async def _outer() -> None:
    await _inner()


@pytest.mark.parametrize(
    ("before", "place", "told"),
    [
        (None, "3:1:20", "3:1:20"),
        ("3:1:20", "3:1:20", "3:1:20"),  # by both ways
        ("3:2:30", "3:1:20", ""),  # its code has gone on since
        ("", "3:1:20", ""),
    ],
)
def test_where_a_cell_awaits_tells_where_it_is_stopped(
    before: str | None, place: str, told: str
) -> None:
    async def stop() -> None:
        stops = Stops(place, "of what is over")
        stops.running.stopped_at = before
        task = stops.running.task = asyncio.get_running_loop().create_task(_outer())
        await asyncio.sleep(0)
        stops.running.stop_waits_since = 7.0
        stops._cancel(stops.running)
        assert stops.running.stop_waits_since == 0.0
        with pytest.raises(asyncio.CancelledError):
            await task
        stops._cancel(stops.running)
        assert stops.running.stopped_at == told
        assert stops.asked[0] == ["sleep", "_inner", "_outer"]

    asyncio.run(stop())


def stopped(stops: Stops, cell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a cell that awaits, and have the rank asked to stop it a moment later."""

    async def run() -> None:
        stops._loop = asyncio.get_running_loop()
        stops.running.task = stops._loop.create_task(cell())
        asked = threading.Timer(0.1, stops.interrupt, (None,))
        asked.start()
        try:
            await stops.running.task
        finally:
            asked.join()
            await asyncio.sleep(0)

    running, runner = stops.running, stops._runner
    given = SimpleNamespace(current=running, journal=runner.journal)
    given.main_thread_id, given.asking = threading.get_ident(), SimpleNamespace(stop=lambda: None)
    given.journal.is_launching = given.journal.has_just_launched = lambda frame: False
    stops._runner = given  # type: ignore[assignment]
    running.over, running.has_left, running.unheard_since = False, False, 0.0
    before = signal.signal(signal.SIGINT, stops.on_sigint)
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_cell_that_awaits_is_stopped_there() -> None:
    stops = Stops("3:1:20")
    with pytest.raises(asyncio.CancelledError):
        stopped(stops, _outer)
    assert stops.running.stopped_at == "3:1:20" and stops.running.interrupted


@pytest.mark.parametrize("awaits", [False, True], ids=["calls", "awaits"])
def test_a_stop_that_a_cell_catches_is_not_raised_a_second_time(
    awaits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the cell awaits then."""
    done = []

    async def catches() -> None:
        try:
            if awaits:
                await asyncio.sleep(60)
            time.sleep(60)
        except (asyncio.CancelledError, KeyboardInterrupt):
            await asyncio.sleep(0.05)
            done.append("cleaned up")

    monkeypatch.setattr("jaxcluster.engine.usercode.is_inside", lambda frame: not awaits)
    stopped(Stops("3:1:20", "3:2:30", "3:3:40"), catches)
    assert done == ["cleaned up"]


@pytest.mark.parametrize("is_entered", [False, True])
def test_results_may_have_no_names_while_the_rank_is_at_the_instruction_that_has_launched(
    is_entered: bool,
) -> None:
    journal, told = Journal(8), []
    one = Program("jit(f)", 1, "0,1", "f32[4]", None)
    journal.cell_numbers[CELL] = 3

    def look() -> None:
        if is_entered:
            journal.tail(1)
        told.append(journal.may_hold_results(sys._getframe()))

    def launch() -> None:
        look()
        launched(journal, one)
        look()

    for each in (look, launch):  # its lines are nobody's
        each.__code__ = each.__code__.replace(co_filename="jax")
    exec(compile("launch()\nlook()", CELL, "exec"), {"launch": launch, "look": look})
    assert told == [False, True, False]
    launch()
    look()  # it was by no cell's code: it may be anywhere
    assert told[3:] == [False, True, True]
    launch()
    journal._made.append(one)  # in the middle of another
    look()
    assert told[-1]
