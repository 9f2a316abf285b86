"""What is started on this machine: nothing secret in it, and no more than there is room for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Home

from jaxcluster import wire
from jaxcluster.allocation import limits
from jaxcluster.allocation.fleet import Host
from jaxcluster.allocation.processes import Processes
from jaxcluster.cluster import make_spec
from jaxcluster.cluster.starting import dry_run
from jaxcluster.errors import LaunchError
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.records import registry

SPEC = wire.ClusterSpec("exp", 3, devices_per_process=2, env={"MINE": "1", "PATH": "/mine"})


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("JPY_PARENT_PID", "12")
    said = {"folder": "/run/.agent-1", "memory": "/shm/1", "address": "10.0.0.2"}
    agents: Any = None
    host = Host(agents, 0, "box", StartedAgent(0, said), is_here=True)
    host.ranks = range(3)
    fleet: Any = SimpleNamespace(hosts=[host], host_of=lambda rank: host, is_here=True)
    return Processes(SPEC, fleet)


def test_a_rank_is_told_who_it_is_by_its_environment(processes: Processes) -> None:
    process = processes._rank(2, processes.hosts[0])
    told: dict[str, Any] = json.loads(process.env["JAXCLUSTER_ENGINE"])
    folder = "/run/.agent-1/ranks"
    assert told == {
        "rank": 2,
        "address": f"ipc://{folder}/2.sock",
        "connection_file": f"{folder}/profile/security/ipcontroller-engine.json",
        "log_path": f"{folder}/rank-2.log",
        "history": "/run/.agent-1/history/rank-2",
        "compiled": "/run/.agent-1/compiled",
        "host": "",
        "host_address": "127.0.0.1",
    }
    assert process.log == f"{folder}/rank-2.log"


def test_the_users_environment_stands_above_the_notebooks(processes: Processes) -> None:
    process = processes._rank(1, processes.hosts[0])
    assert process.env["PATH"] == "/mine"
    assert process.env["MINE"] == "1"
    assert "HOME" not in process.env  # its agent has the rest


# --------------------------------------------------------------------------- files


def test_too_few_files_are_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libzmq ends a process that runs out of them."""

    def allow(soft: int, hard: int) -> None:
        monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (soft, hard))

    allow(1024, 4096)
    limits.check_files(4)
    allow(-1, -1)  # RLIM_INFINITY
    limits.check_files(1000)
    allow(48, 48)
    with pytest.raises(LaunchError, match="This process may open 48 files, and 4 ranks need"):
        limits.check_files(4)
    with pytest.raises(LaunchError, match=r"This process may open 48 files, and 256 hosts"):
        limits.check_files(0, 256)
    allow(1024, 150)
    with pytest.raises(
        LaunchError, match=r"Each process of a cluster may open 150 files"
    ) as caught:
        limits.check_files(4)
    assert "ulimit -n 4096" in caught.value.hint


def test_a_process_allows_itself_the_files_that_hosts_need(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(limits.resource, "setrlimit", lambda which, limits: raised.append(limits))
    limits.check_files(0, 8)
    assert raised == []
    limits.check_files(0, 256)
    ((soft, hard),) = raised
    assert 4 * 256 + 30 < soft < 4096 and hard == 4096
    with pytest.raises(LaunchError, match="may open 4096 files, and 2000 hosts need"):
        limits.check_files(0, 2000)


# --------------------------------------------------------------------------- a dry run


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with Home.make() as home:
        monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", home.variables["JAXCLUSTER_RUNTIME_DIR"])
        yield registry.runtime_root()


def test_a_dry_run_shows_the_ranks_and_where_they_lie(runtime: Path) -> None:
    env = {"MINE": "1", "MY_TOKEN": "secret"}
    text = dry_run(make_spec(num_processes=2, platform="cpu", name="dry", env=env))
    assert text.startswith("2 ranks on this machine, forked from one preloaded process")
    assert f"folders: {runtime}\n" in text
    assert "MINE=1 MY_TOKEN=...\n" in text
    assert "secret" not in text


def test_a_dry_run_shows_where_the_coordinator_will_listen(runtime: Path) -> None:
    text = dry_run(make_spec(num_processes=2, platform="cpu", name="dry"))
    assert "  coordinator_address=unix:<a folder of this machine's agent>/jax.sock\n" in text
