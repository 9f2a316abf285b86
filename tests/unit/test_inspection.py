"""What a rank's control channel says of it is of one moment, though the main thread runs on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.engine import inspection
from jaxcluster.engine.counted import Program
from jaxcluster.engine.journal import Journal

PROCESS = inspection.Process("here", ["cpu:0"], is_starting=False)
F = Program("f", 1, "0,1", "f32[4]", object())
G = Program("g", 2, "0,1", "f32[4]", object())


class Runner:
    """A rank whose main thread acts when something of it is read for the ``at``-th time."""

    def __init__(self) -> None:
        self.at, self.reads = -1, itertools.count()
        self.journal = Journal()
        self.journal.enter(1)
        self.journal.launch(F, lambda error: False, list)
        self.rank, self.shell, self.ended, self.cell_numbers = 0, None, 0, {}
        self.main_thread_id = threading.get_ident()
        self.current: Any = self.in_cell(1)
        self.queue = Queue([2])
        self.thread_errors = SimpleNamespace(latest=lambda: None)
        self.background = SimpleNamespace(ask=lambda: None, look=lambda: ["thread 't'"], probes=0)
        self.paused, self.gate = (
            SimpleNamespace(kind=""),
            SimpleNamespace(waits_for=[], is_cut_short=False),
        )
        self.gate.unsettled = lambda: [self.ended]

    @staticmethod
    def in_cell(seq: int) -> Any:
        cell = SimpleNamespace(seq=seq, execution_count=seq)
        return SimpleNamespace(cell=cell, has_left=False, started=0.0, stop_waits_since=0.0)

    def act(self) -> None:
        """A thread of the first cell launches and ends; the next cell ends, and a third waits."""
        self.journal.launch(G, lambda error: False, list)
        self.background.look = list
        self.journal.leave()
        self.ended, self.queue = 1, Queue()
        self.queue.taken = 2
        self.current = None
        self.journal.enter(2)
        self.current = self.in_cell(2)
        self.journal.waiting.append(wire.Launch(2, "0,1", "h", 3, 2, 1, ""))
        self.background.probes, self.gate.waits_for = 1, [1]

    def __getattribute__(self, name: str) -> Any:
        if name not in ("reads", "at", "act") and next(self.reads) == self.at:
            self.at = -1
            self.act()
        return super().__getattribute__(name)


class Queue(list[int]):
    taken = 1


def told(report: wire.PollReply) -> Any:
    state = report.report.state
    parts = state.state, state.seq, state.queued, state.ended, state.taken, state.launches
    more = state.background, state.probes, state.gate, report.report.announced
    return parts, more, report.kinds, report.made


LOOKS: dict[str, Callable[[Any], Any]] = {
    "poll": lambda runner: told(inspection.report(runner, PROCESS, [], 9)),
    "rest": inspection.rest,
    "state": lambda runner: inspection.rank_state(runner, PROCESS).launches,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_a_rank_says_is_of_one_moment(look: Callable[[Any], Any]) -> None:
    def looked_at(at: float) -> tuple[Any, bool]:
        runner = Runner()
        runner.reads, runner.at = itertools.count(), at
        return look(runner), runner.at == -1

    (before, _), (after, _) = looked_at(10**9), looked_at(0)
    assert before != after
    for at in itertools.count():
        found, has_acted = looked_at(at)
        assert found in (before, after), at
        if not has_acted:
            break
    assert at > 8
