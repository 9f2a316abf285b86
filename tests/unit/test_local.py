"""What the local launcher would start: pure, and nothing secret in it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Home

from jaxcluster import wire
from jaxcluster.allocation import local
from jaxcluster.allocation.controller import CONTROLLER_ARGS
from jaxcluster.allocation.local import ProcessPlan, describe_launch, render
from jaxcluster.allocation.supervisor import import_time_settings
from jaxcluster.cluster import make_spec
from jaxcluster.cluster.starting import dry_run
from jaxcluster.errors import LaunchError
from jaxcluster.records import claims, registry
from jaxcluster.supervision.starting import can_fork
from jaxcluster.wire.forks import Process

SPEC = wire.ClusterSpec("exp", 3, devices_per_process=2, env={"MINE": "1", "PATH": "/mine"})
ENV = {"PATH": "/bin", "HOME": "/home/me", "JPY_PARENT_PID": "12", "IPP_CLUSTER_ID": "theirs"}
FILE = "/run/exp/ipyparallel/security/ipcontroller-engine.json"


@pytest.fixture
def plan() -> ProcessPlan:
    return render(SPEC, Path("/run/exp"), ENV, "/work")


def test_every_rank_has_a_socket_and_a_log_in_the_clusters_folder(plan: ProcessPlan) -> None:
    assert plan.addresses == tuple(f"ipc:///run/exp/rank-{rank}.sock" for rank in range(3))
    assert [proc.log for proc in plan.ranks] == [f"/run/exp/rank-{r}.log" for r in range(3)]
    assert [(proc.role, proc.rank) for proc in plan.ranks] == [("rank", r) for r in range(3)]
    assert plan.controller.role == "controller"


def test_a_rank_is_told_who_it_is_by_its_environment(plan: ProcessPlan) -> None:
    told: dict[str, Any] = json.loads(plan.ranks[2].env["JAXCLUSTER_ENGINE"])
    assert told == {
        "rank": 2,
        "address": "ipc:///run/exp/rank-2.sock",
        "connection_file": FILE,
        "log_path": "/run/exp/rank-2.log",
        "history": "/run/exp/history/rank-2",
        "compiled": "/run/exp/compiled",
    }


def test_the_users_environment_stands_above_the_notebooks(plan: ProcessPlan) -> None:
    for proc in (*plan.ranks, plan.controller):
        assert proc.env["PATH"] == "/mine"
        assert proc.env["MINE"] == "1"
        assert proc.env["HOME"] == "/home/me"
        assert proc.cwd == "/work"


def test_a_rank_does_not_take_itself_for_a_part_of_the_notebooks_kernel(plan: ProcessPlan) -> None:
    for proc in (*plan.ranks, plan.controller):
        assert "JPY_PARENT_PID" not in proc.env
        assert "IPP_CLUSTER_ID" not in proc.env


def test_nothing_of_the_users_is_in_the_command_line(plan: ProcessPlan) -> None:
    """Every user of a machine can read everybody's command lines."""
    assert [proc.argv for proc in plan.ranks] == [()] * 3
    assert plan.controller.argv == ("--profile-dir=/run/exp/ipyparallel", *CONTROLLER_ARGS)


def test_a_dry_run_shows_each_ranks_part_but_not_the_whole_environment(plan: ProcessPlan) -> None:
    shown = describe_launch(plan)
    assert shown.startswith("3 ranks on this machine")
    for rank in range(3):
        assert f"rank {rank}: JAXCLUSTER_ENGINE=" in shown
    assert "every rank: MINE=1 PATH=/mine" in shown
    assert FILE in shown
    assert "HOME=" not in shown


def test_rendering_changes_nothing(tmp_path: Path) -> None:
    env = dict(ENV)
    made = render(SPEC, tmp_path / "exp", env, "/work")
    assert not (tmp_path / "exp").exists()
    assert env == ENV
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.spec = SPEC  # type: ignore[misc]


# --------------------------------------------------------------------------- the fork server


def test_what_is_read_at_import_asks_for_a_fork_server_of_its_own() -> None:
    env = {"XLA_FLAGS": "a", "JAX_ENABLE_X64": "1", "HOME": "h", "PYTHONPATH": "p", "MINE": "1"}
    assert import_time_settings(env) == {
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": "p",
        "XLA_FLAGS": "a",
    }


@pytest.mark.parametrize(
    "name", ["LANGCHAIN_API_KEY", "LANGSMITH_API_KEY", "LANGFUSE_SECRET_KEY", "CUDA_ROOT_TOKEN"]
)
def test_no_secret_is_taken_for_a_language(name: str) -> None:
    """What is read at import is in a Job's pods, in scripts, and in agents' command lines."""
    env = {"LANG": "C.UTF-8", "LANGUAGE": "en", "LC_ALL": "C", name: "secret"}
    assert import_time_settings(env) == {"LANG": "C.UTF-8", "LANGUAGE": "en", "LC_ALL": "C"}


@pytest.mark.parametrize(
    ("platform", "no_fork", "forks"),
    [("linux", "", True), ("linux", "1", False), ("darwin", "", False)],
)
def test_ranks_are_forked_where_that_is_safe(
    monkeypatch: pytest.MonkeyPatch, platform: str, no_fork: str, forks: bool
) -> None:
    monkeypatch.setattr("jaxcluster.supervision.starting.sys.platform", platform)
    assert can_fork({"JAXCLUSTER_NO_FORK": no_fork}) is forks


def test_too_few_files_are_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libzmq ends a process that runs out of them."""

    def allow(soft: int, hard: int) -> None:
        monkeypatch.setattr(local.resource, "getrlimit", lambda which: (soft, hard))

    allow(1024, 4096)
    local.check_files(4)
    allow(-1, -1)  # RLIM_INFINITY
    local.check_files(1000)
    allow(48, 48)
    with pytest.raises(LaunchError, match="This process may open 48 files, and 4 ranks need"):
        local.check_files(4)
    with pytest.raises(LaunchError, match=r"This process may open 48 files, and 256 hosts"):
        local.check_files(0, 256)
    allow(1024, 150)
    with pytest.raises(
        LaunchError, match=r"Each process of a cluster may open 150 files"
    ) as caught:
        local.check_files(4)
    assert "ulimit -n 4096" in caught.value.hint


def test_a_process_allows_itself_the_files_that_hosts_need(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(local.resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(local.resource, "setrlimit", lambda which, limits: raised.append(limits))
    local.check_files(0, 8)
    assert raised == []
    local.check_files(0, 256)
    ((soft, hard),) = raised
    assert 4 * 256 + 30 < soft < 4096 and hard == 4096
    with pytest.raises(LaunchError, match="may open 4096 files, and 2000 hosts need"):
        local.check_files(0, 2000)


def test_the_fork_server_is_told_what_a_process_has(plan: ProcessPlan) -> None:
    rank = plan.ranks[1]
    assert rank == Process("rank", rank.env, "/work", "/run/exp/rank-1.log", (), rank=1)
    assert plan.controller.hold == "/run/exp/alive" and plan.controller.rank is None


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with Home.make() as home:
        monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", home.variables["JAXCLUSTER_RUNTIME_DIR"])
        monkeypatch.delenv("JAXCLUSTER_COORDINATOR", raising=False)
        yield registry.runtime_root()


def test_a_dry_run_shows_where_the_coordinator_will_listen(runtime: Path) -> None:
    text = dry_run(make_spec(num_processes=2, platform="cpu", name="dry"))
    assert f"  coordinator_address=unix:{runtime}/dry/jax.sock\n" in text
    assert f"  coordinator_bind_address=unix:{runtime}/dry/jax.sock\n" in text


def test_a_dry_run_has_the_name_that_a_start_would_get(runtime: Path) -> None:
    taken = claims.claim("main")
    assert taken is not None
    text = dry_run(make_spec(num_processes=2, platform="cpu"))
    assert f"coordinator_address=unix:{runtime}/main-2/jax.sock\n" in text
    taken.remove()


def test_a_dry_run_shows_a_coordinator_of_rank_0_or_of_the_users(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = make_spec(num_processes=2, platform="cpu", coordinator_address="127.0.0.1:8476")
    assert "  coordinator_address=127.0.0.1:8476\n" in dry_run(placed)
    monkeypatch.setenv("JAXCLUSTER_COORDINATOR", "rank0")
    text = dry_run(make_spec(num_processes=2, platform="cpu"))
    assert "  coordinator_address=127.0.0.1:<a free port>\n" in text
