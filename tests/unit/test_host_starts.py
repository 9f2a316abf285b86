"""What is decided before any rank starts, without any host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import Home

from jaxcluster.cluster import make_spec
from jaxcluster.cluster.starting import dry_run
from jaxcluster.errors import JaxClusterError, LaunchError, UsageError
from jaxcluster.host import processes
from jaxcluster.hosts.allocation import SHARED_DIR, Allocation
from jaxcluster.hosts.fleet import Host
from jaxcluster.hosts.placing import place
from jaxcluster.hosts.records import claims
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.launchers.ipp import IPP


def host(number: int, said: Mapping[str, Any]) -> Host:
    agents: Any = None
    return Host(agents, number, f"h{number + 1}", StartedAgent(number, said))


def test_a_dry_run_names_the_folder_that_hosts_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SHARED_DIR, "/shared")
    options = {"nodes": "2", "ntasks_per_node": "2"}
    spec = make_spec(launcher="ipp:pbs", env={"MINE": "a b"}, devices_per_process=2, **options)
    lines = dry_run(spec).splitlines()
    folder = f"/shared/jaxcluster-{os.getuid()}/main-XXXX"
    assert f"note: {folder} must be a folder that the hosts share" in lines
    assert lines[-4:] == [
        "then each agent starts its ranks; platform: that of the hosts' devices, 2 devices each",
        "JAX's coordinator: on the first host, on a free port; with one host, on a Unix socket",
        "environment of every rank, added to its host's own (sent encrypted):",
        "  MINE=a b",
    ]


def test_a_dry_run_on_this_machine_shows_the_ranks_and_where_they_lie(home: Home) -> None:
    env = {"MINE": "1", "MY_TOKEN": "secret"}
    text = dry_run(make_spec(num_processes=2, platform="cpu", name="dry", env=env))
    assert text.startswith("2 ranks on this machine, forked from one preloaded process")
    assert f"folders: {home.variables['JAXCLUSTER_RUNTIME_DIR']}\n" in text
    assert "MINE=1 MY_TOKEN=...\n" in text
    assert "secret" not in text
    assert "  coordinator_address=unix:<a folder of this machine's agent>/jax.sock\n" in text


def test_agents_are_told_what_is_read_when_they_start_and_nothing_else() -> None:
    env = {"TOKEN": "secret", "JAX_DEBUG_NANS": "1", "JAXCLUSTER_RUNTIME_DIR": "/scratch/me"}
    text = dry_run(make_spec(launcher="ipp:pbs", nodes="2", env=env))
    before, _, after = text.partition("environment of every rank")
    given = before.partition("exec env ")[2].split()[:3]
    assert sorted(given[:2]) == ["JAXCLUSTER_RUNTIME_DIR=/scratch/me", "JAX_DEBUG_NANS=1"]
    assert "=" not in given[2]
    assert "TOKEN=..." in after  # a notebook is saved, and shared
    assert "secret" not in text


def test_a_shared_folder_that_others_could_exchange_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claimed = claims.claim("main")
    assert claimed is not None
    monkeypatch.setenv(SHARED_DIR, str(tmp_path / "open"))
    allocation = Allocation(claimed)
    made = allocation._launch_folder(IPP("pbs"))
    mine = tmp_path / "open" / f"jaxcluster-{os.getuid()}"
    assert made.parent == mine and mine.stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").chmod(0o777)  # without a sticky bit
    with pytest.raises(
        JaxClusterError, match=r"Every user can write to .*/open, and so could"
    ) as told:
        allocation._launch_folder(IPP("pbs"))
    assert told.value.hint.startswith(f"Name another: {SHARED_DIR}=/path")
    allocation.end()


@pytest.mark.parametrize(
    ("allowed", "asked", "told"),
    [
        ((1024, 4096), (4,), ""),
        ((-1, -1), (1000,), ""),  # RLIM_INFINITY
        ((48, 48), (4,), "This process may open 48 files, and 4 ranks need"),
        ((48, 48), (0, 256), "This process may open 48 files, and 256 hosts"),
        ((1024, 150), (4,), "process.* may open 150 files"),
        ((1024, 4096), (0, 8), ""),
        ((1024, 4096), (0, 2000), "may open 4096 files, and 2000 hosts need"),
    ],
)
def test_too_few_files_are_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, allowed: tuple[int, int], asked: tuple[int, ...], told: str
) -> None:
    """libzmq ends a process that runs out of them."""
    monkeypatch.setattr(processes.resource, "getrlimit", lambda which: allowed)
    monkeypatch.setattr(processes.resource, "setrlimit", lambda *_: pytest.fail("raised in vain"))
    with pytest.raises(LaunchError, match=told) if told else contextlib.nullcontext():
        processes.check_files(*asked)


GPUS: dict[str, Any] = {
    "gpus": ["0", "1"],
    "tpu_chips": 0,
    "gpu_plugin": True,
    "gpu_platform": "cuda",
    "address": "10.0.0.1",
}


def placed(*facts: dict[str, Any], **wanted: Any) -> Any:
    """(platform, ranks on each host) that these hosts' devices decide."""
    hosts = [host(i, one) for i, one in enumerate(facts)]
    spec = place(make_spec(launcher="ssh", hosts="h1,h2", **wanted), hosts, None)
    return spec.platform, [len(one.ranks) for one in hosts]


def test_the_hosts_devices_choose_platform_and_number_of_ranks() -> None:
    four = {**GPUS, "gpus": ["0", "1", "2", "3"]}
    assert placed(GPUS, four) == ("cuda", [2, 4])
    assert placed(GPUS, four, devices_per_process="all") == ("cuda", [1, 1])
    assert placed(GPUS, four, devices_per_process=2) == ("cuda", [1, 2])
    amd = {**GPUS, "gpu_platform": "rocm"}
    assert placed(amd, amd) == ("rocm", [2, 2])
    bare = {**GPUS, "gpu_plugin": False}
    assert placed(bare, bare) == ("cpu", [1, 1])
    pod = {**GPUS, "gpus": [], "tpu_chips": 4}
    assert placed(pod, pod) == ("tpu", [1, 1])


def test_a_host_without_the_plugin_is_named_with_what_installs_it() -> None:
    bare = {**GPUS, "gpu_plugin": False}
    with pytest.raises(UsageError) as caught:
        placed(GPUS, bare)
    assert caught.value.message == (
        "Not all hosts can use the platform 'cuda': h1: 2 GPUs; h2: 2 GPUs, and jax has no cuda "
        "plugin."
    )
    assert 'pip install "jax[cuda12]"' in caught.value.hint
    with pytest.raises(UsageError, match="h2: 2 GPUs, and jax has no cuda plugin") as caught:
        placed(GPUS, bare, platform="cuda")
    assert "--platform cpu" in caught.value.hint
    with pytest.raises(UsageError, match="h1: 2 GPUs; h2: CPU alone"):
        placed(GPUS, {**GPUS, "gpus": []})
