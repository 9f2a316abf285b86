"""Why a process says nothing, from what its kernel says of it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import until

from jaxcluster.cluster import world as worlds
from jaxcluster.cluster.world import tell_silences as tell
from jaxcluster.errors import RecoveryError
from jaxcluster.host.procfs import Silence, explain
from jaxcluster.hosts.processes import Processes
from jaxcluster.supervision.processes import state_of

HUNG = explain(800, "S")


def test_only_a_stopped_process_was_stopped_by_a_signal() -> None:
    found = explain(800, "T")
    stopped = "was stopped by a signal (`kill -CONT 800` lets its process go on)."
    assert tell({1: found}) == [f"Rank 1 {stopped}"]
    assert tell(dict.fromkeys(range(256), found)) == [f"Ranks 0-255 were{stopped[3:]}"]
    many = {r: replace(found, message=f"was stopped (pid {r})") for r in range(256)}
    assert tell(many)[-1] == "Ranks 2-255 do not answer either."
    assert len(tell(many)) == 3
    assert tell({1: HUNG})[0].endswith("; %jaxcluster restart gives new processes.")
    assert not any(explain(800, state).is_held for state in ("S", "R", "D", ""))


def test_the_kernel_tells_a_stopped_process_from_one_that_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: state_of(process.pid) == "T", "it is stopped")
        process.kill()
    assert state_of(process.pid) == ""


def test_ranks_with_equal_pids_on_their_hosts_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in pods, each of which counts its own."""
    found = {0: ("T", b""), 1: ("S", b"")}
    monkeypatch.setattr(Processes, "_ask", lambda *_: found)
    ranks: Any = object.__new__(Processes)
    ranks.fleet = SimpleNamespace(host_of=lambda rank: SimpleNamespace(cut_s=0))
    ranks._pids = [800, 800]
    assert [why.is_held for why in ranks.why_silent([0, 1]).values()] == [True, False]


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_held_process_is_never_ended_unsaved(state: str) -> None:
    """What it has is still there; one that keeps the GIL for good has nothing that can be had."""
    ended: list[int] = []
    whys = {1: explain(800, state), 2: HUNG}
    processes = SimpleNamespace(kill=ended.append, why_silent=lambda ranks: whys)
    world: Any = SimpleNamespace(
        mark_dead=lambda rank, why: None, processes=processes,
        link=SimpleNamespace(gather=lambda *_, **more: {0: None}), num_processes=3, dead={},
    )  # fmt: skip
    with pytest.raises(RecoveryError, match=r"^Rank 1 (was stopped by a signal|is held by)") as e:
        worlds.end_hung(world, lambda: None)
    assert "So the variables of rank 1 can't be saved, and nothing was ended" in str(e.value)
    assert "%jaxcluster restart --clean" in e.value.hint
    assert not ended
    whys[1] = Silence("is not responding: host h2 has not been reached for 3 s")
    worlds.end_hung(world, lambda: None)
    assert ended == [2]
