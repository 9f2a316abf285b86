"""JupyterLab's debugger on the ranks, by the messages that JupyterLab sends."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Home, Notebook

pytestmark = pytest.mark.any_jax

INITIALIZE = {
    "clientID": "jupyterlab",
    "adapterID": "python3",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
}


class Debugged(Notebook):
    """A notebook, and what a frontend's debugger asks and hears."""

    def __init__(self, *arguments: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.seq = 0
        super().__init__(*arguments)

    def _take(self, message: dict[str, Any]) -> None:
        if message["msg_type"] == "debug_event":
            self.events.append(message["content"])
        super()._take(message)

    def debug(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The response to a request, whether or not it says yes."""
        self.seq += 1
        request = {"type": "request", "seq": self.seq, "command": command}
        id = self.send("debug_request", {**request, "arguments": arguments}, channel="control")
        found: list[dict[str, Any]] = []

        def answer() -> list[dict[str, Any]]:
            try:
                reply = self.client.get_control_msg(timeout=0)
            except queue.Empty:
                return found
            if reply["parent_header"].get("msg_id") == id:
                found.append(reply["content"])
            return found

        return self.until(answer, f"the response to {command}")[0]

    def body(self, command: str, **arguments: Any) -> Any:
        reply = self.debug(command, **arguments)
        assert reply["success"], f"{reply}"
        return reply.get("body")

    # What a person does.

    def switch_on(self) -> None:
        self.body("initialize", **INITIALIZE)
        self.body("attach")

    def switch_off(self) -> None:
        self.body("disconnect", restart=False, terminateDebuggee=False)

    def break_at(self, code: str, *lines: int) -> list[int]:
        """Set a cell's breakpoints; returns where they are then."""
        path = self.body("dumpCell", code=code)["sourcePath"]
        return self.break_in(path, *lines)

    def break_in(self, path: str, *lines: int) -> list[int]:
        breakpoints = [{"line": line} for line in lines]
        found = self.body(
            "setBreakpoints", source={"path": path}, breakpoints=breakpoints, sourceModified=False
        )
        return [one["line"] for one in found["breakpoints"]]

    def until_stopped(self, count: int) -> list[int]:
        """The stopped threads, when there are so many: a notebook hears of them a bit later."""

        def stopped() -> list[int]:
            threads = self.body("debugInfo")["stoppedThreads"]
            return threads if len(threads) == count else []

        if count:
            return self.until(stopped, f"{count} stopped threads")
        self.until(lambda: not self.body("debugInfo")["stoppedThreads"], "all to go on")
        return []

    def calls(self) -> list[dict[str, Any]]:
        thread = next(iter(self.body("debugInfo")["stoppedThreads"]), 1)
        return self.body("stackTrace", threadId=thread)["stackFrames"]

    def places(self) -> list[str]:
        """As in ``rank 0: f:3``, in the order of the list of calls."""
        return [f"{call['name']}:{call['line']}" for call in self.calls()]

    def variables(self, call: dict[str, Any]) -> dict[str, str]:
        """Looks at a call, as a click on it does: the local variables."""
        scopes = self.body("scopes", frameId=call["id"])["scopes"]
        found = self.body("variables", variablesReference=scopes[0]["variablesReference"])
        return {one["name"]: one["value"] for one in found["variables"]}

    def until_at(self, *places: str) -> None:
        self.until(lambda: sorted(self.places()) == sorted(places), f"{places}")

    def move(self, command: str) -> None:
        """As a button does it; the notebook's own threads are known to be stopped a bit later."""
        threads = self.until(lambda: self.body("debugInfo")["stoppedThreads"], "stopped threads")
        self.body(command, threadId=threads[0])


@pytest.fixture(scope="module")
def notebook(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debugged]:
    folder = tmp_path_factory.mktemp("debugged")
    (folder / "users_module.py").write_text("def double(n):\n    m = n * 2\n    return m\n")
    notebook = Debugged(folder)
    notebook.ok("%load_ext jaxcluster\n%jaxcluster start -n 2")
    notebook.ok(
        "%%spmd\nimport jax, jax.numpy as jnp, numpy as np, os, time\nrank = jax.process_index()"
    )
    yield notebook
    notebook.close()


@pytest.fixture
def debugged(notebook: Debugged) -> Iterator[Debugged]:
    notebook.switch_on()
    yield notebook
    notebook.switch_off()
    assert notebook.ok("%%spmd\nprint(rank)").text.strip() == "0"


def test_a_breakpoint_in_a_cell_stops_each_rank_that_reaches_it(debugged: Debugged) -> None:
    code = "%%spmd\nz = rank + 10\n# a comment\nw = z * 2\nprint(w)"
    assert debugged.break_at(code, 3) == [2]
    assert debugged.break_at(code, 4) == [4]
    cell = debugged.begin(code)
    debugged.until_stopped(2)
    calls = debugged.calls()
    assert debugged.places() == ["rank 0: <module>:4", "rank 1: <module>:4"]
    path = debugged.body("dumpCell", code=code)["sourcePath"]
    assert {call["source"]["path"] for call in calls} == {path}
    assert [debugged.variables(call)["z"] for call in calls] == ["10", "11"]
    debugged.move("continue")
    assert debugged.wait(cell).text == "20\n"
    debugged.until_stopped(0)


def test_calls_variables_and_console_follow_the_chosen_rank(debugged: Debugged) -> None:
    code = "%%spmd\ndef f(n):\n    m = n + rank\n    return m\nf(100)"
    debugged.break_at(code, 4)
    cell = debugged.begin(code)
    debugged.until_stopped(2)
    assert debugged.places() == ["rank 0: f:4", "rank 0: <module>:5", "rank 1: f:4"]
    other = debugged.calls()[2]
    debugged.events.clear()
    assert debugged.variables(other) == {"m": "101", "n": "100"}
    debugged.until(lambda: [e for e in debugged.events if e["event"] == "stopped"], "an event")
    assert debugged.places() == ["rank 1: f:4", "rank 1: <module>:5", "rank 0: f:4"]
    assert debugged.calls()[0]["id"] == other["id"]  # it stays the one that is looked at
    asked = {"context": "repl", "frameId": other["id"]}
    assert debugged.body("evaluate", expression="m * 10", **asked)["result"] == "1010"
    rich = debugged.body("richInspectVariables", variableName="m", frameId=other["id"])
    assert rich["data"]["text/plain"] == "101"
    debugged.body(
        "copyToGlobals", srcVariableName="m", dstVariableName="kept", srcFrameId=other["id"]
    )
    threads = [t["name"] for t in debugged.body("threads")["threads"] if "rank" in t["name"]]
    assert threads == ["rank 0", "rank 1"]
    debugged.break_at(code)
    debugged.move("continue")
    debugged.wait(cell)
    assert debugged.ok("%%spmd --all\nprint(globals().get('kept'))").text.count("101") == 1


def test_the_notebooks_own_cells_stay_debuggable(debugged: Debugged) -> None:
    code = "import jaxcluster\na = 1\nb = a + 1\nprint(b)"
    debugged.break_at(code, 3)
    cell = debugged.begin(code)
    debugged.until(lambda: debugged.body("debugInfo")["stoppedThreads"], "a stop")
    calls = debugged.calls()
    assert [f"{call['name']}:{call['line']}" for call in calls] == ["<module>:3"]
    assert debugged.variables(calls[0])["a"] == "1"
    states = debugged.body(
        "evaluate",
        expression="[s.state for s in jaxcluster.current().status()]",
        frameId=calls[0]["id"],
        context="repl",
    )
    assert states["result"] == "['idle', 'idle']"  # what answers for the ranks is not stopped
    debugged.move("next")
    debugged.until(lambda: [c["line"] for c in debugged.calls()] == [4], "the next line")
    debugged.move("continue")
    assert debugged.wait(cell).text == "2\n"


def test_steps_act_on_all_stopped_ranks(debugged: Debugged) -> None:
    code = "%%spmd\ndef g(n):\n    k = n + 1\n    return k\na = 1\nb = g(a)\nc = 2"
    debugged.break_at(code, 5)
    cell = debugged.begin(code)
    debugged.until_stopped(2)
    debugged.move("next")
    debugged.until_at("rank 0: <module>:6", "rank 1: <module>:6")
    debugged.move("stepIn")
    debugged.until_at("rank 0: g:3", "rank 0: <module>:6", "rank 1: g:3")
    debugged.move("stepOut")
    debugged.until_at("rank 0: <module>:6", "rank 1: <module>:6")
    debugged.move("next")
    debugged.until_at("rank 0: <module>:7", "rank 1: <module>:7")
    debugged.move("next")  # beyond the end
    assert not debugged.wait(cell).error
    debugged.ok("%%spmd\n1 + 1")  # the step has ended with its cell


def test_a_breakpoint_in_an_imported_module(debugged: Debugged, tmp_path: Path) -> None:
    debugged.ok("%%spmd\nimport users_module")
    modules = {m["name"]: m["path"] for m in debugged.body("modules")["modules"]}
    assert debugged.break_in(modules["users_module"], 3) == [3]
    cell = debugged.begin("%%spmd\nprint(users_module.double(rank + 4))")
    debugged.until_stopped(2)
    assert debugged.places()[:2] == ["rank 0: double:3", "rank 0: <module>:2"]
    assert [debugged.variables(c)["m"] for c in debugged.calls() if "double" in c["name"]] == [
        "8",
        "10",
    ]
    source = debugged.body("source", source={"path": modules["users_module"]}, sourceReference=0)
    assert source["content"].startswith("def double")
    debugged.break_in(modules["users_module"])
    debugged.move("continue")
    assert debugged.wait(cell).text == "8\n"


def test_a_function_of_an_earlier_cell_can_be_stopped_in(notebook: Debugged) -> None:
    code = "%%spmd\ndef early(n):\n    return n + 1"
    notebook.ok(code)
    notebook.switch_on()
    assert notebook.break_at(code, 3) == [3]
    cell = notebook.begin("%%spmd\nearly(rank)")
    notebook.until_stopped(2)
    assert notebook.places()[0] == "rank 0: early:3"
    notebook.switch_off()  # which lets them go on
    assert not notebook.wait(cell).error


def test_who_waits_for_a_stopped_rank_is_neither_hung_nor_diverged(debugged: Debugged) -> None:
    code = (
        "%%spmd --timeout 4\n"
        "from jax.experimental import multihost_utils\n"
        "if rank == 1:\n"
        "    here = 1\n"
        "total = multihost_utils.process_allgather(np.ones(3) * (rank + 1)).sum()\n"
        "print(total)"
    )
    debugged.break_at(code, 4)
    cell = debugged.begin(code)
    debugged.until_stopped(1)
    assert debugged.places() == ["rank 1: <module>:4"]
    end = time.monotonic() + 6  # longer than --timeout, and than a hang takes to be found
    debugged.until(lambda: time.monotonic() > end, "some time")
    assert not cell.done
    debugged.move("continue")
    debugged.wait(cell)
    assert not cell.error, cell.text
    assert cell.text.endswith("9.0\n")
    assert "diverged" not in cell.text


def test_the_stop_button_frees_stopped_ranks(debugged: Debugged) -> None:
    code = "%%spmd\nfor step in range(3):\n    here = step\n    time.sleep(0.01)"
    debugged.break_at(code, 3)
    cell = debugged.begin(code)
    debugged.until_stopped(2)
    debugged.press_stop()
    debugged.wait(cell)
    assert cell.error
    debugged.until_stopped(0)
    debugged.break_at(code)
    assert debugged.ok(code + "\nprint(step)").text == "2\n"


def test_a_cell_that_runs_can_be_paused_where_it_is(debugged: Debugged, tmp_path: Path) -> None:
    cell = debugged.begin(
        f"%%spmd\ngo_on = True\nopen(f'{tmp_path}/{{rank}}', 'w').close()\n"
        "while go_on:\n    time.sleep(0.01)"
    )
    debugged.until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks in the loop")
    debugged.body("pause", threadId=1)
    debugged.until_stopped(2)
    seen = set()
    for call in [c for c in debugged.calls() if "<module>" in c["name"]]:
        seen.add(call["name"])
        debugged.body("evaluate", expression="go_on = False", frameId=call["id"], context="repl")
    assert seen == {"rank 0: <module>", "rank 1: <module>"}
    debugged.move("continue")
    assert not debugged.wait(cell).error


def test_breakpoint_stops_in_the_debugger_that_is_on(debugged: Debugged) -> None:
    cell = debugged.begin("%%spmd\nq = rank * 5\nbreakpoint()\nprint(q)")
    debugged.until_stopped(2)
    assert [place[:16] for place in debugged.places()] == ["rank 0: <module>", "rank 1: <module>"]
    assert [debugged.variables(call)["q"] for call in debugged.calls()] == ["0", "5"]
    debugged.move("continue")
    assert debugged.wait(cell).text == "0\n"


def test_a_process_that_a_cell_forks_is_not_stopped(debugged: Debugged) -> None:
    code = (
        "%%spmd\ndef child():\n    return 7\n"
        "if (pid := os.fork()) == 0:\n    os._exit(child())\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    debugged.break_at(code, 3)
    assert debugged.ok(code).stdout == "7\n"  # JAX and Python warn of forks


def test_cells_of_auto_mode_and_ranks_that_come_later(notebook: Debugged) -> None:
    notebook.ok("%jaxcluster auto on")
    try:
        notebook.switch_on()  # ipykernel runs a line for it, which is not for the ranks
        code = "v = rank + 1\nu = v * 3\nprint(u)"
        notebook.break_at(code, 2)
        for restart in (False, True):
            if restart:
                notebook.ok("%jaxcluster restart")
            cell = notebook.begin(code)
            notebook.until_stopped(2)
            assert notebook.places() == ["rank 0: <module>:2", "rank 1: <module>:2"]
            notebook.move("continue")
            assert notebook.wait(cell).text == "3\n"
        notebook.switch_off()
        assert notebook.ok(code).text == "3\n"
    finally:
        notebook.ok("%jaxcluster auto off")
    loaded = notebook.ok("%%spmd\nimport sys\nprint(sys.gettrace(), 'pydevd' in sys.modules)")
    assert loaded.text == "None True\n"
