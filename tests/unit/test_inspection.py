"""What a rank's control channel says of it, whatever its main thread does."""

from __future__ import annotations

import linecache
import threading
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.rank import inspection
from jaxcluster.rank.places import CELL_DIRECTORY
from jaxcluster.wire import GpuUse
from jaxcluster.wire.ops.cells import Help


class Runner:
    """A rank whose main thread is another thread, which runs a cell's code."""

    def __init__(self, code: types.CodeType) -> None:
        self.rank, self.shell = 3, None
        self.current: Any = None
        self.turns: list[int] = []
        self.asking = SimpleNamespace(kind="")
        self.agreement = SimpleNamespace(launching=lambda frames: None, refusals=0)
        self.go, self.ready = threading.Event(), threading.Event()
        names = {"ready": self.ready.set, "wait": self.go.wait}
        self.thread = threading.Thread(target=exec, args=(code, names), name="a loader")
        self.thread.start()
        self.ready.wait(20)
        self.main_thread_id = self.thread.ident

    def runs(self, seq: int = 70) -> None:
        cell = SimpleNamespace(seq=seq, execution_count=7)
        self.current = SimpleNamespace(cell=cell, started=0.0, heard=False)


@pytest.fixture
def runner() -> Iterator[Any]:
    file = f"{CELL_DIRECTORY}/7-0123456789ab.py"
    source = "def f():\n    ready()\n    wait(60)\n\nf()\n"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    made = Runner(compile(source, file, "exec"))
    yield made
    made.go.set()
    made.thread.join(20)


def test_a_rank_in_a_cell_says_in_which_line_it_is(runner: Any) -> None:
    runner.runs()
    runner.asking.kind = "debugger"
    found = inspection.rank_state(runner)
    assert (found.state, found.seq, found.cell, found.line) == ("running", 70, 7, 3)
    assert found.seconds > 0
    assert (found.paused, found.launching) == ("debugger", "")


def test_a_report_has_the_stack_and_other_threads_of_the_users(runner: Any) -> None:
    runner.runs()
    found = inspection.report(runner, "running")
    functions = [frame[2] for frame in found.stack]
    assert functions.index("<module>") < functions.index("f")
    (line,) = [frame for frame in found.stack if frame[2] == "f"]
    assert line[1] == 3 and line[3] == "wait(60)" and line[4] == 7 and line[5] is False
    assert "a loader" not in found.threads  # it is the main thread here
    runner.main_thread_id = threading.get_ident()
    idle = threading.Thread(target=runner.go.wait, name="idle in the standard library")
    idle.start()
    threads = inspection.report(runner, "running").threads
    assert ["f", "wait(60)", 7] in [frame[2:5] for frame in threads["a loader"]]
    assert idle.name not in threads
    runner.go.set()
    idle.join()


def test_a_completion_that_does_not_end_holds_no_other_one(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "WAITS_S", 0.01)
    runner.shell = SimpleNamespace(kernel=None)
    with inspection._completing:
        assert inspection.help_with(runner, Help("x.", 2)) == {}


def test_what_a_process_uses_is_read_once_a_second_for_all_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [GpuUse("0", 80.0, 3, 10), GpuUse("1", 40.0, 4, 10), GpuUse("MIG-1", None, 1, 5)]
    monkeypatch.setattr(inspection, "gpu_uses", lambda visible: gpus)
    monkeypatch.setattr(inspection.time, "sleep", lambda _: sum(range(10**6)))
    meter = inspection.Meter()
    first = meter.read()
    assert (first.gpu, first.gpu_used_nbytes, first.gpu_total_nbytes) == (60, 8, 25)
    assert first.cpu > 0 and first.rss_nbytes
    assert meter.read() is first
    monkeypatch.setattr(inspection, "READING_S", 0)
    assert meter.read().cpu > 0
