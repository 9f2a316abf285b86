"""What the panel says of ranks and cells, without a kernel."""

from __future__ import annotations

import time
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jaxcluster import cluster, wire
from jaxcluster.agreement.messages import AgreedLaunch, Looked, Place, Refusal, Waiting
from jaxcluster.cluster import handle
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.notebook import panel
from jaxcluster.notebook.panel.model import KEPT_CELLS, Model
from jaxcluster.notebook.panel.operations import Operations
from jaxcluster.views.messages import Hello, Request
from jaxcluster.wire.forks import RESTARTED, STOPPED

PLACE = Place(1, 8, "step()")


class Running:
    """Stands for a running cluster: its ranks answer what ``states`` says, those that have one."""

    name, num_processes, ranks = "main", 4, range(4)
    is_restarting = closed = is_ours = is_ending = False
    coordinator_died = down = why = ended_by = ""

    def __init__(self) -> None:
        self.spec = wire.ClusterSpec("main", 4)
        facts = [wire.EngineFacts(r, 100 + r, "host-a", "k", "") for r in self.ranks]
        devices = [wire.InitializeReply([wire.DeviceInfo(r, "cpu", "cpu")]) for r in self.ranks]
        self.record = ClusterRecord(
            "main", self.spec, "", 5_000_000, "host-a", pids=[100 + r for r in self.ranks],
            facts=facts, devices=devices,
        )  # fmt: skip
        self.world = self.link = self
        self.states = {r: state(r) for r in self.ranks}
        self.looked = Looked(0.0)
        self.cells: list[Any] = []
        self.dead: dict[int, wire.Death] = {}
        self.unreachable, self.hosts = dict[str, str](), dict[int, str]()
        self.past_reports = types.SimpleNamespace(last_own=None)

    def gather(self, ranks: Any, asked: Any, **options: Any) -> dict[int, Any]:
        return {}

    def status(self, timeout_s: float) -> list[wire.RankState]:
        return list(self.states.values())

    def look(self, launches: int, timeout_s: float) -> Looked:
        return self.looked

    def log_excerpt(self, rank: int) -> str:
        return "its last words"

    def logs(self, rank: int, lines: int) -> str:
        return f"loading\nslow {rank}"

    def submit(self, model: Model, seq: int, cell_id: str) -> Any:
        record = CellRecord(seq, seq, "pass", self.ranks, cell_id=cell_id)
        cell = types.SimpleNamespace(
            record=record,
            cluster=self,
            started=time.monotonic(),
            done=False,
            why="",
            refusal=None,
            paused=set(),
        )
        self.cells.append(cell)
        model.submitted.append(cell)  # type: ignore[arg-type]
        return cell

    def run_all(self) -> None:
        """All ranks say that they run cell 1, and are in its line 8."""
        self.states = {r: state(r, "running", seq=1, cell=1, line=8) for r in self.ranks}


def state(rank: int, what: str = "idle", **more: Any) -> wire.RankState:
    return wire.RankState(rank, what, **more)


def end(cell: Any, *replies: str) -> None:
    """End a cell with these statuses of its ranks; those that are left out have ended it well."""
    for rank in cell.record.ranks:
        status = replies[rank] if rank < len(replies) else "ok"
        if status:
            cell.record.add_reply(wire.CellReply(rank, cell.record.seq, status, 0.25))
    cell.record.seconds, cell.done = 0.5, True
    cell.cluster.cells.remove(cell)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    running = Running()
    monkeypatch.setattr(handle, "opened", {"main": running})
    monkeypatch.setattr(cluster, "live_records", lambda: [running.record])
    return running


@pytest.fixture
def model() -> Model:
    return Model(AutoMode())


def each(ranks: Any, what: str = "status") -> list[Any]:
    return [getattr(rank, what) for rank in ranks]


def statuses(model: Model) -> list[str]:
    return each(model.take_in()[0].ranks)


# ------------------------------------------------------------------------------------------ ranks


def test_a_reply_counts_more_than_an_older_answer_of_the_control_channel(
    running: Running, model: Model
) -> None:
    cell = running.submit(model, 1, "a")
    running.run_all()
    model.look()
    assert each(model.take_in()[0].ranks, "line") == [8] * 4
    end(cell)
    assert statuses(model) == ["idle"] * 4
    running.submit(model, 2, "b")
    shown = model.take_in()[0].ranks
    assert [(r.status, r.cell, r.line) for r in shown] == [("running", 2, None)] * 4


def test_a_rank_that_keeps_the_others_waiting_has_a_note(running: Running, model: Model) -> None:
    launches = [AgreedLaunch(n, 1, "jit(step)", PLACE, n * 0.05, 2, 0.048) for n in range(32)]
    running.submit(model, 1, "a")
    running.run_all()
    running.looked = Looked(9.0, [], launches)
    model.look()
    notes = each(model.take_in()[0].ranks, "note")
    told = "is last in 100% of launches, 48 ms late (line 8, jit(step))."
    assert notes[2].endswith(told) and {*notes[:2], notes[3]} == {""}
    running.looked = Looked(10.0)
    model.look()
    assert {*each(model.take_in()[0].ranks, "note")} == {""}


def test_a_rank_waits_for_others_or_is_held_and_so_it_is_in_its_cell(
    running: Running, model: Model
) -> None:
    cell = running.submit(model, 1, "a")
    running.run_all()
    cell.paused = {3}
    running.states[3] = state(3, "running", seq=1, cell=1, line=3, paused="debugger")
    waits = [Waiting(r, "", 1, "jit(sum)", PLACE, 1.0, [2, 3]) for r in (0, 1)]
    thread = Waiting(2, "Thread-1", 1, "jit(sum)", PLACE, 1.0, [3])
    running.looked = Looked(9.0, [*waits, thread])
    model.look()
    shown, cells = model.take_in()
    expected = ["waiting", "waiting", "running", "paused"]
    assert each(shown.ranks) == expected
    assert each(cells[0].ranks) == expected
    assert shown.ranks[0].note == "waits for ranks 2, 3 (line 8, jit(sum))"
    assert shown.ranks[3].note == "In the debugger."


def test_dead_silent_and_restarting_ranks(
    running: Running, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.dead[1] = wire.Death("killed by SIGKILL")
    shown = model.take_in()[0]
    dead, told = shown.ranks[1], shown.report
    assert (dead.status, dead.note) == ("dead", "killed by SIGKILL")
    assert (told.kind, told.culprits, told.open) == ("dead", [1], True)
    assert told.lines == ["Rank 1 died: killed by SIGKILL.", "its last words"]
    running.dead = {}
    running.states[3] = state(3, "silent")
    model.look()
    assert statuses(model) == ["idle"] * 4  # on a busy machine
    monkeypatch.setattr(panel.model, "SILENT_S", 0)
    model.look()
    assert statuses(model) == ["idle", "idle", "idle", "silent"]
    running.states[3] = state(3)
    model.look()
    assert statuses(model) == ["idle"] * 4
    running.is_restarting = True
    assert statuses(model) == ["starting"] * 4


# ------------------------------------------------------------------------------------------ cells


@pytest.mark.parametrize(
    ("replies", "causes", "shown"),
    [
        (("ok", "error", "interrupted", ""), (), ["done", "failed", "interrupted", "dead"]),
        # Rank 1 has made it so that the others were refused a launch.
        (("refused", "ok", "refused"), (1,), ["interrupted", "failed", "interrupted", "done"]),
    ],
)
def test_a_cell_has_ended_on_each_rank_in_its_way(
    running: Running, model: Model, replies: Any, causes: Any, shown: list[str]
) -> None:
    cell = running.submit(model, 7, "a")
    (first,) = model.take_in()[1]
    assert {*each(first.ranks)} == {"running"} and first.ended is None
    cell.refusal = Refusal("ended", causes=causes) if causes else None
    cell.record.records[3].died = "" if len(replies) < 4 else "killed by SIGKILL"
    end(cell, *replies)
    (last,) = model.take_in()[1]
    assert each(last.ranks) == shown
    assert (last.cell_id, last.number) == ("a", 7)
    assert last.ended == last.started + 500
    assert model.take_in()[1] == []
    assert each(model.cells(), "cell_id") == ["a"]


def test_the_newest_run_of_a_cell_takes_the_older_ones_place(
    running: Running, model: Model
) -> None:
    for seq, cell_id in enumerate(["a", "b", "a"], 1):
        end(running.submit(model, seq, cell_id))
    model.take_in()
    assert [(c.cell_id, c.seq) for c in model.cells()] == [("b", 2), ("a", 3)]
    for seq in range(KEPT_CELLS):  # older ones are let go
        end(running.submit(model, seq + 4, f"c{seq}"))
        model.take_in()
    assert each(model.cells(), "cell_id") == [f"c{seq}" for seq in range(KEPT_CELLS)]


# --------------------------------------------------------------------------------------- incidents


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        (RESTARTED, "%jaxcluster attach main connects to its new processes."),
        (STOPPED, "%jaxcluster start starts another."),
    ],
)
def test_ranks_that_another_notebook_has_ended_have_not_died(
    running: Running, model: Model, why: str, hint: str
) -> None:
    running.dead = {0: wire.Death("killed by SIGKILL"), 1: wire.Death(why), 2: wire.Death(why)}
    running.ended_by = why
    told = model.take_in()[0].report
    assert (told.title, told.culprits) == (why.capitalize(), [0])
    assert told.lines == ["Rank 0 died: killed by SIGKILL.", f"{why.capitalize()}.", hint]


# ------------------------------------------------------------------------------- what pages ask

BUILT = Path(panel.__file__).parents[2] / "static" / "sidebar" / "widget.js"


@pytest.mark.skipif(not BUILT.exists(), reason="the Lab extension is not built")
def test_what_a_widget_asked_too_early_is_refused() -> None:
    """A kernel without a subshell hears it at the end of a cell, when nobody expects it."""
    from jaxcluster.notebook.panel.widget import SidebarWidget

    asked: list[Any] = []
    said: list[Any] = []
    widget = SidebarWidget(asked.append)
    widget.send = said.append
    now = time.time_ns() / 1e6
    late, early = (
        {"id": id, "op": "auto", "args": {}, "until": now + ms}
        for id, ms in (("1", -1), ("2", 60_000))
    )
    for request in (late, early):
        widget._handle_custom_msg(request, [])
    told = "The kernel ran a cell meanwhile. Click again."
    assert said == [{"type": "answer", "id": "1", "error": told}, {"type": "heard", "id": "2"}]
    assert asked == [msgspec.convert(early, Request)]


def test_logs_of_all_ranks_say_whose_each_line_is(running: Running, model: Model) -> None:
    operations = Operations(model, lambda: Hello(model.take_in()[0], []))
    assert operations("logs", {"rank": 1, "lines": 5}) == "loading\nslow 1"
    shown = operations("logs", {"rank": None, "lines": 5}).splitlines()
    assert shown[:3] == ["[0] loading", "[0] slow 0", "[1] loading"]
