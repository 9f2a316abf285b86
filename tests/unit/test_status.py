"""What every rank does and uses, as text and as HTML that lasts."""

from __future__ import annotations

import re
import types
from typing import Any, ClassVar

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.cluster.resources import Sample
from jaxcluster.views import status, text
from jaxcluster.views.blocks import text as as_text

GIB = 1 << 30
STATES = [
    wire.RankState(0, 100, "host-a", "running", ["cpu:0"], 5, 7, 3, seconds=2.25),
    wire.RankState(1, 101, "host-a", "dead", ["cpu:1"]),
]
DEAD = {1: wire.Death("killed by SIGKILL <9>")}


def used(cpu: float | None = None, gpu: float | None = None, total: int = 0) -> dict[int, Sample]:
    return {0: Sample(cpu, 2 * GIB, gpu, total // 4, total)}


def test_the_table_says_what_a_rank_does_and_uses() -> None:
    told = as_text([text.status_table(STATES, DEAD, used(100.0))])
    head, first, second = told.splitlines()[0], told.splitlines()[-2], told.splitlines()[-1]
    assert head.split() == [
        "rank",
        "pid",
        "devices",
        "state",
        "cell",
        "for",
        "memory",
        "CPU",
    ]
    assert re.split(r"\s{2,}", first.strip()) == [
        "0", "100", "cpu:0", "running", "[7] line 3", "2.2 s", "2.0 GiB", "100 %",
    ]  # fmt: skip
    assert "dead: killed by SIGKILL <9>" in second
    assert "CPU" not in text.status(STATES, DEAD)


def test_a_saved_notebook_has_all_of_it_without_scripts_or_styles() -> None:
    shown = status.bundle([text.status_table(STATES, DEAD, used(10.0))])
    assert sorted(shown) == ["text/html", "text/plain"]
    html = shown["text/html"]
    assert "dead: killed by SIGKILL &lt;9&gt;" in html
    assert not re.search(r"<script|style=|<9>", html)
    assert re.search(r"as of \d\d:\d\d:\d\d", html) and "as of" in shown["text/plain"]
    assert "10 %" in html and "2.0 GiB" in html
    assert len(html) < 2000  # 64 ranks are sent every 2 s


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
    show = status.shown_by(types.SimpleNamespace(kernel=kernel, display_pub=Publisher()))
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
    shown: list[str] = []

    class Meter:
        """Stands for one that somebody else keeps up."""

        latest: ClassVar[dict[int, Sample]] = {}

        def keep_up(self, timeout_s: float) -> None:
            pass

    idle = [wire.RankState(0, 100, "host-a", "idle")]
    cluster: Any = types.SimpleNamespace(
        status=lambda: idle, dead={}, meter=Meter(), late=lambda: None
    )
    done = status.live(cluster, lambda data: shown.append(data["text/plain"]))
    try:
        until(lambda: len(shown) > 2, "some looks")
        assert "50 %" not in shown[-1]
        Meter.latest = used(50.0)
        until(lambda: "50 %" in shown[-1], "the samples of another")
    finally:
        done.set()
