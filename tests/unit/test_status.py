"""What ranks and clusters do and use, as text and as HTML that lasts."""

from __future__ import annotations

import re
import types
from dataclasses import replace
from typing import Any

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.views import blocks, status
from jaxcluster.views.displays import Display
from jaxcluster.views.live import StartDisplay

GIB = 1 << 30
STATES = [
    wire.RankState(0, "running", 5, 7, 3, seconds=2.25),
    wire.RankState(1, "dead"),
]
DEAD = {1: wire.Death("killed by SIGKILL <9>")}


def used(cpu: float, gpu: float | None = None, total: int = 0) -> dict[int, wire.RankResources]:
    return {0: wire.RankResources(cpu, 2 * GIB, gpu, total // 4, total)}


def read(table: str) -> list[dict[str, str]]:
    """A table's rows, by its head."""
    head, *lines = (re.split(r"\s{2,}", line) for line in table.splitlines())
    return [dict(zip(head, line, strict=False)) for line in lines]


def rows(*states: wire.RankState, host: str = "host-a", **more: Any) -> list[dict[str, str]]:
    """The table of ranks of which the last is on this host."""
    return read(blocks.text([status.table(ranks_of(host), states, DEAD, more.get("used", {}))]))


def ranks_of(host: str = "host-a") -> Any:
    facts = [wire.EngineFacts(n, 0, name, name, "") for n, name in enumerate(["host-a", host])]
    devices = [wire.InitializeReply([wire.DeviceInfo(n, "", "cpu", n)]) for n in range(2)]
    return types.SimpleNamespace(pids=[100, 101], facts=facts, devices=devices)


def test_the_table_says_where_a_rank_is_and_what_it_does_and_uses() -> None:
    running, dead = rows(*STATES, used=used(100.0))
    assert running == {
        "rank": "0", "pid": "100", "devices": "cpu:0", "state": "running", "cell": "[7] line 3",
        "for": "2.2 s", "memory": "2.0 GiB", "CPU": "100 %",
    }  # fmt: skip
    assert dead["state"] == "dead: killed by SIGKILL <9>"
    assert "CPU" not in rows(*STATES)[0]
    assert rows(*STATES, used=used(250.0, 40.0, 8 * GIB))[0]["GPU"] == "40 %, 2.0 GiB of 8.0 GiB"
    assert rows(*STATES, used=used(250.0))[0]["CPU"] == "2.5 CPUs"
    assert rows(replace(STATES[0], queued=2))[0]["state"] == "running, 2 waiting"
    assert [row["host"] for row in rows(*STATES, host="other")] == ["host-a", "other"]


def test_a_live_display_is_no_use_of_the_kernel() -> None:
    sent: list[tuple[str, str, Any]] = []

    class Kernel:
        """Stands for ipykernel's kernel, its session, and what publishes displays."""

        ident, iopub_socket = "k", None

        def msg_header(self, type: str) -> dict[str, str]:
            return {"msg_type": type}

        def send(self, socket: Any, type: str, content: Any, parent: Any, ident: bytes) -> None:
            sent.append((type, parent["header"]["msg_type"], content))

        def publish(self, data: Any, metadata: Any, transient: Any, update: bool) -> None:
            sent.append(("display_data", "execute_request", {"transient": transient}))

    kernel = Kernel()
    kernel.session = kernel  # type: ignore[attr-defined]
    show = Display(types.SimpleNamespace(kernel=kernel, display_pub=kernel)).refresh
    for told in ("first", "later"):
        show({"text/plain": told})
    kinds = [(type, parent) for type, parent, _ in sent]
    assert kinds[0] == ("display_data", "execute_request")
    assert kinds[1:] == [("update_display_data", "kernel_info_request")]
    assert len({content["transient"]["display_id"] for *_, content in sent}) == 1
    services = pytest.importorskip("jupyter_server.services.kernels.kernelmanager")
    untracked = services.MappingKernelManager.class_traits()["untracked_message_types"].default()
    assert set(kinds[1]) <= set(untracked)


def test_it_is_shown_again_after_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "IDLE_S", 0.01)
    shown: list[Any] = []
    answers: dict[int, Any] = {}
    link = types.SimpleNamespace(ranks=[0, 1], gather=lambda *asked, timeout_s: answers)
    cluster: Any = types.SimpleNamespace(
        status=lambda: STATES,
        record=ranks_of(),
        dead=DEAD,
        look=lambda launches: None,
        cells=[],
        world=types.SimpleNamespace(hosts={}, link=link),
    )
    done = status.live(cluster, shown.append)
    try:
        until(lambda: len(shown) > 2, "some looks")
        answers[0] = types.SimpleNamespace(op="reply", body=used(50.0)[0])
        until(lambda: "50 %" in shown[-1]["text/plain"], "what a rank uses")
    finally:
        done.set()
    # A saved notebook has all of it without scripts or styles.
    html = shown[-1]["text/html"]
    assert "dead: killed by SIGKILL &lt;9&gt;" in html
    assert not re.search(r"<script|style=|<9>", html)
    assert re.search(r"as of \d\d:\d\d:\d\d", html) and "as of" in shown[-1]["text/plain"]
    assert len(html) < 2000  # 64 ranks are sent every 2 s


# --------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("is_terminal", "term"), [(True, "xterm"), (True, "dumb"), (False, "xterm")]
)
def test_a_terminal_writes_over_how_far_a_start_has_come_and_a_log_does_not(
    is_terminal: bool, term: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "12")
    with StartDisplay() as display:
        display.progress("engines 3 of 4")
        display.done("Cluster 'main'")
    with pytest.raises(KeyboardInterrupt), StartDisplay() as display:
        display.progress("engines")
        raise KeyboardInterrupt
    found = capsys.readouterr()
    assert found.out == "Cluster 'main'\n"
    written = ["engines 3 o", "", "engines", ""] if is_terminal and term == "xterm" else []
    assert found.err == "".join(f"\r\x1b[K{line}\r" for line in written)


# --------------------------------------------------------------------------- clusters

NOW_NS = int(1e18)


def record(name: str, owner: str = "12:34", seconds_ago: float = 5) -> ClusterRecord:
    created_ns = int(NOW_NS - seconds_ago * 1e9)
    spec = wire.ClusterSpec(name, 4)
    return ClusterRecord(name, spec, owner, created_ns, "box", notebook="a.ipynb")


def test_clusters_are_listed_with_their_owners_and_ages() -> None:
    first, second = read(status.clusters([record("a"), record("b", "", 600)], [], NOW_NS))
    assert " ".join(first).strip() == "name ranks platform launcher host age owner notebook"
    assert " ".join(first.values()).strip() == "a 4 cpu local box 5 s pid 12 a.ipynb"
    assert (second["age"], second["owner"]) == ("10 min", "detached")
    assert status.clusters([], [], 0).endswith("Start one: %jaxcluster start -n 4")


def test_of_several_clusters_the_one_in_use_is_marked() -> None:
    shown = status.clusters([record("a"), record("b"), record("c")], ["b", "a"], NOW_NS)
    marked = [line.split()[:2] for line in shown.splitlines()[1:4]]
    assert marked == [["*", "a"], ["+", "b"], ["c", "4"]]
    assert shown.endswith(
        "* cells of this notebook run on it; + connected: %jaxcluster attach NAME"
    )


def test_hosts_that_can_not_be_reached_and_other_machines_are_named() -> None:
    facts = [wire.EngineFacts(rank, 1, f"h{rank // 2}", "", "") for rank in range(4)]
    spec = wire.ClusterSpec("a", 4, launcher="ssh")
    shown = status.clusters([replace(record("a"), spec=spec, facts=facts)], [], NOW_NS)
    assert "ssh       h0, h1  5 s" in shown
    records = [record("a"), record("b", "", 600)]
    gone = {"a": ["h1", "h2"], "b": []}
    first, second = status.clusters(records, [], NOW_NS, gone, "laptop").splitlines()[1:]
    assert "  box (h1, h2 unreachable)  " in first and "  pid 12 on box  " in first
    assert "  box  " in second and "  detached from box  " in second


# --------------------------------------------------------------------------- stacks


def frame(file: str, function: str, cell: int | None = None, folded: bool = False) -> list[object]:
    return [file, 3, function, f"{function}()", cell, folded]


def test_stacks_are_shown_from_the_cell_inwards_and_equal_ones_once() -> None:
    stack = [
        frame("kernel.py", "run"),
        frame("cell", "<module>", 7),
        frame("train.py", "step"),
        frame("pjit.py", "call", folded=True),
        frame("pxla.py", "execute", folded=True),
    ]
    reports = {rank: wire.RankReport("running", stack) for rank in (0, 2)}
    reports[1] = wire.RankReport("idle", [frame("kernel.py", "run")])
    reports[3] = wire.RankReport("idle", [], {"saver": [frame("orbax.py", "save")]})
    assert status.stacks(reports) == (
        "── ranks 0, 2 ──\n"
        "  cell [7] line 3, in <module>\n    <module>()\n"
        "  train.py:3, in step\n    step()\n"
        "  [... 2 frames of JAX, the innermost in execute]\n"
        "── rank 1 ──\nidle, in no cell\n"
        "── rank 3 ──\nidle, in no cell\n"
        "thread 'saver':\n  orbax.py:3, in save\n    save()"
    )
