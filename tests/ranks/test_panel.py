"""The kernel's side of the Lab extension, asked as a page asks it: by messages to a real kernel."""

from __future__ import annotations

import itertools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import overhosts
import pytest
from documents import document_of
from helpers import DEADLINE_S, Cell, Notebook

from jaxcluster.views import widget
from jaxcluster.views.messages import PROTOCOL

pytestmark = pytest.mark.any_jax

Open = Callable[..., Notebook]

BUSY_S = 20.0  # what a busy machine may add to each of the figures
EVENTS_ID = "jaxcluster-events"
SIDEBAR = Path(widget.__file__).parents[1] / "static" / "sidebar"
SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, os, sys, time
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("i")))
total = float(jnp.sum(x))
"""


class Page:
    """What a page of the Lab extension does and hears."""

    def __init__(self, notebook: Notebook, subshell: bool = True) -> None:
        self.notebook = notebook
        self.client = uuid.uuid4().hex[:8]
        self.comm_id = uuid.uuid4().hex
        self.subshell_id: str | None = None
        self._numbers = itertools.count(1)
        self._from = len(notebook.comm_messages)
        if subshell:
            notebook.send("create_subshell_request", {}, channel="control")
            reply = notebook.client.get_control_msg(timeout=DEADLINE_S)
            self.subshell_id = reply["content"]["subshell_id"]
        content = {"comm_id": self.comm_id, "target_name": "jaxcluster.rpc", "data": {}}
        notebook.send("comm_open", content, subshell_id=self.subshell_id)

    def ask(self, op: str, **args: Any) -> str:
        """Send a request, and do not wait for the answer."""
        id = f"{self.client}:{next(self._numbers)}"
        content = {"comm_id": self.comm_id, "data": {"id": id, "op": op, "args": args}}
        self.notebook.send("comm_msg", content, subshell_id=self.subshell_id)
        return id

    def answer(self, id: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            return next((m for m in self.heard("answer") if m["id"] == id), None)

        found = self.notebook.until(find, f"the answer to {id}", deadline_s)
        assert found is not None
        return found

    def call(self, op: str, **args: Any) -> Any:
        answer = self.answer(self.ask(op, **args))
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def refused(self, op: str, **args: Any) -> str:
        answer = self.answer(self.ask(op, **args))
        assert "result" not in answer, answer
        return str(answer["error"])

    def hello(self) -> Any:
        return self.call("hello")

    def heard(self, kind: str) -> list[dict[str, Any]]:
        """The messages of that type since this page has been there."""
        messages = self.notebook.comm_messages[self._from :]
        return [m.data for m in messages if m.comm_id == EVENTS_ID and m.data["type"] == kind]

    @property
    def state(self) -> Any:
        """The newest state, pushed or answered."""
        results = [m.get("result") for m in self.heard("answer")]
        answered = [r["state"] for r in results if isinstance(r, dict) and "state" in r]
        return max([*self.heard("state"), *answered], key=lambda state: state["now"])

    def until(self, condition: Callable[[Any], Any], what: str) -> Any:
        """The first state that fits."""
        return self.notebook.until(
            lambda: self.state if condition(self.state) else None, f"{what}; {self.state}"
        )

    def cell(self, cell_id: str) -> Any:
        """The newest message of a cell, or None."""
        found = [m for m in self.heard("cell") if m["cell_id"] == cell_id]
        return found[-1] if found else None

    def row(self, name: str) -> Any:
        """That cluster's in the list, or None."""
        return next((one for one in self.state["clusters"] if one["name"] == name), None)

    def end_of(self, cell_id: str) -> Any:
        """The message of a cell's end."""
        ended = lambda: (cell := self.cell(cell_id)) and cell["ended"] and cell  # noqa: E731
        return self.notebook.until(ended, f"the end of {cell_id}")


@pytest.fixture(scope="module")
def page(notebook: Notebook) -> Iterator[Page]:
    """A page of a notebook with 2 ranks."""
    page = Page(notebook)
    page.hello()
    told = page.call("start", line="-n 2 --devices-per-process 2 --name panel")
    assert told.startswith("Cluster 'panel': ranks 0, 1, 2 cpu devices per rank")
    notebook.ok(SETUP)
    yield page


def statuses(state: Any) -> list[str]:
    return [rank["status"] for rank in state["ranks"]]


def running(notebook: Notebook, source: str, cell_id: str) -> Cell:
    """Begin a cell, and return when rank 0 runs it."""
    cell = notebook.begin(f"%%spmd\nprint('running', flush=True)\n{source}", cell_id)
    notebook.until(lambda: "running" in cell.stdout, "rank 0 runs the cell")
    return cell


def test_a_page_finds_the_marker_and_is_told_everything(notebook: Notebook, page: Page) -> None:
    assert list(notebook.comms("jaxcluster.events")) == [EVENTS_ID]
    state = page.hello()["state"]
    assert (state["type"], state["v"], state["current"]) == ("state", PROTOCOL, "panel")
    (row,) = [c for c in state["clusters"] if c["name"] == "panel"]
    launcher = "ssh" if overhosts.hosts() else "local"
    assert (row["num_processes"], row["platform"], row["launcher"]) == (2, "cpu", launcher)
    assert not row["orphaned"]
    assert state["clusters"][0] == row
    assert statuses(state) == ["idle", "idle"]
    assert state["ranks"][0]["devices"] == ["cpu:0", "cpu:1"]
    assert len(state["ranks"][1]["devices"]) == 2
    assert all(rank["pid"] > 0 and rank["host"] for rank in state["ranks"])
    used = page.until(lambda state: all(r["use"] for r in state["ranks"]), "what they use")
    assert all(rank["use"]["rss_nbytes"] > 0 for rank in used["ranks"])


def test_texts_and_errors_that_say_what_to_do_without_a_traceback(
    notebook: Notebook, page: Page
) -> None:
    notebook.ok("%%spmd\n_ = os.system('echo from a child >&2')")
    assert "from a child" in page.call("logs", rank=1, lines=50)
    assert page.call("stacks") == "── ranks 0, 1 ──\nidle, in no cell"
    assert "there is no --nonsense" in page.refused("start", line="--nonsense 1")
    assert "has no 'fly'" in page.refused("fly")
    assert "There is no rank 9" in page.refused("logs", rank=9, lines=1)
    assert "There is no cluster 'nobody'" in page.refused("stop", name="nobody")


def test_a_restart_with_and_without_the_variables(notebook: Notebook, page: Page) -> None:
    notebook.ok("%%spmd\nkept = 42")
    cell = running(notebook, "while True: time.sleep(0.01)", "under the restart")
    told = page.call("restart", clean=False)
    assert "variables kept" in told or "variable kept" in told
    notebook.wait(cell)
    assert notebook.ok("%spmd kept").result == "42"
    assert any("starting" in statuses(state) for state in page.heard("state"))
    page.call("restart", clean=True)
    assert "NameError" in notebook.run("%spmd kept").error
    notebook.ok(SETUP)


def test_a_second_start_is_refused_while_one_goes_on(page: Page) -> None:
    first = page.ask("start", line="-n 2 --name one")
    page.until(lambda state: state["progress"], "it starts")
    assert "is already being started" in page.refused("start", line="-n 2 --name two")
    assert page.answer(first)["result"].startswith("Cluster 'one'")
    state = page.until(lambda s: s["current"] == "one", "the new one is current")
    assert [c["name"] for c in state["clusters"][:2]] == ["panel", "one"]
    assert page.call("stop", name="one").startswith("Stopped ranks 0, 1 of")
    page.until(lambda s: s["current"] == "panel", "the other one is current again")


@pytest.mark.one_machine("it kills ranks by their pids here")
def test_a_death_becomes_a_report(notebook: Notebook, page: Page) -> None:
    cell = running(notebook, "while True: time.sleep(0.01)", "death")
    pid = page.state["ranks"][1]["pid"]
    os.kill(pid, signal.SIGKILL)
    found = page.until(lambda s: s["report"] and s["report"]["cell_id"] == "death", "it")["report"]
    assert found["culprits"] == [1]
    assert found["title"].startswith("Rank 1 died")
    notebook.wait(cell)
    assert cell.ename == "RankDied"
    title = "Rank 1 died: killed by SIGKILL."
    done = page.until(lambda s: s["report"] and s["report"]["title"] == title, "its end")
    assert "New processes after" in "\n".join(done["report"]["lines"])
    page.until(lambda state: statuses(state) == ["idle", "idle"], "all live again")
    assert page.end_of("death")["ranks"][1]["status"] == "dead"
    assert any("dead" in statuses(state) for state in page.heard("state"))
    notebook.ok(SETUP)


def test_the_kernel_is_silent_while_nothing_happens(notebook: Notebook, page: Page) -> None:
    notebook.until(lambda: page.state["progress"] == "", "nothing goes on")

    def hears_nothing() -> bool:
        number, end = len(notebook.comm_messages), time.monotonic() + 2.5
        notebook.until(lambda: time.monotonic() > end, "some time has passed")
        return len(notebook.comm_messages) == number

    notebook.until(hears_nothing, "it is silent")


def test_a_page_that_closes_its_comms_takes_nothing_from_others(
    notebook: Notebook, page: Page
) -> None:
    other = Page(notebook)
    other.hello()
    for comm_id in (other.comm_id, EVENTS_ID):
        notebook.send("comm_close", {"comm_id": comm_id, "data": {}})
    assert page.hello()["state"]["current"] == "panel"
    # The kernel never speaks on a page's own comm.
    assert {message.comm_id for message in notebook.comm_messages} == {EVENTS_ID}


def test_another_notebook_sees_attaches_and_stops_it(open_notebook: Open) -> None:
    first, second = open_notebook(), open_notebook()
    guest = Page(second)
    guest.hello()
    first.ok("%jaxcluster start -n 2 --name theirs")
    row = second.until(lambda: guest.row("theirs"), "the cluster is listed")
    assert not row["orphaned"]
    told = "Cells of this notebook now run on 'theirs'."
    assert guest.call("attach", name="theirs") == told
    guest.until(lambda state: state["current"] == "theirs", "it is connected")
    cell = first.begin("%%spmd\nwhile True: pass")
    guest.until(lambda state: statuses(state) == ["running", "running"], "it sees the cell")
    assert guest.call("interrupt") == [0, 1]
    first.wait(cell)
    assert guest.call("stop", name="theirs").startswith("Stopped ranks 0, 1 of")
    guest.until(lambda state: not guest.row("theirs"), "it is gone")


@pytest.mark.one_machine("it kills ranks by their pids here")
def test_an_orphaned_cluster_is_told_and_stopped(open_notebook: Open) -> None:
    first = open_notebook()
    first.ok("%jaxcluster start -n 2 --name orphan --detach")
    second = open_notebook()
    page = Page(second)
    page.hello()
    assert second.until(lambda: page.row("orphan"), "it is listed")["orphaned"] is False
    first.kill()
    second.until(lambda: page.row("orphan")["orphaned"], "nobody holds it")
    assert page.call("stop", name="orphan").startswith("Stopped ranks 0, 1 of")
    second.until(lambda: not page.row("orphan"), "it is gone")


@pytest.mark.skipif(
    not (SIDEBAR / "widget.js").exists(),
    reason="the Lab extension is not built",
)
def test_a_saved_notebook_has_the_sidebar_of_a_cell(tmp_path: Path) -> None:
    """Its state for pages with widgets, a table for those without."""
    sources = ["%load_ext jaxcluster", "%jaxcluster start -n 2", "%jaxcluster panel"]
    from nbclient import NotebookClient

    notebook = document_of(*sources)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[0].outputs == []
    data = notebook.cells[2].outputs[0]["data"]
    assert data["text/html"].count("<tr") == 3
    id = data["application/vnd.jupyter.widget-view+json"]["model_id"]
    widgets = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    saved = widgets[id]["state"]
    assert [rank["status"] for rank in saved["state"]["ranks"]] == ["idle", "idle"]
    assert saved["_esm"].count("jxl-alone") and saved["_css"].count("jxl-alone")


def test_without_a_page_it_pushes_little_and_unloaded_it_leaves_nothing(
    open_notebook: Open,
) -> None:
    """As on ipykernel 6, where a page can't say hello before the cells that wait are done."""
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2")
    began = time.time()
    for number in range(10):
        notebook.ok(f"%%spmd\n{number}", cell_id=f"c{number}")
    page = Page(notebook, subshell=False)
    page._from = 0
    page.end_of("c9")
    pushes = [m for m in notebook.comm_messages if m.at > began and m.data["type"] == "state"]
    assert len(pushes) <= 2 * (time.time() - began) + 2
    assert page.hello()["cells"][-1]["cell_id"] == "c9"
    notebook.ok("%unload_ext jaxcluster")
    assert not notebook.comms("jaxcluster.events")
    notebook.ok(
        "import threading\n"
        "assert not [t for t in threading.enumerate() if t.name == 'jaxcluster-panel']"
    )
    assert "%load_ext jaxcluster loads it" in page.refused("stacks")
    notebook.ok("%load_ext jaxcluster")
    assert "No cluster is connected" in page.refused("stacks")  # the page need not be reloaded
    assert Page(notebook).hello()["state"]["current"] is None
