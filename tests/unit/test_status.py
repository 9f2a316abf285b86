"""What every rank does and uses, as text and as HTML that lasts."""

from __future__ import annotations

import re
import types
from dataclasses import replace
from typing import Any

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.cluster.resources import Sample
from jaxcluster.views import blocks, status
from jaxcluster.views.displays import Display, StatusLine
from jaxcluster.views.live import StartDisplay

GIB = 1 << 30
STATES = [
    wire.RankState(0, 100, "host-a", "running", ["cpu:0"], 5, 7, 3, seconds=2.25),
    wire.RankState(1, 101, "host-a", "dead", ["cpu:1"]),
]
DEAD = {1: wire.Death("killed by SIGKILL <9>")}


def used(cpu: float | None = None, gpu: float | None = None, total: int = 0) -> dict[int, Sample]:
    return {0: Sample(cpu, 2 * GIB, gpu, total // 4, total)}


def rows(*states: wire.RankState, **more: Any) -> list[dict[str, str]]:
    """The table's rows, by its head."""
    shown = blocks.text([status.table(states, DEAD, **more)])
    head, *lines = (re.split(r"\s{2,}", line) for line in shown.splitlines())
    return [dict(zip(head, line, strict=False)) for line in lines]


def test_the_table_says_where_a_rank_is_and_what_it_does_and_uses() -> None:
    running, dead = rows(*STATES, samples=used(100.0))
    assert running == {
        "rank": "0", "pid": "100", "devices": "cpu:0", "state": "running", "cell": "[7] line 3",
        "for": "2.2 s", "memory": "2.0 GiB", "CPU": "100 %",
    }  # fmt: skip
    assert dead["state"] == "dead: killed by SIGKILL <9>"
    assert "CPU" not in rows(*STATES)[0]
    assert rows(*STATES, samples=used(250.0, 40.0, 8 * GIB))[0]["GPU"] == "40 %, 2.0 GiB of 8.0 GiB"
    assert rows(*STATES, samples=used(250.0))[0]["CPU"] == "2.5 CPUs"
    waits = replace(STATES[0], queued=2)
    assert rows(waits)[0]["state"] == "running, 2 waiting"
    hosts = rows(STATES[0], replace(STATES[1], hostname="other"))
    assert [row["host"] for row in hosts] == ["host-a", "other"]


def test_a_live_display_is_no_use_of_the_kernel() -> None:
    sent: list[tuple[str, str, Any]] = []

    class Kernel:
        """Stands for ipykernel's kernel and its session."""

        ident, iopub_socket = "k", None

        def msg_header(self, type: str) -> dict[str, str]:
            return {"msg_type": type}

        def send(self, socket: Any, type: str, content: Any, parent: Any, ident: bytes) -> None:
            sent.append((type, parent["header"]["msg_type"], content))

    class Publisher:
        def publish(self, data: Any, metadata: Any, transient: Any, update: bool) -> None:
            sent.append(("display_data", "execute_request", {"transient": transient}))

    kernel = Kernel()
    kernel.session = kernel  # type: ignore[attr-defined]
    show = Display(types.SimpleNamespace(kernel=kernel, display_pub=Publisher())).refresh
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
    meter = types.SimpleNamespace(latest={}, keep_up=lambda timeout_s: None)
    cluster: Any = types.SimpleNamespace(
        status=lambda: STATES,
        dead=DEAD,
        meter=meter,
        look=lambda launches: None,
        cells=[],
        world=types.SimpleNamespace(hosts={}),
    )
    done = status.live(cluster, shown.append)
    try:
        until(lambda: len(shown) > 2, "some looks")
        meter.latest = used(50.0)  # by somebody else
        until(lambda: "50 %" in shown[-1]["text/plain"], "the samples of another")
    finally:
        done.set()
    # A saved notebook has all of it without scripts or styles.
    html = shown[-1]["text/html"]
    assert "dead: killed by SIGKILL &lt;9&gt;" in html
    assert not re.search(r"<script|style=|<9>", html)
    assert re.search(r"as of \d\d:\d\d:\d\d", html) and "as of" in shown[-1]["text/plain"]
    assert len(html) < 2000  # 64 ranks are sent every 2 s


# --------------------------------------------------------------------------- lines


class Shell:
    """Stands for a notebook's: keeps what is displayed, and whether in place of something."""

    def __init__(self) -> None:
        self.displays: list[tuple[str, bool]] = []
        self.display_pub = self

    def publish(self, data: Any, metadata: Any, transient: Any, update: bool) -> None:
        self.displays.append((data["text/plain"], update))


def test_in_a_page_the_line_does_not_cut_a_progress_bar_in_two() -> None:
    """A display between two parts of a bar would leave the first one as it was then."""
    shell = Shell()
    line = StatusLine(shell)
    line.writes("a line\r\n")
    assert shell.displays == []
    line.writes("\r 10%")
    line.writes("\r 20%")
    line.show("Rank 1 waits for rank 0.")
    line.writes("\r100%\n")
    line.show("")
    assert shell.displays == [("", False), ("Rank 1 waits for rank 0.", True), ("", True)]


def test_a_terminal_writes_over_how_far_a_start_has_come_and_a_log_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal, term in ((True, "xterm"), (True, "dumb"), (False, "xterm")):
        monkeypatch.setattr("sys.stderr.isatty", lambda found=is_terminal: found)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLUMNS", "12")
        with StartDisplay(rich=False) as display:
            display.progress("engines 3 of 4")
            display.done("Cluster 'main'")
        with pytest.raises(KeyboardInterrupt), StartDisplay(rich=False) as display:
            display.progress("engines")
            raise KeyboardInterrupt
        found = capsys.readouterr()
        assert found.out == "Cluster 'main'\n"
        written = ["engines 3 o", "", "engines", ""] if is_terminal and term == "xterm" else []
        assert found.err == "".join(f"\r\x1b[K{line}\r" for line in written)
