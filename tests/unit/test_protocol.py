"""The messages of the panel are those of ``tests/golden/panel.json``, which TypeScript reads too.

Write it again with ``GOLDEN=write pytest tests/unit/test_protocol.py`` and look at the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import typescript

from jaxcluster.panel import protocol
from jaxcluster.panel.operations import OPERATIONS
from jaxcluster.panel.protocol import (
    Cell,
    CellRank,
    Cluster,
    Rank,
    Shown,
    Start,
    State,
    Use,
    plain,
)
from jaxcluster.views.report import Report
from jaxcluster.wire import VariableInfo

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "panel.json"

NOW = 1_750_000_000_000
DEVICES = [["cpu:0", "cpu:1"], ["cpu:2", "cpu:3"], ["cpu:4", "cpu:5"], ["cpu:6", "cpu:7"]]

REPORT = Report(
    kind="diverged",
    cluster="main",
    cell_id="8a1f2c9e",
    cell=7,
    at=NOW - 300,
    title="Divergence in cell [7]: rank 1 ended the cell without the launch that ranks 0, 2 "
    "wait for.",
    lines=[
        "  ranks 0, 2   line 3   total = jnp.sum(x)   jit(sum) float32[8]",
        "  rank 1       ended    line 2 is `if rank != 1:`",
        "Nothing was launched. Fix the cell and run it again.",
    ],
    culprits=[1],
    source="total = 0\nif rank != 1:\n    total = jnp.sum(x)",
    marked=[3],
    launches="program  at               ago      last rank\njit(f)   cell [6] line 2  2.250 s  1",
)
USE = Use(104, 496 << 20, 85, 2 << 30, 80 << 30)
WAITS = "waits for rank 2 (line 3, jit(sum))"

STATE = State(
    now=NOW,
    spmd=True,
    clusters=[
        Cluster("main", "local", 4, "cpu", NOW - 60_000, "nb/a.ipynb", False),
        Cluster("exp1", "local", 2, "cuda", NOW - 3_600_000, "", True),
    ],
    current="main",
    progress="",
    ranks=[
        Rank(
            0, "waiting", "host-a", 4100, DEVICES[0], 7, 3, NOW - 1_500, WAITS, Use(12, 512 << 20)
        ),
        Rank(1, "idle", "host-a", 4101, DEVICES[1], None, None, None, "", USE),
        Rank(2, "running", "host-a", 4102, DEVICES[2], 7, 2, NOW - 1_500, "", Use(99, 512 << 20)),
        Rank(3, "dead", "host-a", 4103, DEVICES[3], None, None, None, "killed by SIGKILL"),
    ],
    report=REPORT,
)

CELL = Cell(
    cell_id="8a1f2c9e",
    seq=12,
    number=7,
    started=NOW - 1_500,
    ended=None,
    ranks=[
        CellRank(0, "waiting"),
        CellRank(1, "done", 0.25),
        CellRank(2, "running"),
        CellRank(3, "dead"),
    ],
    now=NOW,
)

REQUESTS: dict[str, dict[str, Any]] = {
    "hello": {"client": "3f2a"},
    "auto": {"on": True},
    "start": {"line": "-n 4 --devices-per-process 2"},
    "cancel": {},
    "attach": {"name": "exp1"},
    "stop": {"name": "main"},
    "restart": {"clean": False},
    "interrupt": {},
    "logs": {"rank": 2, "lines": 200},
    "stacks": {},
    "outputs": {"cell_id": "8a1f2c9e", "rank": 1},
    "shown": {"cell_id": "8a1f2c9e", "mark": ""},
    "variables": {},
    "look": {"name": "params['w']"},
    "ask": {"name": "x", "question": {"op": "stats", "rank": 1, "device": 2}},
    "mesh": {},
    "memory": {},
}

RESULTS: dict[str, Any] = {
    "hello": protocol.Hello(STATE, [CELL]),
    "auto": None,
    "start": "Cluster 'main': ranks 0-3, 2 cpu devices per rank (8 in all, cpu), ready in 2.1 s.",
    "cancel": None,
    "attach": "Cells of this notebook now run on 'exp1'.",
    "stop": "Stopped ranks 0-3 of 'main' in 0.2 s.",
    "restart": "New processes after 2.0 s: 3 variables kept.",
    "interrupt": [0, 2],
    "logs": "INFO: loading\nWARNING: slow",
    "stacks": "── ranks 0, 2 ──\n  cell [7] line 3, in <module>\n    total = jnp.sum(x)",
    "outputs": [
        {"output_type": "stream", "name": "stdout", "text": "hello from 1\n"},
        {
            "output_type": "display_data",
            "data": {"text/plain": "<Figure>", "image/png": "iVBORw0KGgo="},
            "metadata": {},
        },
        {
            "output_type": "execute_result",
            "data": {"text/plain": "3"},
            "metadata": {},
            "execution_count": 7,
        },
        {
            "output_type": "error",
            "ename": "ZeroDivisionError",
            "evalue": "division by zero",
            "traceback": ["\x1b[0;31mZeroDivisionError\x1b[0m: division by zero"],
        },
    ],
    "shown": Shown(
        7, False, "3f2a", [{"output_type": "stream", "name": "stdout", "text": "step 1\n"}]
    ),
    "variables": [
        VariableInfo("x", "array", [8, 1024], "float32", "P('i', None)", 32768, 4096),
        VariableInfo("params", "dict of 12 arrays", None, "float32", "P(None)", 96, 96),
    ],
    "look": {"v": 1, "kind": "array", "name": "params['w']"},
    "ask": {"leaf": [], "device": 2, "index": [[0, 2]], "minimum": 0.0, "maximum": 1.5},
    "mesh": {"v": 1, "kind": "mesh", "meshes": [], "devices": [], "notes": []},
    "memory": {"v": 1, "kind": "memory", "bars": [], "names": [], "hosts": []},
}

EXAMPLES = {
    "state": plain(STATE),
    "state_without_cluster": plain(State(NOW)),
    "starting": plain(
        State(
            NOW,
            progress="engines 3/4",
            start=Start("main", NOW - 2_000, ["up", "up", "", "up"]),
        )
    ),
    "failed": plain(
        State(
            NOW,
            start=Start(
                "main",
                NOW - 2_000,
                ["", ""],
                "2 processes on 1 host asked for GPUs, but no GPU is visible there.\n"
                "Try: %jaxcluster start -n 2 --platform cpu",
            ),
        )
    ),
    "cell": plain(CELL),
    "requests": [
        {"id": f"3f2a:{number}", "op": op, "args": args}
        for number, (op, args) in enumerate(REQUESTS.items(), 1)
    ],
    "answers": [
        {
            "type": "answer",
            "id": f"3f2a:{number}",
            "result": plain(RESULTS[op]),
        }
        for number, op in enumerate(REQUESTS, 1)
    ],
    "error": {
        "type": "answer",
        "id": "3f2a:99",
        "error": "No cluster is connected to this notebook.\nStart one: %jaxcluster start -n 4",
    },
}


def test_the_messages_are_as_they_were() -> None:
    found = json.dumps(EXAMPLES, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_there_is_an_example_of_every_operation() -> None:
    names = (*protocol.names_of(protocol.Greetings), *OPERATIONS)
    assert tuple(REQUESTS) == tuple(RESULTS) == names


def test_the_pages_types_are_those_of_python() -> None:
    is_same = typescript.TARGET.read_text() == typescript.rendered()  # the texts are long
    assert is_same, "The page's types have changed. Write them: python tests/typescript.py"


def test_no_message_has_a_state_of_its_own_that_nbclient_would_take_for_a_widgets() -> None:
    """nbclient keeps ``data["state"]`` of any comm message as a widget's."""
    messages = [EXAMPLES["state"], EXAMPLES["cell"], *EXAMPLES["answers"]]
    assert not any("state" in message for message in messages)
