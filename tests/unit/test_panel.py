"""The panel's parts without a kernel: what it says of ranks and cells, and how seldom."""

from __future__ import annotations

import itertools
import json
import logging
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import comm
import pytest
from helpers import until

from jaxcluster import cluster, panel, wire
from jaxcluster.agreement.refusals import Place, Refusal
from jaxcluster.cluster import events, handle
from jaxcluster.cluster.resources import Meter, sample_of
from jaxcluster.model.outputs import CellRecord, RankRecord
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.panel import Panel, protocol
from jaxcluster.panel.model import KEPT_CELLS, Model
from jaxcluster.panel.operations import Operations
from jaxcluster.records.lastreport import LastReport
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.views.cell_outputs import MOST_CHARS, notebook_outputs
from jaxcluster.wire.forks import RESTARTED, STOPPED
from jaxcluster.wire.ops.agreement import AgreedLaunch, Look, Looked, Waiting
from jaxcluster.wire.ops.status import Resources

# ------------------------------------------------------------------------------ clusters and cells


class Link:
    """Stands for a link: the ranks answer what ``states`` says, those that have one."""

    def __init__(self, states: dict[int, wire.RankState], n: int) -> None:
        self.states, self.ranks = states, list(range(n))
        self.uses: dict[int, wire.RankResources] = {}
        self.looked = Looked(0.0)

    def gather(self, ranks: Any, asked: Any, **options: Any) -> dict[int, Any]:
        told: dict[int, Any] = self.uses if isinstance(asked, Resources) else self.states
        if isinstance(asked, Look):
            told = dict.fromkeys(told, self.looked)
        there = [rank for rank in ranks if rank in told]
        return {r: types.SimpleNamespace(rank=r, op="reply", body=told[r]) for r in there}


class Running:
    """Stands for a running cluster."""

    def __init__(self, n: int) -> None:
        spec = wire.ClusterSpec("main", n)
        facts = [wire.EngineFacts(r, 100 + r, "host-a", "k", "", "") for r in range(n)]
        devices = [
            wire.InitializeReply(r, n, n, [wire.DeviceInfo(r, "cpu", "cpu", r)], 0.1)
            for r in range(n)
        ]
        self.record = ClusterRecord(
            "main", spec, "", 5_000_000, "host-a", pids=[100 + r for r in range(n)],
            facts=facts, devices=devices,
        )  # fmt: skip
        self.name, self.num_processes, self.spec = "main", n, spec
        self.link = Link({r: state(r) for r in range(n)}, n)
        self.meter = Meter(self.link)  # type: ignore[arg-type]
        self.cells: list[Any] = []
        self.dead: dict[int, wire.Death] = {}
        self.coordinator_died = ""
        self.is_restarting = self.closed = self.is_ours = self.is_ending = False
        self.unreachable: dict[str, str] = {}
        self.down = self.why = ""
        self.hosts: dict[int, str] = {}
        self.past_reports = types.SimpleNamespace(last_own=None)

    @property
    def world(self) -> Running:
        return self

    def log_excerpt(self, rank: int) -> str:
        return "its last words"

    def submit(self, seq: int, cell_id: str) -> Any:
        ranks = range(self.num_processes)
        cell = types.SimpleNamespace(
            record=CellRecord(seq, seq, "pass", ranks, cell_id=cell_id),
            cluster=self,
            started=time.monotonic(),
            done=False,
            why="",
            refusal=None,
            paused=set(),
        )
        self.cells.append(cell)
        return cell


def state(rank: int, what: str = "idle", **more: Any) -> wire.RankState:
    return wire.RankState(rank, 100 + rank, "host-a", what, rss_nbytes=200 << 20, **more)


def reply(cell: Any, rank: int, status: str = "ok", seconds: float = 0.5) -> None:
    cell.record.add_reply(wire.CellReply(rank, cell.record.seq, status, seconds))


def end(cell: Any) -> None:
    for rank in cell.record.ranks:
        if rank not in cell.record.replies:
            reply(cell, rank)
    cell.record.seconds, cell.done = 0.5, True
    cell.cluster.cells.remove(cell)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    running = Running(4)
    monkeypatch.setattr(handle, "opened", {"main": running})
    monkeypatch.setattr(cluster, "live_records", lambda tidy: [running.record])
    return running


def statuses(model: Model) -> list[str]:
    return [rank.status for rank in model.take_in()[0].ranks]


# ------------------------------------------------------------------------------------------ ranks


def test_a_reply_counts_more_than_an_older_answer_of_the_control_channel(running: Running) -> None:
    model = Model(AutoMode())
    model.submitted.append(cell := running.submit(1, "a"))
    running.link.states = {r: state(r, "running", seq=1, cell=1, line=3) for r in range(4)}
    model.look(0)
    assert [rank.line for rank in model.take_in()[0].ranks] == [3] * 4
    end(cell)
    assert statuses(model) == ["idle"] * 4
    model.submitted.append(running.submit(2, "b"))
    shown = model.take_in()[0].ranks
    assert [(r.status, r.cell, r.line) for r in shown] == [("running", 2, None)] * 4


PLACE = Place(1, 8, "step()")


def wait_of(rank: int, *missing: int, seq: int = 1, lane: str = "") -> Waiting:
    return Waiting(rank, lane, seq, "jit(sum)", PLACE, 1.0, [*missing])


def looked_at(running: Running, *waits: Waiting, launches: int = 0) -> Model:
    """A model that has seen all ranks run cell 1, and what the referee says."""
    late = [AgreedLaunch(n, 1, "jit(step)", PLACE, n * 0.05, 2, 0.048) for n in range(launches)]
    running.link.looked = Looked(9.0, [*waits], late)
    running.link.states = {r: state(r, "running", seq=1, cell=1, line=8) for r in range(4)}
    model = Model(AutoMode())
    model.look(0)
    return model


def test_a_rank_that_keeps_the_others_waiting_has_a_note(running: Running) -> None:
    model = looked_at(running, launches=32)
    model.submitted.append(running.submit(1, "a"))
    notes = [rank.note for rank in model.take_in()[0].ranks]
    told = "Rank 2 comes last into 100% of launches, 48 ms behind (line 8, jit(step))."
    assert notes == ["", "", told, ""]
    running.link.looked = Looked(10.0)
    model.look(0)
    assert {rank.note for rank in model.take_in()[0].ranks} == {""}


def test_a_rank_that_waits_says_for_whom_and_so_does_its_cell(running: Running) -> None:
    model = looked_at(running, wait_of(0, 2, 3), wait_of(1, 2, 3), wait_of(2, 3, lane="Thread-1"))
    model.submitted.append(running.submit(1, "a"))
    shown, cells = model.take_in()
    expected = ["waiting", "waiting", "running", "running"]
    assert [rank.status for rank in shown.ranks] == expected
    assert shown.ranks[0].note == "waits for ranks 2, 3 (line 8, jit(sum))"
    assert [rank.status for rank in cells[0].ranks] == expected


def test_a_rank_that_a_person_holds_is_paused_and_so_is_it_in_its_cell(running: Running) -> None:
    model = Model(AutoMode())
    model.submitted.append(cell := running.submit(1, "a"))
    cell.paused = {2}
    held = state(2, "running", seq=1, cell=1, line=3, paused="debugger")
    running.link.states = {r: state(r, "running", seq=1) for r in range(4)} | {2: held}
    model.look(0)
    shown, cells = model.take_in()
    assert [rank.status for rank in shown.ranks] == ["running", "running", "paused", "running"]
    assert shown.ranks[2].note == "In the debugger."
    assert [rank.status for rank in cells[0].ranks] == ["running", "running", "paused", "running"]


def test_dead_silent_and_restarting_ranks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(AutoMode())
    running.dead[1] = wire.Death("killed by SIGKILL")
    dead = model.take_in()[0].ranks[1]
    assert (dead.status, dead.note) == ("dead", "killed by SIGKILL")
    running.dead = {}
    del running.link.states[3]
    model.look(0)
    assert statuses(model) == ["idle"] * 4
    later = time.monotonic() + 10
    monkeypatch.setattr(time, "monotonic", lambda: later)
    model.look(0)
    assert statuses(model) == ["idle", "idle", "idle", "silent"]
    running.link.states[3] = state(3)
    model.look(0)
    assert statuses(model) == ["idle"] * 4
    del running.link.states[3]
    later += 1000  # without a page nobody asks
    model.look(0)
    assert statuses(model) == ["idle"] * 4
    running.is_restarting = True
    assert statuses(model) == ["starting"] * 4


# ------------------------------------------------------------------------------------------ cells


def test_a_cell_from_running_to_its_end(running: Running) -> None:
    model = Model(AutoMode())
    model.submitted.append(cell := running.submit(7, "a"))
    (shown,) = model.take_in()[1]
    assert {rank.status for rank in shown.ranks} == {"running"}
    assert (shown.cell_id, shown.number, shown.seq, shown.ended) == ("a", 7, 7, None)
    reply(cell, 0, "ok", 0.25)
    reply(cell, 1, "error")
    reply(cell, 2, "interrupted")
    cell.record.records[3].died = "killed by SIGKILL"
    end(cell)
    (shown,) = model.take_in()[1]
    assert [r.status for r in shown.ranks] == ["done", "failed", "interrupted", "dead"]
    assert shown.ranks[0].seconds == 0.25
    assert shown.ended == shown.started + 500
    assert model.take_in()[1] == []
    assert [c.cell_id for c in model.cells()] == ["a"]
    model.submitted.append(cell := running.submit(8, "b"))
    cell.refusal = Refusal("ended", causes=(1,))  # rank 1 has made it so
    for rank, status in enumerate(("refused", "ok", "refused", "refused")):
        reply(cell, rank, status)
    end(cell)
    (shown,) = model.take_in()[1]
    assert [r.status for r in shown.ranks] == ["interrupted", "failed", *["interrupted"] * 2]


def test_the_newest_run_of_a_cell_takes_the_older_ones_place(running: Running) -> None:
    model = Model(AutoMode())
    for seq, cell_id in enumerate(["a", "b", "a"], 1):
        cell = running.submit(seq, cell_id)
        model.submitted.append(cell)
        end(cell)
    model.take_in()
    assert [(c.cell_id, c.seq) for c in model.cells()] == [("b", 2), ("a", 3)]
    for seq in range(KEPT_CELLS):  # older ones are let go
        model.submitted.append(cell := running.submit(seq + 4, f"c{seq}"))
        end(cell)
        model.take_in()
    assert [c.cell_id for c in model.cells()] == [f"c{seq}" for seq in range(KEPT_CELLS)]


def test_long_outputs_and_deaths_are_told_in_a_notebooks_outputs() -> None:
    record = RankRecord(1, died="killed by SIGKILL")
    record.add(wire.RankOutput(1, 3, "stream", {"name": "stdout", "text": "x" * 2 * MOST_CHARS}))
    text, died = notebook_outputs(record, 7)
    assert f"x\n[{MOST_CHARS} more characters]\nx" in text["text"]
    assert died["evalue"] == "rank 1 died: killed by SIGKILL"
    (ended,) = notebook_outputs(RankRecord(1, died=RESTARTED), 7)
    assert ended["evalue"] == RESTARTED


# --------------------------------------------------------------------------------------- resources


def uses(at_s: float, cpu_s: float, *gpus: wire.GpuUse) -> wire.RankResources:
    return wire.RankResources(0, at_s, cpu_s, 100 << 20, list(gpus))


def test_a_share_of_a_processor_takes_two_readings() -> None:
    gpus = (wire.GpuUse("0", 80.0, 3, 10), wire.GpuUse("1", 40.0, 4, 10))
    first = sample_of(None, uses(10.0, 5.0))
    assert (first.cpu, first.gpu, first.gpu_total_nbytes) == (None, None, 0)
    second = sample_of(uses(10.0, 5.0), uses(12.0, 8.0, *gpus))
    assert (second.cpu, second.gpu) == (150.0, 60.0)
    assert (second.gpu_used_nbytes, second.gpu_total_nbytes) == (7, 20)
    part = sample_of(None, uses(1.0, 1.0, wire.GpuUse("MIG-1", None, 3, 10)))
    assert (part.gpu, part.gpu_used_nbytes) == (None, 3)


def test_what_ranks_use_is_measured_while_they_are_busy_and_once_after(running: Running) -> None:
    """An idle kernel must look idle: each change is a message."""
    model = Model(AutoMode())
    cpus: list[int | None] = []
    for second, busy in enumerate([0, 0, 0, 1, 1, 0, 0, 0]):
        running.link.uses = {0: uses(second, 0.1 * second * second)}
        running.link.states[0] = state(0, "running" if busy else "idle", seq=1)
        running.meter.due = 0.0
        model.look(0)
        running.meter.look(0)  # so does a live status, and nothing of it is told
        used = model.take_in()[0].ranks[0].use
        cpus.append(used.cpu if used else 0)
    assert cpus == [None, 10, 10, 10, 70, 90, 110, 110]


# --------------------------------------------------------------------------------------- incidents


MESSAGE = "cell [7]: rank 1 ended the cell.\n  rank 1   ended\nNothing was launched."


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Divergence", "diverged"), ("ValueError", "failed"), ("RankHung", "hung")],
)
def test_the_last_cell_that_went_wrong_is_told(running: Running, name: str, kind: str) -> None:
    running.past_reports.last_own = LastReport(
        1_500_000, 7, "pass", name, MESSAGE, "Fix it.", [1], cell_id="a"
    )
    told = Model(AutoMode()).take_in()[0].report
    assert told is not None
    assert (told.kind, told.cell, told.cell_id, told.at) == (kind, 7, "a", 1)
    begin = "Divergence in " if name == "Divergence" else ""
    assert told.title == f"{begin}cell [7]: rank 1 ended the cell."
    assert told.lines == ["  rank 1   ended", "Nothing was launched.", "Fix it."]
    assert (told.culprits, told.open) == ([1], False)


def test_a_death_is_told_and_so_is_the_next_one(running: Running) -> None:
    model = Model(AutoMode())
    running.dead[1] = wire.Death("killed by SIGKILL")
    first = model.take_in()[0].report
    assert first is not None
    assert first.title == "Rank 1 died"
    assert first.lines == ["Rank 1 died: killed by SIGKILL.", "its last words"]
    assert (first.kind, first.culprits, first.open) == ("dead", [1], True)
    told = "Rank 1 died: killed by SIGKILL."
    running.past_reports.last_own = LastReport(
        6_000_000, 7, "pass", "RankDied", told, "", [1], cell_id="a"
    )
    of_cell = model.take_in()[0].report
    assert of_cell is not None
    assert (of_cell.cell_id, of_cell.title, of_cell.open) == ("a", told, True)
    running.dead[2] = wire.Death("exit code 1")
    second = model.take_in()[0].report
    assert second is not None and second.culprits == [1, 2]


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        (RESTARTED, "%jaxcluster attach main connects to its new processes."),
        (STOPPED, "%jaxcluster start starts another."),
    ],
)
def test_ranks_that_another_notebook_has_ended_have_not_died(
    running: Running, why: str, hint: str
) -> None:
    model = Model(AutoMode())
    running.dead = {0: wire.Death("killed by SIGKILL"), 1: wire.Death(why), 2: wire.Death(why)}
    told = model.take_in()[0].report
    assert told is not None
    assert (told.title, told.culprits) == (why.capitalize(), [0])
    assert told.lines == ["Rank 0 died: killed by SIGKILL.", f"{why.capitalize()}.", hint]


# ------------------------------------------------------------------------------------------ pushes


class Comm(comm.base_comm.BaseComm):
    """Keeps what is sent on it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.messages: list[Any] = []
        self.times: list[float] = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type: str, data: Any = None, **keys: Any) -> None:
        if msg_type == "comm_msg":
            self.times.append(time.monotonic())
            self.messages.append(json.loads(json.dumps(data)))


@pytest.fixture
def opened(running: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Panel]:
    manager = comm.base_comm.CommManager()
    monkeypatch.setattr(comm, "create_comm", Comm)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager)
    kernel = types.SimpleNamespace(
        log=logging.getLogger("test"), kernel_info={"supported_features": ["kernel subshells"]}
    )
    opened = Panel(types.SimpleNamespace(kernel=kernel), AutoMode())
    opened.install()
    yield opened
    opened.uninstall()
    assert events.watchers == []


def page(opened: Panel) -> Callable[..., None]:
    """A page's way to ask."""
    rpc = Comm(target_name=protocol.RPC, comm_id="rpc", primary=False)
    comm.get_comm_manager().register_comm(rpc)
    comm.get_comm_manager().targets[protocol.RPC](rpc, {})

    def ask(op: str, **args: Any) -> None:
        rpc.handle_msg({"content": {"data": {"id": f"p:{op}", "op": op, "args": args}}})

    return ask


def sent(opened: Panel, kind: str) -> list[Any]:
    return [m for m in opened._events.messages if m["type"] == kind]


def test_the_state_is_pushed_once_and_then_on_change(opened: Panel) -> None:
    until(lambda: len(sent(opened, "state")) == 1, "the first push")
    events.tell()
    time.sleep(0.2)
    assert len(sent(opened, "state")) == 1
    opened._model.auto.on = True
    events.tell()
    until(lambda: len(sent(opened, "state")) == 2, "a push of the change")
    assert sent(opened, "state")[-1]["spmd"]


def test_there_are_ten_pushes_a_second_at_most(opened: Panel) -> None:
    page(opened)("hello", client="p")
    until(lambda: sent(opened, "answer"), "the welcome")
    number = 0

    def pushed_again() -> bool:
        nonlocal number
        number += 1
        opened._model.auto.on = number  # type: ignore[assignment]
        events.tell()
        return len(opened._events.times) > told + 5

    told = len(opened._events.times)
    until(pushed_again, "5 more pushes")
    times = opened._events.times[told:]
    # A busy machine makes the gaps longer, never shorter.
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.09


# ---------------------------------------------------------------------------------------- a widget

BUILT = Path(panel.__file__).parents[1] / "static" / "sidebar" / "widget.js"
needs_build = pytest.mark.skipif(not BUILT.exists(), reason="the Lab extension is not built")


@needs_build
def test_a_widget_is_one_more_page_that_is_sent_changes_alone(opened: Panel) -> None:
    """``%jaxcluster panel``: its state comes as a trait, so that a notebook is saved with it."""
    widget = opened.widget()
    assert widget.state["current"] == "main"  # at once: what runs without a page saves that
    assert opened.widget() is widget
    states: list[Any] = []
    widget.observe(lambda change: states.append(change["new"]), "state")
    opened.tell()
    time.sleep(0.2)
    assert states == []
    opened._model.auto.on = True
    opened.tell()
    until(lambda: states and states[-1]["spmd"], "a change")
    # It is asked by custom messages, which are answered to it alone.
    said: list[Any] = []
    widget.send = said.append
    widget._handle_custom_msg({"id": "w:1", "op": "hello", "args": {"client": "w"}}, [])
    until(lambda: len(said) == 2, "the welcome")
    assert said[0] == {"type": "heard", "id": "w:1"}
    assert said[1]["result"]["cells"] == []
    assert said[1]["result"]["state"]["current"] == "main"
    assert sent(opened, "answer") == []


@needs_build
def test_what_a_widget_asked_too_early_is_refused(opened: Panel) -> None:
    """A kernel without a subshell hears it at the end of a cell, when nobody expects it."""
    widget = opened.widget()
    said: list[Any] = []
    widget.send = said.append
    now = time.time_ns() / 1e6
    off = {"op": "auto", "args": {"on": True}}
    widget._handle_custom_msg({**off, "id": "w:1", "until": now - 1}, [])
    assert said == [
        {"type": "answer", "id": "w:1", "error": "The kernel ran a cell meanwhile. Click again."}
    ]
    assert not opened._model.auto.on
    widget._handle_custom_msg({**off, "id": "w:2", "until": now + 60_000}, [])
    until(lambda: said[-1] == {"type": "answer", "id": "w:2", "result": None}, "the answer")
    assert opened._model.auto.on


# ------------------------------------------------------------------------------------- operations


def test_logs_of_all_ranks_say_whose_each_line_is(running: Running) -> None:
    running.logs = lambda rank, lines: f"loading\nslow {rank}"  # type: ignore[attr-defined]
    operations = Operations(AutoMode(), Model(AutoMode()))
    assert operations("logs", {"rank": 1, "lines": 5}) == "loading\nslow 1"
    shown = operations("logs", {"rank": None, "lines": 5}).splitlines()
    assert shown[:3] == ["[0] loading", "[0] slow 0", "[1] loading"]
